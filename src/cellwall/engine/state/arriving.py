"""What an engine goes on with at its start: sandboxes that live, and those that are hibernated.

Called by `Engine.take_over`, once, before the first request. What a runtime does for the first kind
is in `runtimes.keeping.KeepsSandboxes` (design/0040), the second is `sleepers`'. The invariant: of
one sandbox the processes go on or the image, never both; the processes are the later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.engine.parts.kept import Arrivals, Facts, count_kills, restore_network, settle
from cellwall.engine.policy.pause_choice import check_choice
from cellwall.engine.state.sleepers import Hold, Sleepers, Slept
from cellwall.runtimes.keeping import KeepsSandboxes, NotTakenOver, TakenOver

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.policy.selection import Runtimes
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.scheduling.pool import Pool
    from cellwall.runtimes.base import Runtime
    from cellwall.surface.shared.tasks import Tasks


class Arriving(NamedTuple):
    """The engine as it is needed here."""

    engine: Engine
    runtimes: Runtimes
    pool: Pool
    tasks: Tasks
    hold: Hold
    """Makes a claimed sandbox one of the engine's."""

    async def take_over(self, *, lives: bool, sleeps: bool) -> Arrivals:
        """Take over what an earlier process has left: what `lives`, and what `sleeps`."""
        arrived: list[tuple[AsyncSandbox, TakenOver]] = []
        refused: dict[str, str] = {}
        for name in self.runtimes.allowed() if lives else ():
            runtime = self.runtimes.get(name)
            found = await runtime.take_over() if isinstance(runtime, KeepsSandboxes) else []
            for each in found:
                if isinstance(each, NotTakenOver):
                    refused[each.sandbox_id] = each.reason
                else:
                    arrived.append((await self._arrived(runtime, each), each))
        living = [sandbox for sandbox, _ in arrived]
        slept = Slept()
        if sleeps:
            slept = self._slept({*refused, *(each.id for each in living)}, lives=lives)
        return Arrivals(
            (*living, *slept.sandboxes),
            refused | slept.refused,
            slept.unread,
            partial(self._settle, arrived),
        )

    def _slept(self, living: set[str], *, lives: bool) -> Slept:
        durable = self.engine.copies.durable
        if durable is None:
            return Slept()
        sleepers = Sleepers(self.engine, self.runtimes, self.hold, are_kept_later=lives)
        return sleepers.take_over(durable, living)

    async def _arrived(self, runtime: Runtime, taken: TakenOver) -> AsyncSandbox:
        facts = Facts(**taken.owner)
        spec = replace(taken.spec, sandbox_id=facts.id or taken.spec.sandbox_id)
        live = ClaimedSandbox(taken.sandbox, spec, taken.sandbox.readings())
        live.trust = facts.trust
        self.pool.take_over(runtime, taken.sandbox, taken.spec)
        settings = self.engine.settings
        pauses = check_choice(facts.auto_pause_s, facts.resume, settings, facts.hibernate_s)
        sandbox = self.hold(live, runtime, None, (facts.tenant, pauses))
        sandbox.go_on(facts, taken.found.contexts)
        sandbox.lost_bytes = taken.found.lost_bytes
        sandbox.lost = await restore_network(sandbox, self.engine.outside, facts)
        return sandbox

    async def _settle(self, arrived: Sequence[tuple[AsyncSandbox, TakenOver]]) -> None:
        """End what was not taken on in sandboxes that were taken over; see `Arrivals`."""
        for sandbox, taken in arrived:
            await count_kills(sandbox, taken.found)
            self.tasks.spawn(settle(sandbox, taken.found, was_paused=taken.was_paused))
