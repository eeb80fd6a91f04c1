"""Offers: each runtime's level, whether it may serve, what it lacks, and how fast it starts.

One shape for `cellwall runtimes` and `GET /runtimes`. It does not choose (`selection`). The
invariant: an offer reports what the runtime's own probe found now; a runtime that may not serve is
not probed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cellwall.engine.policy.levels import NO_FLOOR, Floor, IsolationRequest, demand
from cellwall.engine.policy.start_times import Starts
from cellwall.model.errors import CellwallError
from cellwall.runtimes import registry
from cellwall.runtimes.base import Finding

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.policy.start_times import Started


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of one runtime."""

    name: str
    level: str
    may_serve: bool
    """Whether the operator lets the runtime serve the caller."""
    findings: Sequence[Finding]
    """Findings of its probe; empty if it was not probed."""
    remedy: str = ""
    """Step that lets the runtime serve, if it may not."""
    started: Started | None = None
    """Durations of its starts; None: not measured, or not shown to this caller."""

    @property
    def is_available(self) -> bool:
        """Whether a request for this runtime would be served."""
        return self.may_serve and not any(each.grade == "FAIL" for each in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        faults = [each for each in self.findings if each.grade == "FAIL"]
        missing = [f"{each.feature}: {each.detail}" for each in faults]
        remedies = [each.remedy for each in faults if each.remedy]
        return {
            "name": self.name,
            "level": self.level,
            "allowed": self.may_serve,
            "available": self.is_available,
            "missing": missing if self.may_serve else ["not allowed"],
            "remedies": remedies if self.may_serve else [self.remedy],
            "findings": [asdict(each) for each in self.findings],
            "start": None if self.started is None else self.started.as_json(),
        }


async def offers(
    engine: Engine, floor: Floor = NO_FLOOR, *, shows_starts: bool = True
) -> list[Offer]:
    """Return the offers of all registered runtimes, fastest first; `floor` is the caller's.

    `shows_starts`: include the start times the engine has measured, which reveal the use by all
    tenants.
    """
    allowed = demand(IsolationRequest(floor=floor), engine.settings).runtimes
    found = []
    for name in registry.FACTORIES:
        if name not in allowed:
            found.append(await _refused(engine, name, floor))
            continue
        runtime, findings = await engine.probe(name)
        started = engine.pool.starts.of(name) if shows_starts else None
        found.append(Offer(name, runtime.level.label, True, findings, started=started))
    return found


async def _refused(engine: Engine, name: str, floor: Floor) -> Offer:
    settings = engine.settings
    runtime = registry.create(name, engine.state_dir)
    level = runtime.level.label
    await runtime.aclose()
    if name == "process" and not settings.allow_process:
        remedy = "for trusted code the operator may set CELLWALL_ALLOW_PROCESS=1"
    elif name not in settings.runtimes:
        remedy = "the operator may add it to CELLWALL_RUNTIMES"
    else:
        remedy = f"the operator may allow it {floor.whose}"
    return Offer(name, level, False, (), remedy)


async def measured(engine: Engine, offer: Offer, template: str, times: int) -> Offer:
    """Return `offer` with the time of `times` real starts, if the runtime can start.

    One more start goes first: it creates what is made once, such as an image or a fork-server. The
    engine should park nothing.
    """
    if not offer.is_available:
        return offer
    starts = Starts()
    for number in range(times + 1):
        try:
            with (starts if number else Starts()).timing(offer.name):
                sandbox = await engine.create_sandbox(
                    template, runtime=offer.name, isolation=offer.level
                )
        except CellwallError as error:
            fault = Finding("start", "FAIL", error.message, error.remedy or "")
            return replace(offer, findings=(*offer.findings, fault))
        await sandbox.close()
        await engine.pool.wait_buried()
    return replace(offer, started=starts.of(offer.name))
