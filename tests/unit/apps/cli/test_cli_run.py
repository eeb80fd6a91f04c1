"""`cellwall run` as a filter: real processes, real sandboxes.

The level is `namespace`; `CELLWALL_TEST_ISOLATION=process` runs the same promises without a wall,
for work on the command line itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Require
from kit.command_line import LEVEL, Done, start, works
from kit.places import ROOT

EXAMPLES = ROOT / "examples"
Run = Callable[..., Done]


@pytest.fixture
def run(require: Require) -> Run:
    require("sandboxes", not works(), works())
    return lambda *words, **options: start("run", "--isolation", LEVEL, *words, **options)


def test_output_and_status_are_the_programs_own(run: Run) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    done = run("-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


def test_code_comes_from_a_file_and_its_extension_names_the_language(run: Run) -> None:
    assert run(str(EXAMPLES / "hello.py")).stdout.startswith("hello from Python 3")
    assert "3 squared is 9" in run(str(EXAMPLES / "hello.sh")).stdout


def test_code_comes_from_standard_input(run: Run) -> None:
    assert run("-", "--language", "bash", "--", "x", stdin="echo $1 $0").stdout == "x main.sh\n"


def test_arguments_after_the_dashes_are_the_programs(run: Run) -> None:
    done = run("-c", "import sys; print(sys.argv[1:])", "--", "--json", "-c", "two words")
    assert done.stdout == "['--json', '-c', 'two words']\n"


def test_standard_input_goes_in_only_when_asked(run: Run) -> None:
    code = "import sys; print(repr(sys.stdin.read()))"
    assert run("-c", code, stdin="secret").stdout == "''\n"
    assert run("--stdin", "-", "-c", code, stdin="žluť\n").stdout == "'žluť\\n'\n"


def test_files_and_variables_go_in(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums/a.txt").write_text("40")
    (tmp_path / "b.txt").write_text("2")
    code = (
        "import os; print(int(open('sums/a.txt').read()) + int(open('b').read()), os.environ['C'])"
    )
    words = (
        "--file",
        str(tmp_path / "sums"),
        "--file",
        f"{tmp_path / 'b.txt'}:b",
        "--env",
        "C=x y",
    )
    done = run(*words, "-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("42 x y\n", "", 0)


def test_file_that_is_not_there_is_named_before_anything_runs(run: Run) -> None:
    done = run("--file", "no/such", "-c", "print('ran')")
    assert (done.stdout, done.returncode) == ("", 125)
    assert "--file: read no/such: No such file or directory" in done.stderr


def test_rows_of_sql_are_printed(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "q.sql"
    program.write_text("select 42 as answer; select i, i * i as square from range(3) t(i);")
    done = run(str(program))
    assert done.stdout == "answer\n------\n42\ni  square\n-  ------\n0  0\n1  1\n2  4\n"
    assert (done.stderr, done.returncode) == ("", 0)


def test_images_are_named_and_values_are_not_printed(run: Run) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\n6 * 7"
    done = run("--template", "data", "-c", code)
    assert done.stdout == ""
    assert done.stderr == "cellwall: image 1 is not shown here; --json has it\n"


def test_json_is_one_line_with_the_answer(run: Run) -> None:
    code = "def main(n, word):\n    print(word)\n    return [n] * 2"
    done = run("--json", "--arg", "n=3", "--arg", 'word="hi"', "-c", code)
    assert done.stdout.count("\n") == 1
    answer = json.loads(done.stdout)
    assert (answer["verdict"], answer["result"], answer["stdout"]) == ("ok", [3, 3], "hi\n")
    assert answer["isolation"]["level"] == LEVEL


def test_json_keeps_the_programs_status(run: Run) -> None:
    done = run("--json", "-c", "raise SystemExit(9)")
    assert (json.loads(done.stdout)["exit_code"], done.returncode) == (9, 9)


def test_wall_time_is_124_with_a_reason(run: Run) -> None:
    done = run("--timeout", "0.3", "-c", "print('begun', flush=True)\nwhile True: pass")
    assert (done.returncode, done.stdout) == (124, "begun\n")
    assert done.stderr.startswith("cellwall: wall_time: ")


def test_a_signal_is_128_and_its_number(run: Run) -> None:
    assert run("-c", "import os; os.kill(os.getpid(), 11)").returncode == 139


def test_a_traceback_is_on_stderr_once(run: Run) -> None:
    done = run("-c", "1 / 0")
    assert done.returncode == 1
    assert done.stderr.count("ZeroDivisionError: division by zero") == 1
    assert done.stdout == ""


def test_cut_output_is_said(run: Run) -> None:
    done = run("--limit", "output_kb=1", "-c", "print('x' * 5000)")
    assert (done.returncode, len(done.stdout)) == (1, 1024)
    assert "cellwall: output: " in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no program"),
        (("no-such-file.py",), "read no-such-file.py: No such file"),
        (("README.unknown",), "README.unknown"),
        (("-c", "1", "--arg", "x"), "has no name"),
        (("-c", "1", "--arg", "x=maybe"), "'maybe' is not JSON"),
        (("-c", "1", "--limit", "speed=3"), "unknown name 'speed'"),
        (("-c", "1", "--memory", "1"), "limits.memory_mb: 1 is out of bounds"),
        (("-c", "1", "--template", "nope"), "template 'nope' is not defined"),
        (("-c", "1", "-l", "cobol"), "language 'cobol' is not known"),
        (("-c", "1", "--start", "spawn"), "start: 'spawn' is not a way to start"),
    ],
)
def test_misuse_is_125_and_names_step_and_remedy(words: tuple[str, ...], said: str) -> None:
    done = start("run", *words)
    assert done.returncode == 125
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "; " in done.stderr


def test_our_failure_under_json_is_one_line_too() -> None:
    done = start("run", "--json", "-c", "1", "--template", "nope")
    error = json.loads(done.stdout)["error"]
    assert (error["code"], done.returncode) == ("not_found", 125)
    assert error["remedy"]


def test_no_weaker_isolation_than_asked_for_runs() -> None:
    done = start("run", "--isolation", "vm", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (125, "")
    refused = start("run", "--isolation", "process", "-c", "print(1)", CELLWALL_ALLOW_PROCESS="0")
    assert "print" not in refused.stdout
    assert refused.returncode == 125 or json_level() != "process"


def json_level() -> str:
    done = start("run", "--isolation", "process", "--json", "-c", "1", CELLWALL_ALLOW_PROCESS="0")
    return str(json.loads(done.stdout)["isolation"]["level"])


def test_limits_that_must_be_hard_are_hard_or_nothing_runs() -> None:
    words = ("run", "--isolation", "process", "--runtime", "process", "-c", "print(1)")
    assert start(*words, CELLWALL_ALLOW_PROCESS="1").stdout == "1\n"
    refused = start(*words, "--demand-hard", CELLWALL_ALLOW_PROCESS="1")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "limits are only held softly here" in refused.stderr


@pytest.mark.parametrize(("words", "role"), [((), "forkserver"), (("--start", "exec"), "init")])
def test_start_decides_whose_image_a_program_has(
    run: Run, words: tuple[str, ...], role: str
) -> None:
    if LEVEL == "process":
        pytest.skip("runtime process always starts an interpreter of its own")
    code = "print(open('/proc/self/cmdline').read().split(chr(0)))"
    assert f"'{role}'" in run(*words, "-c", code).stdout


def test_a_reader_that_goes_away_ends_the_program(run: Run) -> None:
    code = "import sys\nwhile True: print('y' * 500, flush=True)"
    words = [sys.executable, "-m", "cellwall.apps.cli.main", "run", "--isolation", LEVEL]
    env = {**os.environ, "CELLWALL_ALLOW_PROCESS": "1"}
    with subprocess.Popen(
        [*words, "--timeout", "40", "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"y" * 500 + b"\n"
        process.stdout.close()
        assert process.wait(timeout=30) == 141


LEAVES = (
    "import os; os.makedirs('out/in'); open('out/in/a.txt', 'w').write('kept')\n"
    "open('other', 'w').write('x'); os.symlink('/etc/passwd', 'out/link'); print(1)"
)


def test_artifacts_come_to_a_new_directory(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    done = run("--artifacts", "out", "--into", str(place), "-c", LEAVES)
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert [path.relative_to(place).as_posix() for path in sorted(place.rglob("*"))] == [
        "in",
        "in/a.txt",
    ]
    assert (place / "in" / "a.txt").read_text(encoding="utf-8") == "kept"


def test_artifacts_overwrite_nothing_and_refuse_before_the_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine", encoding="utf-8")
    done = run("--artifacts", "out", "--into", str(tmp_path), "-c", LEAVES)
    assert (done.stdout, done.returncode) == ("", 125)
    assert "is not empty; give --into a new or empty directory" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


@pytest.mark.parametrize(("ends", "status"), [("", 125), ("raise SystemExit(3)", 3)])
def test_artifacts_that_do_not_all_come_are_said_and_fail(
    run: Run, tmp_path: Path, ends: str, status: int
) -> None:
    place = tmp_path / "place"
    code = f"{LEAVES}; open('out/no', 'w'); os.chmod('out/no', 0)\n{ends}"
    done = run("--artifacts", "./out", "--into", str(place), "-c", code)
    assert (done.stdout, done.returncode) == ("1\n", status)
    assert f"artifacts: 1 in {place}" in done.stderr
    assert "not brought back: out/no: " in done.stderr
    assert (place / "in" / "a.txt").exists()


def test_folder_that_was_not_made_is_said_and_makes_none(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    done = run("--artifacts", "out", "--into", str(place), "-c", "print(1)")
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert "there are none" in done.stderr
    assert not place.exists()
