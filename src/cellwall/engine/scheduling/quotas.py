"""Quotas: how much each tenant may use, and how much it uses now.

It knows neither the machine's own bounds (`admission`) nor the order (`fair_queue`). Pure and on
one event loop. The invariant: a refusal names the quota, its number and the remedy, and uses up
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cellwall.engine.policy.levels import NO_FLOOR, Floor
from cellwall.engine.policy.settings import check_runtimes
from cellwall.engine.scheduling.admission import NOTHING, Cost
from cellwall.model.errors import QuotaExceeded, UsageError
from cellwall.model.outcome import IsolationLevel

DEFAULT_TIER = "default"
_WORDS = frozenset({"least_isolation", "runtimes", "images"})
"""Names of the quotas that are not numbers."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas of the tenants of one tier. None: only the server's own bounds apply."""

    running: int | None = None
    """Number of one-shots that hold a sandbox at once; further ones wait."""
    queued: int | None = 10_000
    """Number of one-shots that wait."""
    creates_per_min: int | None = None
    """Sandboxes created in a minute; the same number may also be created at once."""
    sandboxes: int | None = 1500
    """Number of live sandboxes; below the server's own bound, so that one tenant cannot take
    all."""
    memory_mb: int | None = None
    """MiB: sum of the memory limits of sandboxes and running one-shots."""
    cpus: float | None = None
    """Sum of the CPU limits of sandboxes and running one-shots."""
    file_mb: int | None = None
    """MiB: sum of the work areas (`disk_mb`) of sandboxes and running one-shots."""
    output_mb: int | None = None
    """MiB of output kept for a tenant's executions in ten minutes."""
    stored_mb: int | None = 1024
    """MiB of the store's disk: bodies of waiting one-shots, and the answers, events and collected
    files kept of ended executions, beyond 4 KiB each."""
    history_mb: int | None = 4096
    """MiB of the server's disk that checkpoints of the tenant's sandboxes take together."""
    snapshots_mb: int | None = 2048
    """MiB of the server's disk that the tenant's sessions take which are written down: snapshots,
    and forks that are being made or have living copies. By default half of what the engine's
    `snapshots_mb` gives all of them."""
    connections: int | None = None
    """Number of concurrent requests, streams, terminals and connections to ports; an eighth of
    `most_connections` where it is left out."""
    least_isolation: str | None = None
    """Lowest isolation level for the tenant: a request that names a lower one is refused, a request
    that names none gets this one."""
    runtimes: tuple[str, ...] | None = None
    """Names of the server's runtimes that may serve the tenant."""
    images: tuple[str, ...] | None = None
    """Images that the tenant may name, as in the server's `images`, of which it gets no more."""
    templates: int | None = 100
    """Number of names of templates that the tenant has built."""
    templates_mb: int | None = None
    """MiB of those templates; without it the server's `templates_mb`, of which it gets no more."""
    builds: int | None = 1
    """Number of templates that are built at once."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a number not above zero, or an unknown level or runtime."""
        if self.least_isolation is not None:
            IsolationLevel.called(self.least_isolation)
        if self.runtimes is not None:
            check_runtimes(self.runtimes, "quotas")
        if self.images:
            from cellwall.images.patterns import check_patterns  # most tiers list none

            check_patterns(self.images, "quotas")
        for each in fields(self):
            if each.name in _WORDS:
                continue
            value = getattr(self, each.name)
            kinds = (int, float) if each.name == "cpus" else (int,)
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            if value is not None and not (is_number and value > 0):
                raise UsageError(
                    f"quotas: {each.name} = {value!r} is not a number above 0",
                    remedy="give one, or leave it out for no bound of its own",
                )


_OUTPUT_WINDOW_S = 600.0


class _Bucket:
    """Token bucket, refilled evenly; may go below zero where use is known only afterwards."""

    __slots__ = ("_at", "_left", "_most", "_per_s")

    def __init__(self, most: float, per_s: float, now: float) -> None:
        self._most = self._left = most
        self._per_s = per_s
        self._at = now

    def left(self, now: float) -> float:
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left

    def spend(self, amount: float, now: float) -> None:
        self._left = self.left(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` is available; 0 if it is now."""
        return max(0.0, (amount - self.left(now)) / self._per_s)


@dataclass(slots=True)
class Use:
    """Current use of one tenant."""

    tenant: str
    quotas: Quotas
    running: int = 0
    queued: int = 0
    sandboxes: int = 0
    connections: int = 0
    waiting_bytes: int = 0
    """Bytes of the store: bodies of waiting one-shots."""
    kept_bytes: int = 0
    """Bytes of the store: what is kept of ended executions."""
    held: Cost = NOTHING
    """Sum of the limits of running one-shots and live sandboxes."""
    granted: Cost | None = None
    """What this machine may hold of the quotas, where several machines share them; None: all."""
    on_lack: Callable[[str], None] = field(default=lambda _tenant: None, repr=False)
    """Called with the tenant when there is no room for a cost that could be granted."""
    creates: _Bucket | None = field(default=None, repr=False)
    output: _Bucket | None = field(default=None, repr=False)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the store's disk that the tenant uses."""
        return self.waiting_bytes + self.kept_bytes

    @property
    def stored_mb(self) -> float:
        """MiB of the store's disk that the tenant uses, rounded for display."""
        return round(self.stored_bytes / (1 << 20), 2)

    @property
    def elsewhere(self) -> Cost:
        """What other machines may hold of the quotas; of a quota that is None it says nothing."""
        if self.granted is None:
            return NOTHING
        quotas = self.quotas
        whole = Cost(quotas.memory_mb or 0, 0, quotas.file_mb or 0, quotas.cpus or 0.0)
        return whole - self.granted

    def lacks(self, cost: Cost) -> str | None:
        """Return the name of the quota that has no room for `cost`, or None."""
        quotas = self.quotas
        together = self.held + self.elsewhere + cost
        for name, most, value in (
            ("memory_mb", quotas.memory_mb, together.memory_mb),
            ("cpus", quotas.cpus, round(together.cpus, 6)),
            ("file_mb", quotas.file_mb, together.disk_mb),
        ):
            if most is not None and value > most:
                if self.granted is not None:
                    self.on_lack(self.tenant)
                return name
        return None

    def may_run(self, cost: Cost) -> bool:
        """Report whether a one-shot of `cost` may hold a sandbox now and store its result.

        Bodies of waiting one-shots do not count for that: running one only reduces them.
        """
        running, stored = self.quotas.running, self.quotas.stored_mb
        if stored is not None and self.kept_bytes > stored << 20:
            return False
        return (running is None or self.running < running) and self.lacks(cost) is None

    def check_ever(self, cost: Cost) -> None:
        """Raise `UsageError` if the quotas could not hold `cost` even with nothing else held."""
        name = Use(self.tenant, self.quotas).lacks(cost)
        if name is not None:
            most = getattr(self.quotas, name)
            asked = _amount(name, cost)
            limit = "disk_mb" if name == "file_mb" else name
            raise UsageError(
                f"quota {name}: {asked:g} can never fit, it is {most:g} for this tenant",
                remedy=f"ask for less limits.{limit}, or ask the operator for a larger tier",
            )

    def within(self, cost: Cost) -> Cost:
        """Return `cost`, reduced to what the quotas could ever hold."""
        quotas = self.quotas
        return Cost(
            cost.memory_mb if quotas.memory_mb is None else min(cost.memory_mb, quotas.memory_mb),
            cost.processes,
            cost.disk_mb if quotas.file_mb is None else min(cost.disk_mb, quotas.file_mb),
            cost.cpus if quotas.cpus is None else min(cost.cpus, quotas.cpus),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the current use, by the names of the quotas."""
        return {
            "running": self.running,
            "queued": self.queued,
            "sandboxes": self.sandboxes,
            "memory_mb": self.held.memory_mb,
            "cpus": self.held.cpus,
            "file_mb": self.held.disk_mb,
            "stored_mb": self.stored_mb,
            "connections": self.connections,
        }


class Tenants:
    """The tiers, each tenant's tier, and each tenant's current use."""

    def __init__(
        self,
        tiers: Mapping[str, Quotas] | None = None,
        tenants: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tenants` maps tenants to tiers; others have the tier `default`. `clock` has seconds."""
        self._tiers = {DEFAULT_TIER: Quotas(), **(tiers or {})}
        self._tenants = dict(tenants or {})
        self._clock = clock
        self._uses: dict[str, Use] = {}
        self._on_lack: Callable[[str], None] | None = None
        """What hears of a lack, once costs are granted."""
        self.history_mb: Callable[[str], int] = lambda _tenant: 0
        """Returns the MiB of a tenant's checkpoints, which the engine's `HistoryRoom` counts."""
        self.snapshots_mb: Callable[[str], int] = lambda _tenant: 0
        """Returns the MiB of a tenant's written sessions, which its `DiskBudget` counts."""

    def most_history_mb(self, tenant: str) -> int | None:
        """Return how many MiB the checkpoints of a tenant may take; None: no bound of its own."""
        return self._tiers[self.tier(tenant)].history_mb

    def most_snapshots_mb(self, tenant: str) -> int | None:
        """Return how many MiB the written sessions of a tenant may take; None as above."""
        return self._tiers[self.tier(tenant)].snapshots_mb

    def tier(self, tenant: str) -> str:
        """Return the name of a tenant's tier."""
        return self._tenants.get(tenant, DEFAULT_TIER)

    def have(self, tenant: str, tier: str) -> None:
        """Give a tenant the tier that a gateway names; empty: `default`.

        Raises UsageError for a tier that is not known here: its bounds would not be held.
        """
        if tier and tier not in self._tiers:
            raise UsageError(
                f"tier {tier[:64]!r}: this node does not know it",
                remedy="give [tiers.NAME] to every node as the gateways have it",
            )
        if self._tenants.get(tenant, DEFAULT_TIER) != (tier or DEFAULT_TIER):
            self._tenants[tenant] = tier or DEFAULT_TIER
            found = self._uses.get(tenant)
            if found is not None:
                found.quotas = self._tiers[tier or DEFAULT_TIER]

    def floor(self, tenant: str) -> Floor:
        """Return the isolation that a tenant's requests must have at least."""
        quotas = self._tiers[self.tier(tenant)]
        least, names = quotas.least_isolation, quotas.runtimes
        if least is None and names is None:
            return NO_FLOOR
        return Floor(least or NO_FLOOR.least_isolation, names, f"for tier {self.tier(tenant)!r}")

    def images(self, tenant: str) -> tuple[str, ...] | None:
        """Return the images that a tenant may name of the server's; None: all of those."""
        return self._tiers[self.tier(tenant)].images

    def use(self, tenant: str) -> Use:
        """Return the use of a tenant; the same object every time."""
        found = self._uses.get(tenant)
        if found is None:
            quotas = self._tiers[self.tier(tenant)]
            found = self._uses[tenant] = Use(tenant, quotas)
            if self._on_lack is not None:
                found.granted, found.on_lack = NOTHING, self._on_lack
            now = self._clock()
            if quotas.creates_per_min is not None:
                most = quotas.creates_per_min
                found.creates = _Bucket(most, most / 60, now)
            if quotas.output_mb is not None:
                size = float(quotas.output_mb << 20)
                found.output = _Bucket(size, size / _OUTPUT_WINDOW_S, now)
        return found

    def check_output(self, tenant: str) -> None:
        """Raise `QuotaExceeded` if the tenant's recent output is above its quota."""
        bucket = self.use(tenant).output
        wait_s = 0.0 if bucket is None else bucket.wait_s(1, self._clock())
        if wait_s > 0:
            raise QuotaExceeded(
                "output_mb",
                f"quota output_mb: more than {self.use(tenant).quotas.output_mb} MiB of output "
                "came of late",
                retry_after_s=wait_s,
                remedy="wait, print less, or ask the operator for a larger tier",
            )

    def spend_output(self, tenant: str, size: int) -> None:
        """Count `size` bytes of output that an execution left."""
        bucket = self.use(tenant).output
        if bucket is not None:
            bucket.spend(size, self._clock())

    def check_create(self, tenant: str, cost: Cost, *, is_new: bool = True) -> None:
        """Raise unless the tenant may have one more sandbox of `cost` now.

        One that is not new was counted when it was made, and comes back.
        """
        use = self.use(tenant)
        use.check_ever(cost)
        most = use.quotas.sandboxes
        if most is not None and use.sandboxes >= most:
            raise exceeded("sandboxes", use.sandboxes, most, "delete one")
        name = use.lacks(cost)
        if name is not None:
            have = _amount(name, use.held + use.elsewhere)
            raise exceeded(name, have, getattr(use.quotas, name), "delete a sandbox")
        wait_s = 0.0 if use.creates is None or not is_new else use.creates.wait_s(1, self._clock())
        if wait_s > 0:
            per_min = use.quotas.creates_per_min
            raise QuotaExceeded(
                "creates_per_min",
                f"quota creates_per_min: {per_min} sandboxes a minute, and they were made",
                retry_after_s=wait_s,
                remedy="wait, keep sandboxes longer, or ask the operator for a larger tier",
            )

    def spend_create(self, tenant: str) -> None:
        """Count a sandbox that is about to be created."""
        creates = self.use(tenant).creates
        if creates is not None:
            creates.spend(1, self._clock())

    def check_connection(self, tenant: str) -> Use:
        """Return the tenant's use; `QuotaExceeded` unless it may start one more call."""
        use = self.use(tenant)
        most = use.quotas.connections
        if most is not None and use.connections >= most:
            raise exceeded(
                "connections", use.connections, most, "end a stream or let a call end", wait_s=1
            )
        return use

    def grant(self, on_lack: Callable[[str], None]) -> None:
        """Have every tenant's costs granted from now on, of which it holds nothing yet.

        `on_lack` is called with the tenant that lacks room.
        """
        self._on_lack = on_lack
        for use in self._uses.values():
            if use.granted is None:
                use.granted, use.on_lack = NOTHING, on_lack

    def quotas_json(self, tenant: str) -> dict[str, Any]:
        """Return the tenant's tier, its quotas and its use."""
        use = self.use(tenant)
        return {
            "tenant": tenant,
            "tier": self.tier(tenant),
            "quotas": asdict(use.quotas),
            "use": {
                **use.as_json(),
                "history_mb": self.history_mb(tenant),
                "snapshots_mb": self.snapshots_mb(tenant),
            },
        }

    def all_json(self) -> list[dict[str, Any]]:
        """Return the same for every tenant seen since the start, for the operator."""
        return [self.quotas_json(tenant) for tenant in sorted(self._uses)]


def _amount(name: str, cost: Cost) -> float:
    """Return what a cost has of the quota of that name."""
    return float(cost.disk_mb if name == "file_mb" else getattr(cost, name))


def exceeded(name: str, have: float, most: float, remedy: str, wait_s: float = 5) -> QuotaExceeded:
    """Return the refusal of a quota that is used up until something ends."""
    return QuotaExceeded(
        name,
        f"quota {name}: {have:g} of {most:g} are in use",
        retry_after_s=wait_s,
        remedy=f"{remedy}, or ask the operator for a larger tier",
    )
