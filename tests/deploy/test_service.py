"""deploy/cellwall.service: the jail works behind every line of it, and not behind those left out.

systemd itself reads the file (`systemd-analyze`, no pid 1 needed); its walls are put up by hand
(`walls.py`) around an ordinary user's engine. Controls: each directive that the unit's last
paragraph names is added once, and then `doctor` fails or the program does not run.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.templates.build import find_uv
from conftest import require_capability
from kit.deploy import walls
from kit.deploy.units import directives
from kit.places import ROOT
from kit.unprivileged import SOURCES, OrdinaryUser

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "cellwall.service"
_WORST = 35
"""Tenths of `systemd-analyze security`: what user namespaces and a server's sockets cost."""
_CASES = """
import json, sys
import cellwall
nonce = sys.argv[1]
for language, code in json.loads(sys.argv[2]):
    done = cellwall.run(code, language=language)
    print(json.dumps([language, done.verdict.value, done.stdout]), flush=True)
"""


def left_out() -> set[str]:
    """Return the directives that the unit's last paragraph says it does without."""
    text = UNIT.read_text(encoding="utf-8").partition("# Not here:")[2]
    listed = re.findall(r"^#   ([A-Z].*?):", text, re.MULTILINE)
    return {re.sub("=.*", "", name) for line in listed for name in line.split(", ")}


class Service:
    """A user with a template, and programs of its behind walls."""

    def __init__(self, user: OrdinaryUser) -> None:
        self.user = user

    def run(self, added: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program behind the unit's walls and those of `added`."""
        document = {
            "directives": {**directives(UNIT), **added},
            "ids": [self.user.uid, self.user.gid],
            "readable": sorted({sys.prefix, SOURCES, str(Path(find_uv()).parent)}),
            "writable": [str(self.user.home)],
            "argv": [sys.executable, *argv],
            "environment": self.user.environment,
        }
        return subprocess.run(
            [sys.executable, walls.__file__, json.dumps(document)],
            env={**os.environ, "PYTHONPATH": SOURCES},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            start_new_session=True,
        )

    def cellwall(self, added: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(added, "-m", "cellwall.apps.cli.main", *words)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    require_capability("systemd-analyze", shutil.which("systemd-analyze") is not None, "systemd")
    with OrdinaryUser() as user:
        made = Service(user)
        built = made.cellwall({}, "templates", "build", "python")
        assert built.returncode == 0, built.stderr
        yield made


def test_systemd_takes_every_line(tmp_path: Path) -> None:
    require_capability("systemd-analyze", shutil.which("systemd-analyze") is not None, "systemd")
    copy = tmp_path / UNIT.name
    program = "/opt/cellwall/bin/cellwall"
    copy.write_text(UNIT.read_text(encoding="utf-8").replace(program, "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    threshold = [f"--threshold={_WORST}", "--offline=true", "--no-pager"]
    argv = ["systemd-analyze", "security", *threshold, str(copy)]
    judged = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout


def test_every_line_is_carried_out_here_or_is_the_managers_own() -> None:
    assert set(directives(UNIT)) <= walls.KNOWN
    assert left_out() & set(directives(UNIT)) == set()


def test_sandboxes_run_behind_the_units_walls(service: Service) -> None:
    nonce = secrets.token_hex(8)
    cases = [("python", f"print({nonce!r})"), ("bash", f"echo {nonce}")]
    if shutil.which("node"):
        cases.append(("javascript", f"console.log({nonce!r})"))
    done = service.run({}, "-c", _CASES, nonce, json.dumps(cases))
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [[language, "ok", f"{nonce}\n"] for language, _ in cases], done.stderr


def test_walls_stand_around_the_service_itself(service: Service) -> None:
    look = (
        "import json, os, socket\n"
        "def can(action):\n"
        "    try: action(); return True\n"
        "    except OSError: return False\n"
        "status = dict(l.split(':\\t', 1) for l in open('/proc/self/status') if ':\\t' in l)\n"
        "print(json.dumps([can(lambda: open('/usr/made', 'w')), can(lambda: os.listdir('/root')),\n"
        "  can(lambda: socket.socket(socket.AF_VSOCK)), status['CapBnd'].strip(),\n"
        "  status['NoNewPrivs'].strip(), os.path.exists('/dev/kmsg'), os.getuid()]))"
    )
    done = service.run({}, "-c", look)
    uid = service.user.uid
    assert json.loads(done.stdout) == [False, False, False, "0" * 16, "1", False, uid], done.stderr


_BREAKING: dict[str, tuple[str, str]] = {
    "ProtectKernelTunables": ("yes", "private /proc"),
    "ProtectKernelLogs": ("yes", "private /proc"),
    "ProcSubset": ("pid", ""),
    "ProtectHostname": ("yes", ""),
    "RestrictNamespaces": ("yes", "user namespaces"),
}
"""What is added, and what of `doctor` fails then; where nothing, a run must."""


def failures(done: subprocess.CompletedProcess[str]) -> set[str]:
    found: list[dict[str, Any]] = json.loads(done.stdout)["jail"]
    return {each["feature"] for each in found if each["grade"] == "FAIL"}


def test_doctor_fails_nothing_behind_the_units_walls(service: Service) -> None:
    assert failures(service.cellwall({}, "doctor", "--json")) == set()


@pytest.mark.parametrize("name", _BREAKING)
def test_what_is_left_out_would_break_the_jail(service: Service, name: str) -> None:
    value, feature = _BREAKING[name]
    if feature:
        assert feature in failures(service.cellwall({name: value}, "doctor", "--json"))
    nonce = secrets.token_hex(8)
    done = service.cellwall({name: value}, "run", "-c", f"print({nonce!r})")
    assert nonce not in done.stdout
    assert done.returncode == 125, done.stderr


_DURABLE = (ROOT / "docs/snippets/state/durable.py").read_text(encoding="utf-8")
_PLACE = """
import pathlib
from cellwall.apps.serve import _with_snapshots
from cellwall.apps.settings_loader import load
print(bool(_with_snapshots(load(None, {}), pathlib.Path.cwd()).snapshots_dir))
"""


def test_snapshots_outlive_an_engine_behind_the_units_walls(service: Service) -> None:
    done = service.run({}, "-c", _DURABLE)
    assert done.stdout == "durable: True\n42\n", done.stderr
    assert service.run({}, "-c", _PLACE).stdout == "True\n"


def test_a_locked_personality_would_break_durable_snapshots_alone(service: Service) -> None:
    """A server with an older unit starts, and keeps nothing that was not asked for."""
    locked = {"LockPersonality": "yes"}
    doctor = service.cellwall(locked, "doctor", "--json")
    assert failures(doctor) == set()
    found = {each["feature"]: each for each in json.loads(doctor.stdout)["jail"]}
    assert found["memory layouts"]["grade"] == "CAUTION"
    assert service.run(locked, "-c", _PLACE).stdout == "False\n"
    done = service.run(locked, "-c", _DURABLE)
    assert "42" not in done.stdout
    assert "personality" in done.stderr


@pytest.mark.needs("node")
def test_forbidding_written_code_would_break_javascript(service: Service) -> None:
    argv = ("run", "-l", "javascript", "-c", "console.log('ran')")
    assert service.cellwall({}, *argv).stdout == "ran\n"
    assert "ran" not in service.cellwall({"MemoryDenyWriteExecute": "yes"}, *argv).stdout
