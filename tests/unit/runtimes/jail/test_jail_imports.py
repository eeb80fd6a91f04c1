"""What runs in the fork-server and inside pays for its imports, and is what hostile code meets.

Measured in the bundle itself under `python -I -S`, because that is what runs there: a list of
source files would not see what a module imports in its turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall import guest
from cellwall.runtimes.jail.starting.bundle import bundle_in

FORBIDDEN = {
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "subprocess",
    "threading",
    "typing_extensions",
}
_STAGES = {
    "boot": ("cellwall.jail.processes.entry", "cellwall.jail.processes.boot"),
    "forkserver": (
        "cellwall.jail.processes.entry",
        "cellwall.jail.processes.forkserver",
        "cellwall.jail.processes.sandbox_init",
    ),
    "init": ("cellwall.guest.init.main",),
}
_LIST = """
import importlib, json, sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
new = sorted(set(sys.modules) - before)
where = {n: getattr(sys.modules[n], "__file__", None) or "" for n in new}
print(json.dumps(where))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The very archive the jail starts."""
    where = tmp_path_factory.mktemp("bundle")
    return bundle_in(where)


def _imported(bundle: Path, modules: tuple[str, ...]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LIST, str(bundle), *modules],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("stage", _STAGES)
def test_stage_imports_neither_threads_nor_loops_nor_logging(bundle: Path, stage: str) -> None:
    tops = {name.partition(".")[0] for name in _imported(bundle, _STAGES[stage])}
    assert "cellwall" in tops  # the control: something was imported at all
    assert tops & FORBIDDEN == set()


@pytest.mark.parametrize("stage", _STAGES)
def test_stage_imports_only_the_bundle_and_the_standard_library(bundle: Path, stage: str) -> None:
    for name, file in _imported(bundle, _STAGES[stage]).items():
        top = name.partition(".")[0]
        if top == "cellwall":
            assert file.startswith(str(bundle)), f"{name} came from {file}"
        else:
            assert top in sys.stdlib_module_names, f"{name} is not of the standard library"


def test_the_list_can_find_what_it_forbids(bundle: Path) -> None:
    assert FORBIDDEN & set(_imported(bundle, ("asyncio", "logging")))


def test_every_module_of_the_guest_can_be_imported_from_the_bundle(bundle: Path) -> None:
    root = Path(guest.__path__[0])
    found = (path.relative_to(root.parent).with_suffix("") for path in root.rglob("[!_]*.py"))
    names = tuple(".".join(("cellwall", *path.parts)) for path in found)
    assert names, "the guest has modules"
    assert set(names) <= set(_imported(bundle, names))
