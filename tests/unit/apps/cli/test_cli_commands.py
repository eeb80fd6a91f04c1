"""The commands that look at things: doctor, languages, templates, jail explain, sweep."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import cellwall
from cellwall.engine.templates.base_interpreter import base_interpreter
from cellwall.engine.templates.defaults import DEFAULTS
from cellwall.engine.templates.store import _digest, _manifest
from cellwall.languages.registry import LANGUAGES
from cellwall_bench.processes import descendants
from conftest import Require
from kit.command_line import LEVEL, start, works

COMMANDS = [
    "run", "serve", "sandbox", "top", "shell", "doctor", "languages", "demo", "sweep",
    "templates", "jail",
]  # fmt: skip


def test_help_names_every_command_and_status_is_0() -> None:
    done = start("--help")
    assert done.returncode == 0
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)


def test_version_is_the_packages() -> None:
    assert start("--version").stdout == f"cellwall {cellwall.__version__}\n"


def test_a_wrong_option_is_status_2() -> None:
    done = start("run", "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


def test_starting_costs_neither_engine_nor_rich() -> None:
    code = (
        "import sys, cellwall.apps.cli.main\n"
        "heavy = ('rich', 'httpx', 'websockets', 'cellwall.engine', 'cellwall.jail',"
        " 'cellwall.runtimes')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8"
    )
    assert done.stdout == "[]\n"


def test_a_run_loads_no_parser_of_command_lines_and_no_server() -> None:
    code = (
        "import atexit, sys\n"
        "heavy = ('typer', 'pydantic', 'mcp', 'fastapi', 'starlette', 'rich', 'httpx',"
        " 'cellwall.apps.server', 'cellwall.server')\n"
        "atexit.register(lambda: print([m for m in sys.modules if m.startswith(heavy)]))\n"
        f"sys.argv[1:] = ['run', '--isolation', {LEVEL!r}, '-c', 'print(6 * 7)']\n"
        "from cellwall.apps.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8"
    )
    assert done.stdout == "42\n[]\n"


def test_doctor_agrees_with_whether_sandboxes_can_be_had(require: Require) -> None:
    require("sandboxes", not works(), works())
    done = start("doctor", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == 0
    assert {"feature", "grade", "detail", "remedy"} == set(findings["jail"][0])
    assert {finding["grade"] for finding in findings["jail"]} <= {"PASS", "CAUTION"}


def test_doctor_names_a_remedy_for_whatever_is_not_a_pass() -> None:
    for findings in json.loads(start("doctor", "--json").stdout).values():
        for finding in findings:
            assert finding["remedy"] or finding["grade"] != "FAIL", finding


def test_doctors_table_shows_every_finding() -> None:
    table = start("doctor").stdout
    for findings in json.loads(start("doctor", "--json").stdout).values():
        assert all(finding["feature"] in table for finding in findings)


def test_doctor_calls_what_nobody_has_to_have_absent() -> None:
    done = start("doctor", DOCKER_HOST="unix:///nonexistent/socket")
    (line,) = [line for line in done.stdout.splitlines() if " docker  " in line]
    assert line.split()[0] == "absent"


def test_templates_are_built_for_runtimes_there_are(tmp_path: Path) -> None:
    done = start(
        "templates", "build", "python", "--runtime", "dokcer", CELLWALL_STATE_DIR=str(tmp_path)
    )
    assert done.returncode != 0
    assert "there is no runtime 'dokcer'" in done.stderr
    assert not (tmp_path / "templates").exists()


def test_languages_say_what_is_here_or_how_to_get_it() -> None:
    listed = json.loads(start("languages", "--json").stdout)
    assert [entry["name"] for entry in listed] == list(LANGUAGES)
    for entry in listed:
        assert entry["installed"] or entry["install"].startswith("apt-get install ")
    assert "Python 3." in start("languages").stdout


def test_templates_are_listed_whether_built_or_not(tmp_path: Path) -> None:
    listed = json.loads(start("templates", "ls", "--json", CELLWALL_STATE_DIR=str(tmp_path)).stdout)
    assert {entry["name"] for entry in listed} >= {"python", "data"}
    assert all(entry["digest"] is None for entry in listed)
    assert not list(tmp_path.iterdir())


def test_templates_without_a_command_are_listed_with_their_size(tmp_path: Path) -> None:
    template = next(each for each in DEFAULTS if each.name == "python")
    base = base_interpreter(template)
    digest = _digest(template, base)
    built = tmp_path / "templates" / digest
    built.mkdir(parents=True)
    manifest = _manifest(template, base, digest, [], 77 << 20)
    (built / "manifest.json").write_text(json.dumps(manifest))
    listed = start("templates", CELLWALL_STATE_DIR=str(tmp_path))
    rows = {line.split()[0]: line.split() for line in listed.stdout.splitlines() if line.strip()}
    assert rows["python"][1:3] == [digest[:12], "77"]
    assert rows["data"][1] == "no"


def test_removing_what_is_not_built_is_an_error_of_ours(tmp_path: Path) -> None:
    done = start("templates", "rm", "python", CELLWALL_STATE_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (125, "")
    assert "it is not built" in done.stderr


@pytest.mark.slow
def test_a_template_is_built_once_with_progress_on_stderr(tmp_path: Path) -> None:
    state = {"CELLWALL_STATE_DIR": str(tmp_path)}
    first = start("templates", "build", "python", **state)
    assert first.returncode == 0, first.stderr
    assert "building template python" in first.stderr
    again = start("templates", "build", "python", **state)
    assert (again.stdout, again.stderr) == (first.stdout, "")
    assert start("templates", "rm", "python", **state).returncode == 0


def test_the_jails_plan_is_data_and_prose_of_the_same_steps(require: Require) -> None:
    require("sandboxes", not works(), works())
    plan = json.loads(start("jail", "explain", "--json").stdout)
    prose = start("jail", "explain").stdout.splitlines()
    assert prose.index("") == len(plan["root"]) + 1
    assert plan["network"].endswith("loopback up")
    assert f"  {plan['network']}" in prose
    assert plan["lockdown"]["uid"] != 0


def test_the_plan_follows_the_limits(require: Require) -> None:
    require("sandboxes", not works(), works())
    digests = [
        json.loads(start("jail", "explain", "--json", "--memory", size).stdout)["sandbox_digest"]
        for size in ("64", "64", "65")
    ]
    assert digests[0] == digests[1] != digests[2]


def test_after_kill_9_no_process_lives_on_and_sweep_ends_well(require: Require) -> None:
    require("sandboxes", not works(), works())
    argv = [sys.executable, "-m", "cellwall.apps.cli.main", "run", "--timeout", "40"]
    code = "import os\nif os.fork() == 0: os.setsid()\nprint('on', flush=True)\nwhile True: pass"
    with subprocess.Popen([*argv, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        below = [os.pidfd_open(pid) for pid in descendants(process.pid)]
        assert len(below) >= 4  # boot, fork-server, init, the program and its child
        process.kill()
    for pidfd in below:
        assert select.select([pidfd], [], [], 20)[0], "a process outlived its engine"
        os.close(pidfd)
    swept = start("sweep", "--json")
    assert swept.returncode == 0
    assert json.loads(swept.stdout)["kept"] == []


def test_runtimes_say_what_is_here_and_measure_real_starts(require: Require) -> None:
    require("sandboxes", not works(), works())
    only = {"CELLWALL_RUNTIMES": "jail"}
    plain = {each["name"]: each for each in json.loads(start("runtimes", "--json", **only).stdout)}
    assert (plain["jail"]["available"], plain["jail"]["start"]) == (True, None)
    assert (plain["gvisor"]["allowed"], plain["gvisor"]["findings"]) == (False, [])
    assert "CELLWALL_RUNTIMES" in plain["gvisor"]["remedies"][0]
    rows = json.loads(start("runtimes", "--measure", "--json", **only).stdout)
    measured = {each["name"]: each["start"] for each in rows}
    assert measured["jail"]["count"] == 5
    assert 0 < measured["jail"]["p50_ms"] < 60_000
    assert measured["gvisor"] is None
    assert " ms " in start("runtimes", "--measure", **only).stdout


def test_trust_is_an_option_and_is_said_back(require: Require) -> None:
    require("sandboxes", not works(), works())
    done = start("run", "--trust", "semi", "--json", "-c", "print(1)")
    assert json.loads(done.stdout)["trust"] == "semi"
    both = start("run", "--trust", "semi", "--isolation", "kernel", "-c", "1")
    assert (both.returncode, "give trust or isolation" in both.stderr) == (125, True)
    floor = {"CELLWALL_LEAST_ISOLATION": "kernel"}
    low = start("run", "--isolation", "namespace", "-c", "1", **floor)
    assert "'namespace' is below 'kernel', the least here" in low.stderr
