"""What was promised to whom, and whether the machine can keep it.

Not what is in use (`host_headroom` asks the kernel about that) and not who is next (`fair_queue`).
Called by the queue only. The invariant: the sum of what is counted never exceeds the capacity, and
whatever was taken is given back exactly once.
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
    """What a sandbox may use at most, known before it is accepted."""

    memory_mb: int = 0
    """MiB; work areas in memory are part of it."""
    processes: int = 0
    disk_mb: int = 0
    """MiB of the work area."""
    cpus: float = 0.0
    """Not bounded by the machine (it only gets slower), only by quotas."""

    @classmethod
    def of(cls, limits: Limits) -> Cost:
        """Return what `limits` promise."""
        return cls(limits.memory_mb, limits.processes, limits.disk_mb, limits.cpus)

    def __add__(self, other: Cost) -> Cost:
        """Return both together."""
        return Cost(
            self.memory_mb + other.memory_mb,
            self.processes + other.processes,
            self.disk_mb + other.disk_mb,
            self.cpus + other.cpus,
        )

    def or_more(self, other: Cost) -> Cost:
        """Return what is enough for either of the two, one after the other."""
        return Cost(
            max(self.memory_mb, other.memory_mb),
            max(self.processes, other.processes),
            max(self.disk_mb, other.disk_mb),
            max(self.cpus, other.cpus),
        )

    def __sub__(self, other: Cost) -> Cost:
        """Return what is left without `other`."""
        return Cost(
            self.memory_mb - other.memory_mb,
            self.processes - other.processes,
            self.disk_mb - other.disk_mb,
            round(self.cpus - other.cpus, 6),
        )


NOTHING = Cost()
UNBOUNDED = 1 << 40
"""MiB or processes: a capacity that nobody told us. cgroup v1 says about as much for "none"."""
IDLE = Cost(memory_mb=16, processes=4)
"""What one sandbox costs that runs nothing: measured in design/0005, rounded up."""


@dataclass(frozen=True, slots=True)
class Overcommit:
    """How many times more long-lived sandboxes are promised than the machine has.

    They mostly wait. One-shots do not: they are counted in full. 1.0 everywhere: the sum of all
    limits never exceeds the machine.
    """

    memory: float = 1.0
    processes: float = 1.0
    disk: float = 1.0

    def __post_init__(self) -> None:
        """Raise `UsageError` below 1: that would be a smaller machine, which is a capacity."""
        if min(self.memory, self.processes, self.disk) < 1:
            raise UsageError(
                "settings: an overcommit factor is below 1", remedy="set a lower capacity instead"
            )

    def counted(self, cost: Cost) -> Cost:
        """Return what is set aside for a sandbox of `cost`; at least what an idle one uses."""
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
    """The sum of promises."""

    def __init__(
        self, capacity: Cost, standing: Callable[[], Cost] = lambda: NOTHING, *, disk: bool = False
    ) -> None:
        """`capacity` is what may be promised.

        `standing` says what is used beside promises: parked sandboxes. `disk`: work areas lie on
        a disk; else they are in memory and only that counts.
        """
        self.capacity = capacity
        self._standing = standing
        self._names = tuple(_REMEDIES) if disk else ("memory_mb", "processes")
        self._promised = NOTHING

    @property
    def promised(self) -> Cost:
        """What is promised now, without `standing`."""
        return self._promised

    def check_ever(self, cost: Cost) -> None:
        """Raise `UsageError` if `cost` could not be had even if nothing else ran."""
        for name in self._names:
            asked, most = getattr(cost, name), getattr(self.capacity, name)
            if asked > most:
                raise UsageError(
                    f"admission: {name} {asked} can never fit, this server may promise {most}",
                    remedy=_REMEDIES[name],
                )

    def lacks(self, cost: Cost, freed: Cost = NOTHING) -> str | None:
        """Return the name of what is missing for `cost`, were `freed` given back, or None."""
        standing = self._standing()
        wanted = self._promised + cost - freed
        for name in self._names:
            # What stands parked gives way: it never keeps out what would fit without it.
            room = max(getattr(self.capacity, name) - getattr(standing, name), getattr(cost, name))
            if getattr(wanted, name) > room:
                return name
        return None

    def take(self, cost: Cost) -> None:
        """Promise `cost`; the caller has asked `lacks`."""
        self._promised += cost

    def give_back(self, cost: Cost) -> None:
        """Take a promise back."""
        self._promised -= cost

    def as_json(self) -> dict[str, int | None]:
        """Return what is promised and what may be; None: nothing bounds it."""
        found: dict[str, int | None] = {}
        for name in _REMEDIES:
            most = getattr(self.capacity, name)
            found[name] = getattr(self._promised, name)
            found[f"{name}_most"] = most if name in self._names and most < UNBOUNDED else None
        return found

    def within(self, cost: Cost) -> Cost:
        """Return `cost`, cut to what could ever fit; for what was accepted by a larger machine."""
        most = self.capacity
        return Cost(
            min(cost.memory_mb, most.memory_mb),
            min(cost.processes, most.processes),
            min(cost.disk_mb, most.disk_mb) if "disk_mb" in self._names else cost.disk_mb,
            cost.cpus,
        )
