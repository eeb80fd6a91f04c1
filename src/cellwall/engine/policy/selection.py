"""Runtime selection: the fastest available runtime that meets the demanded isolation level.

It is not a registry (`runtimes.registry`). The invariant, and the reason for this file: the engine
never chooses a runtime weaker than demanded. If none meets the level, the answer is an error that
says what is missing.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.engine.policy import levels
from cellwall.engine.policy.levels import IsolationRequest
from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.runtimes import registry
from cellwall.runtimes.base import AnswersFirst, KeepsReady

if TYPE_CHECKING:
    from cellwall.engine.policy.levels import Demand
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.runtimes.base import AheadOfEngine, Finding, Runtime

_FAULTS_KEPT_S = 10.0
"""Seconds after which a runtime with faults is probed again: daemons come back."""


class Runtimes:
    """The runtimes of one engine, created on first use, probed once."""

    def __init__(
        self,
        state_dir: Path,
        settings: EngineSettings,
        *,
        answers_first: bool = False,
        head_start: AheadOfEngine | None = None,
        keeps_sandboxes: bool = False,
    ) -> None:
        self._keeps_sandboxes = keeps_sandboxes
        self._state_dir = state_dir
        self._settings = settings
        self._answers_first = answers_first
        self._head_start = head_start
        self._made: dict[str, Runtime] = {}
        self._faults: dict[str, tuple[float, list[Finding]]] = {}
        self._taken_out = 0
        self._chosen: dict[IsolationRequest, Runtime] = {}
        self._probing = asyncio.Lock()

    @property
    def made(self) -> dict[str, Runtime]:
        """Every runtime created so far, by name."""
        return self._made

    async def choose(self, request: IsolationRequest) -> Runtime:
        """Return the runtime that `request` names, or the fastest one that meets it."""
        chosen = self._chosen.get(request)
        if chosen is None:
            wanted = self.demand(request)
            async with self._probing:  # one probe per runtime, however many requests wait
                chosen = await self._find(wanted)
            self._chosen[request] = chosen
        return chosen

    def demand(self, request: IsolationRequest) -> Demand:
        """Return what `request` demands; `UsageError` if no host can meet it."""
        wanted = levels.demand(request, self._settings)
        if wanted.runtime is None:
            return wanted
        runtime = self.get(wanted.runtime)
        given = runtime.level.label
        if runtime.level < wanted.least:
            raise UsageError(
                f"runtime {wanted.runtime!r} gives isolation {given!r}, "
                f"{wanted.least.label!r} is the least {wanted.whose}",
                remedy="name one that gives it (`cellwall runtimes`), or none",
            )
        if runtime.level < wanted.level:
            raise UsageError(
                f"runtime {wanted.runtime!r} gives isolation {given!r}, "
                f"{wanted.level.label!r} was asked for, or is the default here",
                remedy=f"say isolation={given!r} if that is meant",
            )
        return wanted

    async def _find(self, wanted: Demand) -> Runtime:
        level = wanted.level
        names = wanted.runtimes if wanted.runtime is None else (wanted.runtime,)
        missing: list[str] = []
        for name in names:  # the adapters behind the first one that will do are not imported
            runtime = self.get(name)
            if runtime.level < level:
                continue
            faults = await self._probe(runtime)
            if not faults:
                return runtime
            missing += [f"{runtime.name}: {f.feature}: {f.detail} ({f.remedy})" for f in faults]
        raise HostUnsupported(
            f"isolation {level.label}",
            f"isolation {level.label!r}: no runtime of this host offers it: "
            + ("; ".join(missing) or "none is installed for this level"),
            remedy="run `cellwall doctor`",
        )

    def allowed(self) -> list[str]:
        """Return the runtimes that may serve requests here, fastest first."""
        return list(levels.demand(IsolationRequest(), self._settings).runtimes)

    def take_out(self, runtime: Runtime) -> None:
        """Choose the runtime for no request until a new probe has found no fault."""
        self._taken_out += 1
        self._faults.pop(runtime.name, None)
        for key in [key for key, chosen in self._chosen.items() if chosen is runtime]:
            del self._chosen[key]

    @property
    def taken_out(self) -> int:
        """Number of times that a runtime broke while it was in use."""
        return self._taken_out

    def get(self, name: str) -> Runtime:
        """Return the runtime called `name`, probed or not; `UsageError` if it is not allowed."""
        if name == "process" and not self._settings.allow_process:
            raise UsageError(
                "runtime 'process' isolates nothing and is switched off",
                remedy="for trusted code the operator may set CELLWALL_ALLOW_PROCESS=1",
            )
        if name in registry.FACTORIES and name not in self._settings.runtimes:
            raise UsageError(
                f"runtime {name!r} is not allowed here",
                remedy=f"allowed runtimes: {', '.join(self.allowed())} (CELLWALL_RUNTIMES)",
            )
        if name not in self._made:
            made = registry.create(name, self._state_dir)
            if isinstance(made, AnswersFirst):
                made.answers_first = self._answers_first
                if self._head_start is not None:
                    made.take_head_start(self._head_start)
            if isinstance(made, KeepsReady):
                made.idle_s = self._settings.pool_idle_s
            if self._settings.snapshots_dir:
                self._lay_out_alike(made)
            if self._keeps_sandboxes:
                self._keep_sandboxes(made)  # or it is not made: what was to be kept would be lost
            self._made[name] = made
        return self._made[name]

    # What most engines do not need is imported by those that do.

    @staticmethod
    def _lay_out_alike(runtime: Runtime) -> None:
        from cellwall.runtimes.copies import LaysOutAlike

        if isinstance(runtime, LaysOutAlike):
            runtime.are_alike = True

    @staticmethod
    def _keep_sandboxes(runtime: Runtime) -> None:
        from cellwall.runtimes.keeping import KeepsSandboxes

        if isinstance(runtime, KeepsSandboxes):
            runtime.keep_sandboxes()

    async def _probe(self, runtime: Runtime) -> list[Finding]:
        asked_at, faults = self._faults.get(runtime.name, (-_FAULTS_KEPT_S, []))
        now = time.monotonic()
        if runtime.name not in self._faults or (faults and now - asked_at > _FAULTS_KEPT_S):
            probe = runtime.probe
            if self._answers_first and isinstance(runtime, AnswersFirst):
                probe = runtime.probe_for_faults
            faults = [f for f in await probe() if f.grade == "FAIL"]
            self._faults[runtime.name] = (now, faults)
        return faults

    async def wait_kept(self) -> None:
        """Wait for what sandboxes that outlive this process are still to keep, but not for long."""
        if not self._keeps_sandboxes:
            return
        from cellwall.runtimes.keeping import KeepsSandboxes

        for runtime in self._made.values():
            if isinstance(runtime, KeepsSandboxes):
                await runtime.wait_kept()

    def abandon(self) -> None:
        """Have every runtime close its descriptors in a forked child, and end nothing."""
        for runtime in self._made.values():
            abandon = getattr(runtime, "abandon", None)
            if abandon is not None:
                abandon()
        if self._head_start is not None:
            self._head_start.abandon()

    async def end_head_start(self) -> None:
        """End what was started ahead, unless a runtime has taken it over."""
        if self._head_start is not None and self._head_start.is_left:
            await asyncio.to_thread(self._head_start.close)

    async def aclose(self) -> None:
        """Close every runtime that was created."""
        self._chosen.clear()
        for runtime in self._made.values():
            await runtime.aclose()
        await self.end_head_start()
