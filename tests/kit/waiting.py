"""Waiting for a fact of the operating system that nothing tells of: the one place that polls.

An end of a process, a file, a state in /proc. What asyncio can tell of is waited for with events,
and time that has to pass for a test with `kit.loop_clock`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 20.0
_PAUSE_S = 0.002


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Look until `condition` is true; the failure at the deadline says `what` was waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(_PAUSE_S)


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does, as S or Z; "" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return state_of(pid) not in ("", "Z")


class Gate:
    """A named pipe at which guest code waits: opening it to read lasts until `open`."""

    def __init__(self, path: Path) -> None:
        """Make it, closed."""
        self._path = path
        os.mkfifo(path)

    def open(self) -> None:
        """Wait for the one that is to wait there, and let it through."""
        wait_until(self._has_let_through, f"a reader of {self._path.name}")

    def _has_let_through(self) -> bool:
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # it has no reader yet
                return False
            raise
        with contextlib.suppress(BrokenPipeError):  # the reader only wanted to open it
            os.write(fd, b"\n")
        os.close(fd)
        return True
