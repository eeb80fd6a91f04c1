"""What a request says of isolation, and what an operator demands, become one demand.

Pure. Not the choice among runtimes (`selection`). The invariant: what was named, as a level, a
runtime or a trust, is met or refused with a remedy; it is never raised or lowered in silence. Only
a request that names nothing takes the operator's default, and the floor where that is higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.model.outcome import IsolationLevel
from cellwall.runtimes import registry

if TYPE_CHECKING:
    from cellwall.engine.policy.settings import EngineSettings

TRUST_WORDS = ("untrusted", "semi", "trusted")
NETWORKS = ("none",)
"""Network policies that sandboxes can have."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What one word of trust stands for."""

    isolation: str = "namespace"
    """Level its requests get at least: `process`, `namespace`, `kernel` or `vm`."""
    network: str = "none"
    """Network policy of its sandboxes. Only `none` exists."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a level nobody knows or a network that cannot be had."""
        IsolationLevel.called(self.isolation)
        if self.network not in NETWORKS:
            raise UsageError(
                f"trust: network {self.network!r} cannot be had: sandboxes have no network",
                remedy="say network = 'none', or leave it out",
            )


def trust_table() -> dict[str, Trust]:
    """Return what the words mean where the operator says nothing."""
    return {"untrusted": Trust(), "semi": Trust(), "trusted": Trust("process")}


@dataclass(frozen=True, slots=True)
class Floor:
    """What an operator demands of one tenant's requests, beyond what holds for everybody."""

    least_isolation: str = "process"
    runtimes: tuple[str, ...] | None = None
    """Those that may serve it; None: all that may serve here."""
    whose: str = "here"
    """In messages: `for tier 'small'`."""


NO_FLOOR = Floor()


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request says of isolation."""

    isolation: str | None = None
    runtime: str | None = None
    trust: str | None = None
    floor: Floor = NO_FLOOR
    """The operator's word, set by doors; never a caller's."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What has to be met."""

    level: IsolationLevel
    least: IsolationLevel
    """The operator's floor; `level` is not below it."""
    runtime: str | None
    """The only one that may serve it, if it was named."""
    runtimes: tuple[str, ...]
    """Those that may serve it."""
    whose: str
    """Whom the floor is for, in messages."""


def demand(asked: Asked, settings: EngineSettings) -> Demand:
    """Return what `asked` demands; `UsageError` on what contradicts itself or the operator."""
    floor = asked.floor
    ours, theirs = settings.least_isolation, floor.least_isolation
    least = max(IsolationLevel.called(ours), IsolationLevel.called(theirs))
    # Messages blame the tier only where it demands more than holds for everybody.
    whose = "here" if least.label == ours else floor.whose
    named = _named(asked, settings)
    if named is None:
        level = max(IsolationLevel.called(settings.default_isolation), least)
    else:
        level = IsolationLevel.called(named)
    if level < least:
        word = f"trust {asked.trust!r} means " if asked.trust is not None else ""
        raise UsageError(
            f"{word}isolation {level.label!r} is below {least.label!r}, the least {whose}",
            remedy=f"say isolation={least.label!r}, or name no level",
        )
    allowed = _allowed(settings, floor)
    _check_runtime(asked.runtime, allowed, floor, settings)
    return Demand(level, least, asked.runtime, allowed, whose)


def _named(asked: Asked, settings: EngineSettings) -> str | None:
    """Return the level that was named, in its own word or in one of trust."""
    if asked.trust is None:
        return asked.isolation
    if asked.isolation is not None or asked.runtime is not None:
        other = "isolation" if asked.isolation is not None else "runtime"
        raise UsageError(
            f"trust: it stands for a level, and {other} is given as well",
            remedy=f"give trust or {other}, not both",
        )
    if asked.trust not in settings.trust:
        raise UsageError(
            f"trust: {asked.trust!r} is not known", remedy=f"one of: {', '.join(TRUST_WORDS)}"
        )
    return settings.trust[asked.trust].isolation


def _allowed(settings: EngineSettings, floor: Floor) -> tuple[str, ...]:
    """Return the runtimes that may serve, fastest first."""
    return tuple(
        name
        for name in registry.FACTORIES
        if name in settings.runtimes
        and (name != "process" or settings.allow_process)
        and (floor.runtimes is None or name in floor.runtimes)
    )


def _check_runtime(
    name: str | None, allowed: tuple[str, ...], floor: Floor, settings: EngineSettings
) -> None:
    """Raise `UsageError` if the tier does not have it; for everybody's rules see `selection`."""
    may_here = name in settings.runtimes and (name != "process" or settings.allow_process)
    if name is not None and may_here and name not in allowed:
        raise UsageError(
            f"runtime {name!r} is not allowed {floor.whose}",
            remedy=f"allowed runtimes: {', '.join(allowed) or 'none'}",
        )
