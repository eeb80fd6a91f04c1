"""What is released: the wheel, as a user gets it.

Fail points are functions that tests wrap from outside, so a release holds none; the control is that
the same look at the tests finds them. Importing a package must do nothing: no connection, no
process, no file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kit.places import ROOT

_FAIL_POINT = re.compile(
    r"CELLWALL_TEST|fail[_ -]?points?\b|inject(ed)?[_ -]?(fault|failure)|\bunittest\b"
    r"|\bpytest\b(?!==\d)",
    re.I,
)
"""What only tests need. A pin of pytest is not one: sandboxes of template `data` have it."""
_IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
seen = []
def hook(event, arguments):
    forbidden = {"socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.fork"}
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if event in forbidden or writes:
        seen.append((event, str(arguments)[:200]))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
import cellwall
assert cellwall.__file__.startswith(sys.argv[1]), cellwall.__file__
names = [each.name for each in pkgutil.walk_packages(cellwall.__path__, "cellwall.")]
skipped = ["__main__", ".migrations.", ".guest.entry", ".jail.entry", ".testing."]
if sys.version_info < (3, 12):
    skipped.append(".integrations.harbor.")
for kit in ("dspy", "google_adk", "mini_swe_agent", "openai_agents", "strands"):
    skipped.append(f".integrations.{kit}.")  # in an environment of their own
for name in names:
    if not any(each in f"{name}." for each in skipped):
        importlib.import_module(name)
print(len(names), seen)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    hatch = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder),
    ]
    done = subprocess.run(hatch, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    ours = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/cellwall").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == ours


def test_release_has_no_fail_points(wheel: Path) -> None:
    found = []
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            if name.endswith(".py") and not name.startswith("cellwall/testing/"):
                text = file.read(name).decode("utf-8")
                found += [f"{name}: {each[0]}" for each in _FAIL_POINT.finditer(text)]
    assert found == []
    control = (ROOT / "tests/kit/server/failing_main.py").read_text(encoding="utf-8")
    assert _FAIL_POINT.search(control)


def test_importing_everything_does_nothing(wheel: Path, tmp_path: Path) -> None:
    """API-44."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, _, seen = done.stdout.strip().partition(" ")
    assert int(count) > 200
    assert seen == "[]"
