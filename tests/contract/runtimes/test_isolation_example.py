"""examples/isolation.py as it is: on every runtime, and with Docker stopped in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cellwall.runtimes.docker import ids
from conftest import Require
from kit.docker_daemon import Daemon
from kit.places import ROOT

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
EXAMPLE = ROOT / "examples" / "isolation.py"
LEVELS = {"jail": "namespace", "docker": "namespace", "docker+runsc": "kernel", "gvisor": "kernel"}
_IDS = range(ids.FIRST, ids.FIRST + ids.COUNT)
_UIDS = {"docker": _IDS, "docker+runsc": _IDS}


@pytest.fixture(autouse=True)
def _runtimes(require: Require, docker_daemon: Daemon) -> None:
    found = any(os.access(f"{folder}/runsc", os.X_OK) for folder in ("/usr/bin", "/usr/local/bin"))
    require("runsc", found, "run: apt-get install runsc")
    assert docker_daemon.address == os.environ["DOCKER_HOST"]


@pytest.fixture
def example() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLE)], stdout=subprocess.PIPE, encoding="utf-8"
    )
    with process:
        yield process
        process.kill()


def _said(lines: list[str]) -> dict[str, str]:
    """What was printed of each runtime, with what the inside says below it."""
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith(" "):
            found[list(found)[-1]] += line
        else:
            name, _, rest = line.partition(": ")
            found[name] = rest
    return found


def test_example_prints_what_really_applied(example: subprocess.Popen[str]) -> None:
    said = _said(example.communicate()[0].splitlines())
    assert example.returncode == 0
    assert list(said) == list(LEVELS)
    for name, words in said.items():
        assert words.startswith(f"{name}, level {LEVELS[name]}, "), said
        assert int(words.partition(" uid ")[2].split()[0]) in _UIDS.get(name, (1000,))
    release = os.uname().release
    assert [release in words for words in said.values()] == [True, True, False, False]


def test_docker_that_is_stopped_in_the_middle_is_named_and_the_rest_goes_on(
    example: subprocess.Popen[str], docker_daemon: Daemon
) -> None:
    assert example.stdout is not None
    first = [example.stdout.readline(), example.stdout.readline()]
    example.send_signal(signal.SIGSTOP)
    docker_daemon.kill()
    try:
        example.send_signal(signal.SIGCONT)
        said = _said([*first, *example.stdout.read().splitlines()])
        assert example.wait() == 0
    finally:
        docker_daemon.start()
    for name in ("jail", "gvisor"):
        assert said[name].startswith(f"{name}, level {LEVELS[name]}, "), said
    for name in ("docker", "docker+runsc"):
        assert "uid 1000" not in said[name], said
    assert "does not answer" in said["docker+runsc"]
