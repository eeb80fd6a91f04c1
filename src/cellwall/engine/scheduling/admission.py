"""Admission: the sum of what was promised to sandboxes, and whether the machine can keep it.

Called by the queue only. It does not measure current use (`host_headroom` asks the kernel) and does
not order requests (`fair_queue`). The invariant: the sum of promises never exceeds the capacity,
and every promise taken is given back exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.model.limits import Limits


@dataclass(frozen=True, slots=True)
class Cost:
    """Upper bounds of what a sandbox may use, known before it is accepted."""

    memory_mb: int = 0
    """MiB, including work areas in memory."""
    processes: int = 0
    disk_mb: int = 0
    """MiB of the work area."""
    cpus: float = 0.0
    """Number of CPUs. The machine does not bound their sum (everything only gets slower); quotas
    do."""

    @classmethod
    def of(cls, limits: Limits) -> Cost:
        """Return the cost that `limits` allow."""
        return cls(limits.memory_mb, limits.processes, limits.disk_mb, limits.cpus)

    def __add__(self, other: Cost) -> Cost:
        """Return the sum of two costs."""
        return Cost(
            self.memory_mb + other.memory_mb,
            self.processes + other.processes,
            self.disk_mb + other.disk_mb,
            self.cpus + other.cpus,
        )

    def times(self, count: int) -> Cost:
        """Return the cost of so many alike."""
        return Cost(
            self.memory_mb * count,
            self.processes * count,
            self.disk_mb * count,
            round(self.cpus * count, 6),
        )

    def or_more(self, other: Cost) -> Cost:
        """Return the smallest cost that covers either of the two, one after the other."""
        return Cost(
            max(self.memory_mb, other.memory_mb),
            max(self.processes, other.processes),
            max(self.disk_mb, other.disk_mb),
            max(self.cpus, other.cpus),
        )

    def __sub__(self, other: Cost) -> Cost:
        """Return the difference of two costs."""
        return Cost(
            self.memory_mb - other.memory_mb,
            self.processes - other.processes,
            self.disk_mb - other.disk_mb,
            round(self.cpus - other.cpus, 6),
        )


NOTHING = Cost()
UNBOUNDED = 1 << 40
"""MiB or number of processes that stand for an unknown capacity. cgroup v1 reports a similar number
for "none"."""
IDLE = Cost(memory_mb=16, processes=4)
"""Cost of a sandbox that runs nothing: measured in design/0005, rounded up."""


@dataclass(frozen=True, slots=True)
class Overcommit:
    """Factors by which the promises to long-lived sandboxes may exceed the machine.

    Long-lived sandboxes mostly wait. One-shots do not and are counted in full. With 1.0 everywhere
    the sum of all limits never exceeds the machine.
    """

    memory: float = 1.0
    processes: float = 1.0
    disk: float = 1.0

    def __post_init__(self) -> None:
        """Raise `UsageError` on a factor below 1: that would be a smaller capacity instead."""
        if min(self.memory, self.processes, self.disk) < 1:
            raise UsageError(
                "settings: an overcommit factor is below 1", remedy="set a lower capacity instead"
            )

    def counted(self, cost: Cost) -> Cost:
        """Return the cost to reserve for a sandbox of `cost`; at least the cost of an idle one."""
        return Cost(
            max(min(cost.memory_mb, IDLE.memory_mb), round(cost.memory_mb / self.memory)),
            max(min(cost.processes, IDLE.processes), round(cost.processes / self.processes)),
            round(cost.disk_mb / self.disk),
            cost.cpus,
        )


_REMEDIES = {
    "memory_mb": "ask for less limits.memory_mb",
    "processes": "ask for fewer limits.processes",
    "disk_mb": "ask for less limits.disk_mb",
}


class Machine:
    """Sum of all promises, against the machine's capacity."""

    def __init__(
        self, capacity: Cost, standing: Callable[[], Cost] = lambda: NOTHING, *, disk: bool = False
    ) -> None:
        """`capacity` is the cost that may be promised.

        `standing` returns the cost used beside promises, that of parked sandboxes. `disk`: work
        areas are on a disk and count; otherwise they are in memory and only memory counts.
        """
        self.capacity = capacity
        self._standing = standing
        self._names = tuple(_REMEDIES) if disk else ("memory_mb", "processes")
        self._promised = NOTHING

    @property
    def promised(self) -> Cost:
        """Cost promised now, without `standing`."""
        return self._promised

    def check_ever(self, cost: Cost) -> None:
        """Raise `UsageError` if `cost` would not fit even if nothing else ran."""
        for name in self._names:
            asked, most = getattr(cost, name), getattr(self.capacity, name)
            if asked > most:
                raise UsageError(
                    f"admission: {name} {asked} can never fit, this server may promise {most}",
                    remedy=_REMEDIES[name],
                )

    def lacks(self, cost: Cost, freed: Cost = NOTHING) -> str | None:
        """Return the name of the resource that `cost` lacks if `freed` were given back, or None."""
        standing = self._standing()
        wanted = self._promised + cost - freed
        for name in self._names:
            # Parked sandboxes give way: they never keep out a cost that would fit without them.
            room = max(getattr(self.capacity, name) - getattr(standing, name), getattr(cost, name))
            if getattr(wanted, name) > room:
                return name
        return None

    def take(self, cost: Cost) -> None:
        """Promise `cost`; the caller has checked `lacks`."""
        self._promised += cost

    def give_back(self, cost: Cost) -> None:
        """Withdraw a promise."""
        self._promised -= cost

    def as_json(self) -> dict[str, int | None]:
        """Return the promised amounts and their maximums; None means unbounded."""
        found: dict[str, int | None] = {}
        for name in _REMEDIES:
            most = getattr(self.capacity, name)
            found[name] = getattr(self._promised, name)
            found[f"{name}_most"] = most if name in self._names and most < UNBOUNDED else None
        return found

    def within(self, cost: Cost) -> Cost:
        """Return `cost`, reduced to what could ever fit; for items a larger machine accepted."""
        most = self.capacity
        return Cost(
            min(cost.memory_mb, most.memory_mb),
            min(cost.processes, most.processes),
            min(cost.disk_mb, most.disk_mb) if "disk_mb" in self._names else cost.disk_mb,
            cost.cpus,
        )
