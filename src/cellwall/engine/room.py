"""Is there memory for one more? Asked before anything is accepted.

Not a reservation: limits are ceilings, and most sandboxes use a fraction of theirs. What must not
happen is that the host itself runs dry. The invariant: asking is cheap (one reading per quarter
of a second, however many ask), and without an answer of the kernel nothing is refused.
"""

from __future__ import annotations

import time
from pathlib import Path

from cellwall.model.errors import CapacityError

_FRESH_S = 0.25
_MEMINFO = Path("/proc/meminfo")


class Room:
    """The host's free memory, as last read."""

    def __init__(self, least_free_mb: int, source: Path = _MEMINFO) -> None:
        """Below `least_free_mb` MiB available nothing new is accepted; 0 switches it off."""
        self._least_free_mb = least_free_mb
        self._source = source
        self._read_at = -1.0
        self._free_mb = 0

    def check(self) -> None:
        """Raise `CapacityError` when the host has too little memory left."""
        if not self._least_free_mb:
            return
        now = time.monotonic()
        if now - self._read_at > _FRESH_S:
            self._read_at, self._free_mb = now, self._read()
        if self._free_mb < self._least_free_mb:
            raise CapacityError(
                "memory: the host has too little left for another sandbox",
                retry_after_s=5,
                remedy="wait, or delete sandboxes that are not needed",
            )

    def _read(self) -> int:
        try:
            for line in self._source.read_text(encoding="ascii").splitlines():
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) // 1024
        except (OSError, ValueError, IndexError):
            pass
        return self._least_free_mb
