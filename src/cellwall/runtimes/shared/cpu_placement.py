"""CPU placement: the choice of the machine's CPUs that a sandbox runs on.

It is not a limit (cgroups hold the share of CPU time): a sandbox sees as many CPUs as its quota
has, and sandboxes spread over all of them.
"""

from __future__ import annotations

import os
from collections import Counter


class Cpus:
    """CPUs to which sandboxes are pinned, with their load."""

    def __init__(self) -> None:
        self._load: Counter[int] = Counter()

    def take(self, count: int, near: int = -1) -> frozenset[int]:
        """Return the `count` least used CPUs; empty if that would be all of them.

        The CPU `near` still counts as least used with one sandbox more than the others: a process
        that runs there need not move, and finds its caches.
        """
        allowed = sorted(os.sched_getaffinity(0))
        if count >= len(allowed):
            return frozenset()
        load = self._load
        chosen = sorted(allowed, key=lambda cpu: load[cpu] - 1.5 * (cpu == near))[:count]
        load.update(chosen)
        return frozenset(chosen)

    def give_back(self, cpus: frozenset[int]) -> None:
        """Undo one `take`."""
        self._load.subtract(cpus)
