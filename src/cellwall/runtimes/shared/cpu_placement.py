"""Which of the machine's CPUs sandboxes run on.

Not a limit (cgroups hold the share of CPU time): a choice, so that the inside sees as many as its
quota has and sandboxes spread over all of them.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter

_current_cpu = ctypes.CDLL(None).sched_getcpu
"""sched_getcpu(3): no system call."""


class Cpus:
    """Which CPUs sandboxes are pinned to, so that they spread over all of them."""

    def __init__(self) -> None:
        """Nothing is pinned yet."""
        self._load: Counter[int] = Counter()

    def take(self, count: int, near: int = -1) -> frozenset[int]:
        """The `count` least used CPUs; empty when that is all of them.

        One that has a single sandbox more than the others still counts as least used if it is
        `near`: what runs there need not move, and finds its caches.
        """
        allowed = sorted(os.sched_getaffinity(0))
        if count >= len(allowed):
            return frozenset()
        load = self._load
        chosen = sorted(allowed, key=lambda cpu: load[cpu] - 1.5 * (cpu == near))[:count]
        load.update(chosen)
        return frozenset(chosen)

    def others(self, taken: frozenset[int]) -> frozenset[int]:
        """As many others as `taken` has; empty if there are not as many."""
        rest = sorted(os.sched_getaffinity(0) - taken, key=lambda cpu: self._load[cpu])
        return frozenset(rest[: len(taken)]) if len(rest) >= len(taken) else frozenset()

    @staticmethod
    def elsewhere() -> frozenset[int]:
        """Every CPU but the one that this thread is on now; empty if there is no other."""
        return frozenset(os.sched_getaffinity(0) - {_current_cpu()})

    def give_back(self, cpus: frozenset[int]) -> None:
        """Undo one `take`."""
        self._load.subtract(cpus)
