"""Isolation demands: combine what a request asks for with what the operator demands.

Pure. It does not choose among runtimes (`selection`). The invariant: a level, a runtime or a trust
word that a request names is met or refused with a remedy; it is never raised or lowered in silence.
Only a request that names nothing gets the operator's default, or the floor where that is higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.model.network import MODES
from cellwall.model.outcome import IsolationLevel
from cellwall.runtimes import registry

if TYPE_CHECKING:
    from cellwall.engine.policy.settings import EngineSettings

TRUST_WORDS = ("untrusted", "semi", "trusted")


@dataclass(frozen=True, slots=True)
class Trust:
    """Isolation and network that one trust word stands for."""

    isolation: str = "namespace"
    """Minimum level of its requests: `process`, `namespace`, `kernel` or `vm`."""
    network: str = "none"
    """Widest network policy of its sandboxes: `none`, `allow` or `open`."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on an unknown level or network policy."""
        IsolationLevel.called(self.isolation)
        if self.network not in MODES:
            raise UsageError(
                f"trust: network {self.network!r} is not known",
                remedy=f"policies: {', '.join(MODES)}",
            )


def trust_table() -> dict[str, Trust]:
    """Return the meaning of the trust words where the operator sets none."""
    return {
        "untrusted": Trust(),
        "semi": Trust(network="allow"),
        "trusted": Trust("process", "allow"),
    }


@dataclass(frozen=True, slots=True)
class Floor:
    """Operator's demand on one tenant's requests, beyond the demand on all requests."""

    least_isolation: str = "process"
    runtimes: tuple[str, ...] | None = None
    """Names of the runtimes that may serve the tenant; None: all that may serve here."""
    whose: str = "here"
    """Words for messages, such as `for tier 'small'`."""


NO_FLOOR = Floor()


@dataclass(frozen=True, slots=True)
class IsolationRequest:
    """Isolation that one request asks for."""

    isolation: str | None = None
    runtime: str | None = None
    trust: str | None = None
    floor: Floor = NO_FLOOR
    """Operator's demand, set by the server's interfaces; never by a caller."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Isolation that has to be met."""

    level: IsolationLevel
    least: IsolationLevel
    """Operator's floor; `level` is not below it."""
    runtime: str | None
    """Name of the only runtime that may serve the request, if it named one."""
    runtimes: tuple[str, ...]
    """Names of the runtimes that may serve the request."""
    whose: str
    """Words for messages that say to which requests the floor applies."""


def demand(request: IsolationRequest, settings: EngineSettings) -> Demand:
    """Return what `request` demands; `UsageError` if it contradicts itself or the operator."""
    floor = request.floor
    ours, theirs = settings.least_isolation, floor.least_isolation
    least = max(IsolationLevel.called(ours), IsolationLevel.called(theirs))
    # Messages name the tier only where it demands more than is demanded of all requests.
    whose = "here" if least.label == ours else floor.whose
    named = _named(request, settings)
    if named is None:
        level = max(IsolationLevel.called(settings.default_isolation), least)
    else:
        level = IsolationLevel.called(named)
    if level < least:
        word = f"trust {request.trust!r} means " if request.trust is not None else ""
        raise UsageError(
            f"{word}isolation {level.label!r} is below {least.label!r}, the least {whose}",
            remedy=f"say isolation={least.label!r}, or name no level",
        )
    allowed = _allowed(settings, floor)
    _check_runtime(request.runtime, allowed, floor, settings)
    return Demand(level, least, request.runtime, allowed, whose)


def _named(request: IsolationRequest, settings: EngineSettings) -> str | None:
    """Return the level that the request named directly or by a trust word."""
    if request.trust is None:
        return request.isolation
    if request.isolation is not None or request.runtime is not None:
        other = "isolation" if request.isolation is not None else "runtime"
        raise UsageError(
            f"trust: it stands for a level, and {other} is given as well",
            remedy=f"give trust or {other}, not both",
        )
    if request.trust not in settings.trust:
        raise UsageError(
            f"trust: {request.trust!r} is not known", remedy=f"one of: {', '.join(TRUST_WORDS)}"
        )
    return settings.trust[request.trust].isolation


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
    """Raise `UsageError` if the tier lacks the runtime; for the rules of all see `selection`."""
    may_here = name in settings.runtimes and (name != "process" or settings.allow_process)
    if name is not None and may_here and name not in allowed:
        raise UsageError(
            f"runtime {name!r} is not allowed {floor.whose}",
            remedy=f"allowed runtimes: {', '.join(allowed) or 'none'}",
        )
