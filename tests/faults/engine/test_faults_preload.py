"""A template whose preload list cannot work: its build says so, with the module and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import hostile_wheels

pytestmark = pytest.mark.timeout(180)
_COMMAND = Path(sys.executable).with_name("cellwall")
_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True)"
_MODULES = {
    "calm": "import json\n",
    "spinner": f"{_THREAD}.start()\n",
    "wheelwright": "import spinner\n",
    "listener": "import socket\nkept = socket.socketpair()\n",
    "reader": "kept = open(__file__)\n",
    "broken": "raise RuntimeError('not today')\n",
    "leaver": "import os\nos._exit(3)\n",
}
_FAILS = {
    "spinner": ("2 threads", "spinner starts one", "take spinner off the preload list"),
    "wheelwright": ("spinner starts one", "take wheelwright off", "spinner out of the template"),
    "listener": ("socket:", "importing listener", "take listener off the preload list"),
    "reader": ("reader.py is open", "importing reader", "take reader off the preload list"),
    "broken": ("RuntimeError: not today", "broken", "take it off the preload list"),
    "absent": ("No module named 'absent'", "install it in the template"),
    "leaver": ("no sandbox of it can start",),
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="preload-") as name:
        work = Path(name)
        work.chmod(0o755)
        for module, text in _MODULES.items():
            hostile_wheels.wheel(work / "wheels", module, {f"{module}.py": text})
        for variable, value in {
            "UV_FIND_LINKS": str(work / "wheels"),
            "UV_NO_INDEX": "1",
            "UV_OFFLINE": "1",
            "UV_CACHE_DIR": str(work / "cache"),
            "CELLWALL_CONFIG_DIR": str(work / "config"),
            "CELLWALL_STATE_DIR": str(work / "state"),
        }.items():
            monkeypatch.setenv(variable, value)
        yield work
        for folder, _, _ in os.walk(work / "state"):
            os.chmod(folder, 0o755)


def _build(place: Path, preload: str) -> subprocess.CompletedProcess[str]:
    packages = [f"{module}==1.0" for module in _MODULES]
    hostile_wheels.define(place / "config", "plants", packages=packages, preload=[preload])
    words = [str(_COMMAND), "templates", "build", "plants"]
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("preload", _FAILS)
def test_build_says_that_the_preload_cannot_work(place: Path, preload: str) -> None:
    for _ in range(2):  # it is built, and that does not make it usable
        built = _build(place, preload)
        assert built.returncode == 125
        assert [each for each in _FAILS[preload] if each not in built.stderr] == [], built.stderr


def test_build_of_one_that_works_tries_it_once(place: Path) -> None:
    assert _build(place, "calm").returncode == 0
    (trial,) = (place / "state/templates").glob("*.starts-jail")
    first = trial.stat().st_ctime_ns
    assert _build(place, "calm").returncode == 0
    assert trial.stat().st_ctime_ns == first
    words = [str(_COMMAND), "templates", "rm", "plants"]
    assert subprocess.run(words, check=False, capture_output=True).returncode == 0
    assert not trial.exists()
