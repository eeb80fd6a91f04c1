"""Pool of parked sandboxes: started ahead, locked down, each used once.

The engine claims sandboxes; runtimes start and destroy them. The pool does not recycle: a claimed
sandbox never returns. Each runtime and template has a shelf of its own. The invariant: a claim
never waits behind a refill, and a shelf whose refills fail backs off and leaves the error to the
next claim, which starts a sandbox itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cellwall.engine.attempts.claimed_sandbox import Live
from cellwall.engine.policy.start_times import Starts
from cellwall.model.errors import SandboxBroken
from cellwall.model.ids import new_id
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.runtimes.base import KernelReadings, Runtime, RuntimeSandbox, SandboxSpec

_BACKOFF_FIRST_S = 0.1
_BACKOFF_MOST_S = 30.0
_SHRINK_AFTER_S = 10.0
"""Seconds for which the size of a burst is remembered."""
_REFILL_PAUSE_S = 0.02
"""Seconds between a claim and the refill; shortened when the claimed sandbox is released."""
_ANSWER_PAUSE_S = 0.003
"""Seconds between a release and its cleanup and refill: the answer is sent first, and a stored
answer must be on disk before it is sent."""
_MOST_DESTRUCTIONS = 64
"""Maximum number of pending destructions; above it claims wait, so that cleaning keeps up."""


class StartGate:
    """Bound on parallel starts; claims pass before refills."""

    def __init__(self, size: int) -> None:
        """Allow `size` starts at once."""
        self._free = size
        self._claims: deque[asyncio.Future[None]] = deque()
        self._refills: deque[asyncio.Future[None]] = deque()

    def passing(self, *, is_claim: bool) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold one of the places for the length of a block."""
        return _Passing(self, self._claims if is_claim else self._refills)

    async def enter(self, queue: deque[asyncio.Future[None]]) -> None:
        """Wait for a place in `queue`, one of the gate's two."""
        if self._free > 0:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()  # `leave` gave this task the place in the same moment
            raise

    def leave(self) -> None:
        """Give a place back: to the oldest waiting claim, else to the oldest waiting refill."""
        for queue in (self._claims, self._refills):
            while queue:
                future = queue.popleft()
                if not future.done():
                    future.set_result(None)
                    return
        self._free += 1


class _Passing(contextlib.AbstractAsyncContextManager[None]):
    """Context manager that holds a place of the gate.

    It is not an asynchronous generator: a loop that ends closes its live generators even while code
    runs in them, and refills wait here while the library's keeper closes the engine (`embedded`).
    """

    __slots__ = ("_gate", "_queue")

    def __init__(self, gate: StartGate, queue: deque[asyncio.Future[None]]) -> None:
        self._gate = gate
        self._queue = queue

    async def __aenter__(self) -> None:
        await self._gate.enter(self._queue)

    async def __aexit__(self, *_: object) -> None:
        self._gate.leave()


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Counts for `/stats`, the console and tests."""

    parked: int
    starting: int
    destroying: int
    claims_parked: int
    claims_started: int
    failed: int


@dataclass(slots=True)
class _Parked:
    sandbox: RuntimeSandbox
    spec: SandboxSpec
    fresh: KernelReadings


@dataclass(slots=True)
class _Shelf:
    runtime: Runtime
    spec: SandboxSpec
    """Spec with which parked sandboxes are started."""
    parked: deque[_Parked] = field(default_factory=deque)
    starting: int = 0
    in_use: int = 0
    peak: int = 0
    peak_at: float = 0.0
    claimed_at: float = 0.0
    backoff_s: float = 0.0
    retry: asyncio.TimerHandle | None = None
    soon: asyncio.TimerHandle | None = None
    forking: int = 0
    """Number of refills that passed the gate and are starting a sandbox."""
    waiting: deque[asyncio.Future[_Parked | None]] = field(default_factory=deque)
    """Claims that take over the sandboxes being forked."""


class Pool:
    """All parked sandboxes of one engine."""

    def __init__(self, settings: EngineSettings) -> None:
        """Start empty: nothing is parked before the first claim."""
        self._settings = settings
        self._shelves: dict[tuple[str, ...], _Shelf] = {}
        self._gate = StartGate((os.cpu_count() or 1) + 2)
        self._refills = Tasks()
        self._destructions = Tasks()
        self._is_open = True
        self._claims_parked = 0
        self._claims_started = 0
        self.starts = Starts()
        """Durations of the sandbox starts."""
        self._failed = 0
        self._tidy: asyncio.TimerHandle | None = None

    # -- claiming --------------------------------------------------------------------------

    async def claim(self, runtime: Runtime, spec: SandboxSpec) -> Live:
        """Return a sandbox of `spec`, parked or started now; the caller must `release` it."""
        await self._destructions.wait_below(_MOST_DESTRUCTIONS)
        shelf = self._shelf(runtime, spec)
        self._count_claim(shelf)
        try:
            found = self._take(shelf, spec) or await self._wait_forked(shelf, spec)
            while found is not None:
                live = await self._adapt(found, spec)
                if live is not None and live.is_alive:
                    self._claims_parked += 1
                    return live
                self.bury(found.sandbox)
                found = self._take(shelf, spec)
            self._claims_started += 1
            async with self._gate.passing(is_claim=True):
                with self.starts.timing(runtime.name):
                    sandbox = await runtime.start(spec)
            return Live(sandbox, spec, sandbox.fresh)
        except BaseException:
            shelf.in_use -= 1
            raise
        finally:
            self._refill_later(shelf, _REFILL_PAUSE_S)

    async def _wait_forked(self, shelf: _Shelf, spec: SandboxSpec) -> _Parked | None:
        """Take over a sandbox that a refill is starting now, if one is not taken yet."""
        if shelf.forking <= len(shelf.waiting):
            return None
        future: asyncio.Future[_Parked | None] = asyncio.get_running_loop().create_future()
        shelf.waiting.append(future)
        try:
            found = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and (given := future.result()) is not None:
                shelf.parked.append(given)
            raise
        if found is not None and not found.sandbox.fits(spec):
            shelf.parked.append(found)
            return None
        return found

    async def _adapt(self, found: _Parked, spec: SandboxSpec) -> Live | None:
        """Apply the claim's spec to a parked sandbox; None if the sandbox had ended unnoticed."""
        if found.spec.limits != spec.limits:
            try:
                await found.sandbox.apply_limits(spec.limits)
            except SandboxBroken:
                return None
            except BaseException:
                self.bury(found.sandbox)
                raise
        return Live(found.sandbox, replace(spec, sandbox_id=found.spec.sandbox_id), found.fresh)

    def _take(self, shelf: _Shelf, spec: SandboxSpec) -> _Parked | None:
        for _ in range(len(shelf.parked)):
            candidate = shelf.parked.popleft()
            if not candidate.sandbox.channel.is_open:
                self.bury(candidate.sandbox)
            elif candidate.sandbox.fits(spec):
                return candidate
            else:
                shelf.parked.append(candidate)
        return None

    def release(self, live: Live, runtime: Runtime) -> None:
        """Destroy a claimed sandbox, in the background."""
        shelf = self._shelf(runtime, live.spec)
        shelf.in_use -= 1
        self.bury(live.runtime_sandbox)
        self._refill_later(shelf, _ANSWER_PAUSE_S)

    def bury(self, sandbox: RuntimeSandbox) -> None:
        """Kill a sandbox now and clean up in the background."""
        sandbox.kill()
        self._destructions.spawn(_remove(sandbox))

    async def wait_buried(self) -> None:
        """Return when every destruction under way has ended."""
        await self._destructions.wait_empty()

    # -- parking ---------------------------------------------------------------------------

    def _shelf(self, runtime: Runtime, spec: SandboxSpec) -> _Shelf:
        kind = "alone" if spec.is_alone else spec.purpose
        key = (runtime.name, spec.template.digest, spec.template.path, kind, spec.language)
        shelf = self._shelves.get(key)
        if shelf is None:
            plain = replace(
                spec, limits=self._settings.limits, env={}, demand_hard=False, start="fork"
            )
            shelf = self._shelves[key] = _Shelf(runtime, plain)
        return shelf

    def _count_claim(self, shelf: _Shelf) -> None:
        now = time.monotonic()
        shelf.claimed_at = now
        shelf.in_use += 1
        if shelf.in_use >= shelf.peak or now - shelf.peak_at > _SHRINK_AFTER_S:
            shelf.peak, shelf.peak_at = shelf.in_use, now

    def _target(self, shelf: _Shelf) -> int:
        now = time.monotonic()
        if not self._is_open or now - shelf.claimed_at > self._settings.pool_idle_s:
            return 0
        if now - shelf.peak_at > _SHRINK_AFTER_S:
            shelf.peak = shelf.in_use
        return min(self._settings.pool_max, max(self._settings.pool_min, shelf.peak))

    def _refill_later(self, shelf: _Shelf, pause_s: float) -> None:
        """Refill after a pause: a start competes for the processor with the code just claimed."""
        loop = asyncio.get_running_loop()
        if shelf.soon is not None:
            if shelf.soon.when() <= loop.time() + pause_s:
                return
            shelf.soon.cancel()
        shelf.soon = loop.call_later(pause_s, self._refill, shelf)

    def _refill(self, shelf: _Shelf) -> None:
        if shelf.soon is not None:
            shelf.soon.cancel()
            shelf.soon = None
        if shelf.retry is not None:
            return
        while len(shelf.parked) + shelf.starting < self._target(shelf):
            shelf.starting += 1
            self._refills.spawn(self._park_one(shelf))
        if self._tidy is None and self._is_open:
            loop = asyncio.get_running_loop()
            self._tidy = loop.call_later(_SHRINK_AFTER_S, self._on_tidy)

    async def _park_one(self, shelf: _Shelf) -> None:
        try:
            await self._park(shelf)
        finally:
            shelf.starting -= 1
            # Claims without a remaining fork start a sandbox themselves.
            while len(shelf.waiting) > shelf.forking:
                future = shelf.waiting.pop()
                if not future.done():
                    future.set_result(None)

    async def _park(self, shelf: _Shelf) -> None:
        spec = replace(shelf.spec, sandbox_id=new_id(), is_awaited=False)
        try:
            async with self._gate.passing(is_claim=False):
                if len(shelf.parked) >= self._target(shelf):
                    return
                shelf.forking += 1
                try:
                    with self.starts.timing(shelf.runtime.name):
                        sandbox = await shelf.runtime.start(spec)
                finally:
                    shelf.forking -= 1
        except Exception:  # noqa: BLE001 - whatever it is, the next claim meets and raises it
            self._failed += 1
            self._back_off(shelf)
            return
        shelf.backoff_s = 0.0
        if not self._is_open:
            self.bury(sandbox)
            return
        parked = _Parked(sandbox, spec, sandbox.fresh)
        sandbox.channel.on_end(lambda: self._on_parked_ended(shelf, parked))
        while shelf.waiting:
            future = shelf.waiting.popleft()
            if not future.done():
                future.set_result(parked)
                return
        shelf.parked.append(parked)

    def _on_parked_ended(self, shelf: _Shelf, parked: _Parked) -> None:
        if parked in shelf.parked:
            shelf.parked.remove(parked)
            self.bury(parked.sandbox)
            # A sandbox that dies while parked is a failure, too: do not replace it in a busy loop.
            self._back_off(shelf)

    def _back_off(self, shelf: _Shelf) -> None:
        if shelf.retry is not None or not self._is_open:
            return
        shelf.backoff_s = min(_BACKOFF_MOST_S, max(_BACKOFF_FIRST_S, shelf.backoff_s * 2))
        loop = asyncio.get_running_loop()
        shelf.retry = loop.call_later(shelf.backoff_s, self._on_retry, shelf)

    def _on_retry(self, shelf: _Shelf) -> None:
        shelf.retry = None
        self._refill(shelf)

    def _on_tidy(self) -> None:
        self._tidy = None
        for key, shelf in list(self._shelves.items()):
            while len(shelf.parked) > self._target(shelf):
                self.bury(shelf.parked.popleft().sandbox)
            if not (shelf.parked or shelf.starting or shelf.in_use or self._target(shelf)):
                del self._shelves[key]
        if self._shelves and self._is_open:
            loop = asyncio.get_running_loop()
            self._tidy = loop.call_later(_SHRINK_AFTER_S, self._on_tidy)

    async def wait_full(self) -> None:
        """Return when every shelf holds its target, or backs off; for measurements and tests."""
        for shelf in self._shelves.values():
            self._refill(shelf)
        await self._refills.wait_empty()

    # -- end -------------------------------------------------------------------------------

    def statistics(self) -> PoolStatistics:
        """Return the pool's counts."""
        return PoolStatistics(
            parked=sum(len(shelf.parked) for shelf in self._shelves.values()),
            starting=sum(shelf.starting for shelf in self._shelves.values()),
            destroying=len(self._destructions),
            claims_parked=self._claims_parked,
            claims_started=self._claims_started,
            failed=self._failed,
        )

    async def aclose(self) -> None:
        """Destroy everything parked and wait until all destructions are done."""
        self._is_open = False
        if self._tidy is not None:
            self._tidy.cancel()
        await self._refills.cancel()
        for shelf in self._shelves.values():
            for timer in (shelf.retry, shelf.soon):
                if timer is not None:
                    timer.cancel()
            while shelf.parked:
                self.bury(shelf.parked.popleft().sandbox)
        await self._destructions.wait_empty()


async def _remove(sandbox: RuntimeSandbox) -> None:
    try:
        await asyncio.sleep(_ANSWER_PAUSE_S)
    finally:
        await sandbox.aclose()
