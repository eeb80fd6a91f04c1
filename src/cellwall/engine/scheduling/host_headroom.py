"""Headroom: whether the host has resources left for one more sandbox, asked before accepting one.

This is not a reservation (`admission`) but what the kernel reports as free: a second bound behind
the promises, so that neither the host nor the server itself runs out. The invariants: a check is
cheap (a reading is valid for a quarter of a second, or until as many sandboxes were accepted as
could use up the spare part); faster starts cause more frequent readings; and without an answer of
the kernel nothing is refused.
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
"""Number of descriptors kept for connections, the store, and a pool that refills behind accepted
sandboxes."""
_DESCRIPTORS_EACH = 4
"""Number of descriptors per sandbox: three for itself, one for its client's connection."""
_LEAST_PROCESSES = 256
_LEAST_SHARE = 0.1
"""Share of the allowed processes, used where that is less than `_LEAST_PROCESSES`."""


class HostHeadroom:
    """Free resources, as last read."""

    def __init__(self, least_free_mb: int, files: Files | None = None) -> None:
        """Accept nothing new below `least_free_mb` MiB of free memory; 0 turns that check off."""
        self._least_free_mb = least_free_mb
        self._files = files or Files()
        self._read_at = -1.0
        self._lacks: str | None = None
        self._to_let_in = 0
        """Number of sandboxes that may still pass on the last reading; a refused one uses up
        nothing."""

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
        except OSError:  # no descriptor is left even for this listing
            return 0
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - used


def is_out_of_processes(files: Files) -> bool:
    """Report whether the host, or a cgroup of this process, has too few processes left."""
    left, most = processes_left(files)
    return left < min(_LEAST_PROCESSES, most * _LEAST_SHARE)
