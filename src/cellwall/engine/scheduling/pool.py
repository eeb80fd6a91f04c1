"""Pool of parked sandboxes: started ahead, locked down, each used once.

The engine claims sandboxes; runtimes start and destroy them. The pool does not recycle: a claimed
sandbox never returns. Each runtime and template, or image and user, has a bucket of its own, and so
have limits that claims ask for often. The invariant: a claim never waits behind a refill, and a
bucket whose refills fail backs off and leaves the error to the next claim, which starts a sandbox
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.engine.policy.start_times import Starts
from cellwall.engine.scheduling.recurring import Recurring
from cellwall.model.errors import SandboxBroken
from cellwall.model.ids import new_id
from cellwall.runtimes.base import served_as
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.model.limits import Limits
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
_MOST_OWN_LIMITS = 4
"""Maximum number of buckets for limits other than the usual ones."""
_MOST_DESTRUCTIONS = 64
"""Maximum number of pending destructions; above it claims wait, so that cleaning keeps up."""


class StartGate:
    """Bound on parallel starts; claims pass before refills."""

    def __init__(self, size: int) -> None:
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
class _Bucket:
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
    has_own_limits: bool = False
    """Whether its sandboxes have other limits than the usual ones."""
    is_given_up: bool = False
    """Whether nothing may be parked in it any more: its image is being removed, or other limits are
    asked for."""
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
        self._buckets: dict[tuple[object, ...], _Bucket] = {}
        self._recurring = Recurring(settings.pool_idle_s)
        self._claimed: dict[RuntimeSandbox, _Bucket] = {}
        """Bucket of each claimed sandbox. Not by its id, which its owner may change."""
        self._gate = StartGate((os.cpu_count() or 1) + 2)
        self._refills = Tasks()
        self._destructions = Tasks()
        self._is_open = True
        self._usual_env: dict[str, str] = {}
        self._apart: Counter[str] = Counter()
        """Number of claimed sandboxes of no bucket, by the digest of their image, or empty."""
        self._claims_parked = 0
        self._claims_started = 0
        self.starts = Starts()
        """Durations of the sandbox starts."""
        self._failed = 0
        self._tidy: asyncio.TimerHandle | None = None

    def park_with(self, env: Mapping[str, str]) -> None:
        """Park sandboxes with these variables as well, for claims that give them and no others.

        They must be constants of the program, such as a door's own. With a caller's, the time of a
        claim would tell another caller whether a guess of their values is right.
        """
        self._usual_env.update(env)

    # -- claiming --------------------------------------------------------------------------

    async def claim(self, runtime: Runtime, spec: SandboxSpec) -> ClaimedSandbox:
        """Return a sandbox of `spec`, parked or started now; the caller must `release` it."""
        await self._destructions.wait_below(_MOST_DESTRUCTIONS)
        spec = served_as(runtime, spec)
        if _is_apart(spec):
            return await self._claim_apart(runtime, spec)
        bucket = self._bucket(runtime, spec)
        self._count_claim(bucket)
        try:
            live = await self._parked_one(bucket, spec)
            if live is None:
                bucket = self._bucket_of_its_limits(bucket, spec)
                live = await self._started(runtime, spec)
        except BaseException:
            bucket.in_use -= 1
            raise
        finally:
            self._refill_later(bucket, _REFILL_PAUSE_S)
        self._claimed[live.runtime_sandbox] = bucket
        return live

    async def _parked_one(self, bucket: _Bucket, spec: SandboxSpec) -> ClaimedSandbox | None:
        """Return a parked sandbox of `spec`, or one that a refill is starting, if there is one."""
        found = self._take(bucket, spec) or await self._wait_forked(bucket, spec)
        while found is not None:
            live = await self._adapt(found, spec)
            if live is not None and live.is_alive:
                self._claims_parked += 1
                return live
            self.discard(found.sandbox)
            found = self._take(bucket, spec)
        return None

    def _bucket_of_its_limits(self, bucket: _Bucket, spec: SandboxSpec) -> _Bucket:
        """Return the bucket that a claim counts in which found nothing parked in `bucket`.

        It is one of the claim's own limits if these alone kept it, and many before it, from having
        a parked sandbox.
        """
        usual = replace(spec, limits=bucket.spec.limits)
        if bucket.has_own_limits or not any(each.sandbox.fits(usual) for each in bucket.parked):
            return bucket
        key = (*self._key(bucket.runtime, spec), _built_in(spec.limits))
        if not self._recurring.is_frequent(key):
            return bucket
        if not self._has_room_for_limits():
            return bucket
        own = _Bucket(bucket.runtime, replace(bucket.spec, limits=spec.limits), has_own_limits=True)
        self._buckets[key] = own
        bucket.in_use -= 1
        self._count_claim(own)
        return own

    def _has_room_for_limits(self) -> bool:
        """Whether one more bucket for limits may be opened; an idle one gives way for it.

        One that is asked for does not: with more limits than buckets sandboxes would be parked for
        one and given up for the next before they are used.
        """
        own = [(key, each) for key, each in self._buckets.items() if each.has_own_limits]
        if len(own) < _MOST_OWN_LIMITS:
            return True
        key, oldest = min(own, key=lambda pair: pair[1].claimed_at)
        if time.monotonic() - oldest.claimed_at <= _SHRINK_AFTER_S:
            return False
        del self._buckets[key]
        self._give_up(oldest)
        return True

    async def _claim_apart(self, runtime: Runtime, spec: SandboxSpec) -> ClaimedSandbox:
        """Start a sandbox that is of no bucket."""
        self._apart[_image_of(spec)] += 1
        try:
            return await self._started(runtime, spec)
        except BaseException:
            self._apart[_image_of(spec)] -= 1
            raise

    async def _started(self, runtime: Runtime, spec: SandboxSpec) -> ClaimedSandbox:
        """Start a sandbox for one claim."""
        self._claims_started += 1
        async with self._gate.passing(is_claim=True):
            with self.starts.timing(runtime.name):
                sandbox = await runtime.start(spec)
        return ClaimedSandbox(sandbox, spec, sandbox.fresh)

    async def _wait_forked(self, bucket: _Bucket, spec: SandboxSpec) -> _Parked | None:
        """Take over a sandbox that a refill is starting now, if one is not taken yet."""
        if bucket.forking <= len(bucket.waiting):
            return None
        future: asyncio.Future[_Parked | None] = asyncio.get_running_loop().create_future()
        bucket.waiting.append(future)
        try:
            found = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and (given := future.result()) is not None:
                bucket.parked.append(given)
            raise
        if found is not None and not found.sandbox.fits(spec):
            bucket.parked.append(found)
            return None
        return found

    async def _adapt(self, found: _Parked, spec: SandboxSpec) -> ClaimedSandbox | None:
        """Apply the claim's spec to a parked sandbox; None if the sandbox had ended unnoticed."""
        if found.spec.limits != spec.limits:
            try:
                await found.sandbox.apply_limits(spec.limits)
            except SandboxBroken:
                return None
            except BaseException:
                self.discard(found.sandbox)
                raise
        return ClaimedSandbox(
            found.sandbox, replace(spec, sandbox_id=found.spec.sandbox_id), found.fresh
        )

    def _take(self, bucket: _Bucket, spec: SandboxSpec) -> _Parked | None:
        for _ in range(len(bucket.parked)):
            candidate = bucket.parked.popleft()
            if not candidate.sandbox.channel.is_open:
                self.discard(candidate.sandbox)
            elif candidate.sandbox.fits(spec):
                return candidate
            else:
                bucket.parked.append(candidate)
        return None

    def release(self, live: ClaimedSandbox, runtime: Runtime) -> None:
        """Destroy a claimed sandbox, in the background."""
        if _is_apart(live.spec):
            self._apart[_image_of(live.spec)] -= 1
            self.discard(live.runtime_sandbox)
            return
        bucket = self._claimed.pop(live.runtime_sandbox, None)
        bucket = bucket or self._bucket(runtime, live.spec)
        bucket.in_use -= 1
        self.discard(live.runtime_sandbox)
        self._refill_later(bucket, _ANSWER_PAUSE_S)

    def take_over(self, runtime: Runtime, sandbox: RuntimeSandbox, spec: SandboxSpec) -> None:
        """Count a sandbox that an earlier process claimed, until its release."""
        bucket = self._claimed[sandbox] = self._bucket(runtime, spec)
        bucket.in_use += 1

    def discard(self, sandbox: RuntimeSandbox) -> None:
        """Kill a sandbox now and clean up in the background."""
        sandbox.kill()
        self._destructions.spawn(_remove(sandbox))

    async def wait_buried(self) -> None:
        """Return when every destruction under way has ended."""
        await self._destructions.wait_empty()

    # -- parking ---------------------------------------------------------------------------

    def _bucket(self, runtime: Runtime, spec: SandboxSpec) -> _Bucket:
        key = self._key(runtime, spec)
        bucket = self._buckets.get((*key, _built_in(spec.limits))) or self._buckets.get(key)
        if bucket is None:
            plain = replace(
                spec,
                limits=spec.limits if spec.lineage else self._settings.limits,
                env=self._parked_env(spec),
                demand_hard=False,
                start="fork",
                saved=None,
            )
            bucket = self._buckets[key] = _Bucket(runtime, plain)
        return bucket

    def _key(self, runtime: Runtime, spec: SandboxSpec) -> tuple[object, ...]:
        """Return what the bucket of a claim is found by; its own limits may come behind it."""
        template = spec.template
        return (
            runtime.name,
            template.digest,
            template.path,
            spec.purpose,
            spec.language,
            "network" if spec.has_network else "",
            repr(sorted(self._parked_env(spec).items())),
            repr(spec.image),
            # For copies of a lineage: made ready ahead, with the very limits of their source.
            repr((spec.lineage, spec.limits)) if spec.lineage else "",
        )

    def _parked_env(self, spec: SandboxSpec) -> Mapping[str, str]:
        """Return the variables that sandboxes which are parked for `spec` have."""
        given = spec.env.items() - spec.own_env.items()
        return spec.env if given <= self._usual_env.items() else spec.own_env

    def _count_claim(self, bucket: _Bucket) -> None:
        now = time.monotonic()
        bucket.claimed_at = now
        bucket.in_use += 1
        if bucket.in_use >= bucket.peak or now - bucket.peak_at > _SHRINK_AFTER_S:
            bucket.peak, bucket.peak_at = bucket.in_use, now

    def _target(self, bucket: _Bucket) -> int:
        now = time.monotonic()
        if (
            not self._is_open
            or bucket.is_given_up
            or now - bucket.claimed_at > self._settings.pool_idle_s
        ):
            return 0
        if now - bucket.peak_at > _SHRINK_AFTER_S:
            bucket.peak = bucket.in_use
        return min(self._settings.pool_max, max(self._settings.pool_min, bucket.peak))

    def _refill_later(self, bucket: _Bucket, pause_s: float) -> None:
        """Refill after a pause: a start competes for the processor with the code just claimed."""
        if self._tidy is not None and not self._settings.pool_max:
            return  # nothing is ever parked, and a look at the buckets is due anyway
        loop = asyncio.get_running_loop()
        if bucket.soon is not None:
            if bucket.soon.when() <= loop.time() + pause_s:
                return
            bucket.soon.cancel()
        bucket.soon = loop.call_later(pause_s, self._refill, bucket)

    def _refill(self, bucket: _Bucket) -> None:
        if bucket.soon is not None:
            bucket.soon.cancel()
            bucket.soon = None
        if bucket.retry is not None:
            return
        while len(bucket.parked) + bucket.starting < self._target(bucket):
            bucket.starting += 1
            self._refills.spawn(self._park_one(bucket))
        if self._tidy is None and self._is_open:
            loop = asyncio.get_running_loop()
            self._tidy = loop.call_later(_SHRINK_AFTER_S, self._on_tidy)

    async def _park_one(self, bucket: _Bucket) -> None:
        try:
            await self._park(bucket)
        finally:
            bucket.starting -= 1
            # Claims without a remaining fork start a sandbox themselves.
            while len(bucket.waiting) > bucket.forking:
                future = bucket.waiting.pop()
                if not future.done():
                    future.set_result(None)

    async def _park(self, bucket: _Bucket) -> None:
        spec = replace(bucket.spec, sandbox_id=new_id(self._settings.node), is_awaited=False)
        try:
            async with self._gate.passing(is_claim=False):
                if len(bucket.parked) >= self._target(bucket):
                    return
                bucket.forking += 1
                try:
                    with self.starts.timing(bucket.runtime.name):
                        sandbox = await self._begun(bucket.runtime, spec)
                finally:
                    bucket.forking -= 1
        except Exception:  # noqa: BLE001 - whatever it is, the next claim meets and raises it
            self._failed += 1
            self._back_off(bucket)
            return
        bucket.backoff_s = 0.0
        if not self._is_open or bucket.is_given_up:
            self.discard(sandbox)
            return
        parked = _Parked(sandbox, spec, sandbox.fresh)
        sandbox.channel.on_end(lambda: self._on_parked_ended(bucket, parked))
        while bucket.waiting:
            future = bucket.waiting.popleft()
            if not future.done():
                future.set_result(parked)
                return
        bucket.parked.append(parked)

    async def _begun(self, runtime: Runtime, spec: SandboxSpec) -> RuntimeSandbox:
        """Start a sandbox to be parked; one for copies is made ready for its image."""
        sandbox = await runtime.start(spec)
        if spec.lineage:
            from cellwall.runtimes.copies import CopiesSessions  # most engines copy none

            try:
                if isinstance(runtime, CopiesSessions):
                    await runtime.copier.make_ready(sandbox)
            except BaseException:
                self.discard(sandbox)
                raise
        return sandbox

    def _on_parked_ended(self, bucket: _Bucket, parked: _Parked) -> None:
        if parked in bucket.parked:
            bucket.parked.remove(parked)
            self.discard(parked.sandbox)
            # A sandbox that dies while parked is a failure, too: do not replace it in a busy loop.
            self._back_off(bucket)

    def _back_off(self, bucket: _Bucket) -> None:
        if bucket.retry is not None or bucket.is_given_up or not self._is_open:
            return
        bucket.backoff_s = min(_BACKOFF_MOST_S, max(_BACKOFF_FIRST_S, bucket.backoff_s * 2))
        loop = asyncio.get_running_loop()
        bucket.retry = loop.call_later(bucket.backoff_s, self._on_retry, bucket)

    def _on_retry(self, bucket: _Bucket) -> None:
        bucket.retry = None
        self._refill(bucket)

    def _on_tidy(self) -> None:
        self._tidy = None
        for key, bucket in list(self._buckets.items()):
            while len(bucket.parked) > self._target(bucket):
                self.discard(bucket.parked.popleft().sandbox)
            if not (bucket.parked or bucket.starting or bucket.in_use or self._target(bucket)):
                del self._buckets[key]
        if self._buckets and self._is_open:
            loop = asyncio.get_running_loop()
            self._tidy = loop.call_later(_SHRINK_AFTER_S, self._on_tidy)

    def give_up(self, image: str) -> bool:
        """Give up what is parked on an image; False if it has a sandbox that is not parked.

        `image` is the image's digest.
        """
        on_it = [
            (key, bucket)
            for key, bucket in self._buckets.items()
            if _image_of(bucket.spec) == image
        ]
        if self._apart[image] or any(bucket.in_use for _, bucket in on_it):
            return False
        for key, bucket in on_it:
            del self._buckets[key]
            self._give_up(bucket)
        return True

    def _give_up(self, bucket: _Bucket) -> None:
        bucket.is_given_up = True
        self._empty(bucket)

    def _empty(self, bucket: _Bucket) -> None:
        for timer in (bucket.retry, bucket.soon):
            if timer is not None:
                timer.cancel()
        while bucket.parked:
            self.discard(bucket.parked.popleft().sandbox)

    async def wait_full(self) -> None:
        """Return when every bucket holds its target, or backs off; for measurements and tests."""
        for bucket in self._buckets.values():
            self._refill(bucket)
        await self._refills.wait_empty()

    # -- end -------------------------------------------------------------------------------

    def statistics(self) -> PoolStatistics:
        """Return the pool's counts."""
        return PoolStatistics(
            parked=sum(len(bucket.parked) for bucket in self._buckets.values()),
            starting=sum(bucket.starting for bucket in self._buckets.values()),
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
        for bucket in self._buckets.values():
            self._empty(bucket)
        await self._destructions.wait_empty()


async def _remove(sandbox: RuntimeSandbox) -> None:
    try:
        await asyncio.sleep(_ANSWER_PAUSE_S)
    finally:
        await sandbox.aclose()


def _built_in(limits: Limits) -> tuple[float, ...]:
    """Return the limits that a runtime may have to build into a sandbox as it starts."""
    return (
        *(math.ceil(limits.cpus), limits.memory_mb, limits.disk_mb, limits.inodes),
        *(limits.processes, limits.file_mb, limits.open_files),
    )


def _is_apart(spec: SandboxSpec) -> bool:
    """Report whether a sandbox is of no bucket: another one like it is hardly asked for soon."""
    is_step = spec.image is not None and spec.image.shows_changes
    return bool(spec.volumes) or spec.profile != "default" or is_step


def _image_of(spec: SandboxSpec) -> str:
    """Return the digest of the image that a sandbox is on; empty on a template."""
    return "" if spec.image is None else spec.image.digest
