"""Lease: until when a node may run sandboxes without hearing of its driver.

Pure but for the clock, CLOCK_BOOTTIME, which also counts while a machine is suspended. The
invariant: a lease is never renewed to later than what its driver knows. A ping renews it only from
the moment at which the node answered an earlier ping whose answer the driver has: so it ends
`fence_s` after that even where messages still arrive, and answers do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_OPEN = 64
"""Answers whose arrival may be unknown; more than are sent while a lease lasts."""


def boot_s() -> float:
    """Return the seconds since this machine's start, with those of suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The lease of one node."""

    def __init__(self, fence_s: float, clock: Callable[[], float] = boot_s) -> None:
        """Begin it now, for `fence_s` seconds."""
        self._fence_s = fence_s
        self._clock = clock
        self._base_s = clock()
        self._answered: dict[int, float] = {}

    def answer(self, number: int, heard: int) -> None:
        """Note that ping `number` is answered now; the driver has the answer to ping `heard`."""
        at = self._answered.get(heard)
        if at is not None:
            self._base_s = max(self._base_s, at)
            self._answered = {n: at for n, at in self._answered.items() if n > heard}
        self._answered[number] = self._clock()
        if len(self._answered) > _MOST_OPEN:
            self._answered.pop(min(self._answered))

    @property
    def ends_at(self) -> float:
        """The end, on the clock of `boot_s`."""
        return self._base_s + self._fence_s

    @property
    def left_s(self) -> float:
        """Seconds until the end; none are left if it is not above 0."""
        return self.ends_at - self._clock()
