"""Is there anything left on this host for one more? Asked before anything is accepted.

Not a reservation (`admission`): what is really free, as the second wall behind the promises. What
must not happen is that the host or the server itself runs dry. The invariants: asking is cheap (a
reading holds for a quarter of a second, or until as many were let in as could have used up what
was to spare); the quicker starts are, the more often is read; and without an answer of the kernel
nothing is refused.
"""

from __future__ import annotations

import os
import re
import resource
import time

from cellwall.engine.scheduling.capacity import Files, processes_left
from cellwall.model.errors import CapacityError

_FRESH_S = 0.25
_LEAST_DESCRIPTORS = 96
"""For connections, the store, and a pool that fills again behind those that were let in."""
_DESCRIPTORS_EACH = 4
"""A sandbox takes three, its client's connection one."""
_LEAST_PROCESSES = 256
_LEAST_SHARE = 0.1
"""Of the processes there may be, where that is less."""


class Room:
    """What is free, as last read."""

    def __init__(self, least_free_mb: int, files: Files | None = None) -> None:
        """Below `least_free_mb` MiB available nothing new is accepted; 0 switches that off."""
        self._least_free_mb = least_free_mb
        self._files = files or Files()
        self._read_at = -1.0
        self._lacks: str | None = None
        self._to_let_in = 0
        """How many more may pass on what was read; one that is refused uses up nothing."""

    def check(self) -> None:
        """Raise `CapacityError` when the host has too little left."""
        now = time.monotonic()
        is_used_up = self._lacks is None and self._to_let_in <= 0
        if is_used_up or now - self._read_at > _FRESH_S:
            self._read_at, self._lacks = now, self._read()
        self._to_let_in -= 1
        if self._lacks is not None:
            raise CapacityError(
                f"{self._lacks} left for another sandbox",
                retry_after_s=5,
                remedy="wait, or delete sandboxes that are not needed",
            )

    def _read(self) -> str | None:
        if self._memory_mb() < self._least_free_mb:
            return "memory: the host has too little"
        spare = self._descriptors() - _LEAST_DESCRIPTORS
        self._to_let_in = spare // _DESCRIPTORS_EACH + 1
        if spare < 0:
            return "descriptors: the server has too few"
        if is_out_of_processes(self._files):
            return "processes: the host has too few"
        return None

    def _memory_mb(self) -> int:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", self._files.text("meminfo"), re.MULTILINE)
        return int(found[1]) // 1024 if found else self._least_free_mb

    def _descriptors(self) -> int:
        try:
            used = len(os.listdir(self._files.proc / "self/fd"))
        except FileNotFoundError:
            return _LEAST_DESCRIPTORS
        except OSError:  # not even one for this
            return 0
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - used


def is_out_of_processes(files: Files) -> bool:
    """Report whether the host, or a cgroup we are in, has too few left to start anything."""
    left, most = processes_left(files)
    return left < min(_LEAST_PROCESSES, most * _LEAST_SHARE)
