"""The pool's promises about order, failure and size, with a runtime that starts nothing.

A stand-in on purpose: what is tested is who waits for whom, and a real start hides that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, cast, get_args

import pytest

from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.scheduling import pool
from cellwall.engine.scheduling.pool import Pool, StartGate
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.model.ids import new_id
from cellwall.model.limits import Limits
from cellwall.model.template import BuiltTemplate, Template
from cellwall.runtimes.base import KernelReadings, Purpose, Runtime, SandboxSpec, Start
from kit import loop_clock
from kit.loop_clock import clock

TEMPLATE = BuiltTemplate(Template("python"), "0" * 32, "/t", "/t/bin/python", "/b", (), 0)


class StandInChannel:
    def __init__(self) -> None:
        self.is_open = True
        self.callbacks: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        self.is_open = False
        for callback in self.callbacks:
            callback()


class StandInSandbox:
    isolation = None

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.channel = StandInChannel()
        self.limits = spec.limits
        self.killed = self.closed = self.has_ended = False

    def fits(self, spec: SandboxSpec) -> bool:
        return spec.limits.memory_mb == self.spec.limits.memory_mb and spec.env == self.spec.env

    async def apply_limits(self, limits: Limits) -> None:
        if self.has_ended:
            raise SandboxBroken("it has ended")
        self.limits = limits

    fresh = KernelReadings()

    def readings(self) -> KernelReadings:
        return KernelReadings()

    def kill(self) -> None:
        self.killed = True

    async def aclose(self) -> None:
        self.closed = True


class StandInRuntime:
    name = "stand-in"

    def __init__(self) -> None:
        self.started: list[StandInSandbox] = []
        self.fail = False
        self.attempts = 0
        self.hold: asyncio.Event | None = None

    async def start(self, spec: SandboxSpec) -> StandInSandbox:
        self.attempts += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.fail:
            raise HostUnsupported("x", "it does not work", remedy="mend it")
        sandbox = StandInSandbox(spec)
        self.started.append(sandbox)
        return sandbox


class StandInRuntimeWithSinglePrograms(StandInRuntime):
    has_single_programs = True


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.runtime = StandInRuntime()
        self.pool = Pool(EngineSettings(**settings))

    async def claim(
        self,
        purpose: Purpose = "session",
        start: Start = "fork",
        env: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> ClaimedSandbox:
        limits = Limits().with_changes(changes)
        spec = SandboxSpec(new_id(), TEMPLATE, limits, purpose=purpose, start=start, env=env or {})
        return await self.pool.claim(cast("Runtime", self.runtime), spec)

    def release(self, live: ClaimedSandbox) -> None:
        self.pool.release(live, cast("Runtime", self.runtime))


def play(
    body: Callable[[Scene], Awaitable[None]],
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    **settings: Any,
) -> None:
    async def main() -> None:
        scene = Scene(**settings)
        try:
            await body(scene)
        finally:
            await loop_clock.passing(scene.pool.aclose())

    run(main())


def test_claim_takes_a_parked_one_and_applies_its_limits() -> None:
    async def body(scene: Scene) -> None:
        await scene.claim()
        await scene.pool.wait_full()
        live = await scene.claim(wall_s=1)
        assert scene.pool.statistics().claims_parked == 1
        assert cast("StandInSandbox", live.runtime_sandbox).limits.wall_s == 1

    play(body)


def test_variables_of_a_door_are_parked_and_those_of_a_caller_are_not() -> None:
    async def body(scene: Scene) -> None:
        scene.pool.park_with({"SHOWN": "1", "SAVED": "1"})
        for env, parked in (
            ({"SHOWN": "1", "SAVED": "1"}, 1),
            ({"SHOWN": "1"}, 1),
            ({"SHOWN": "1", "KEY": "secret"}, 0),
            ({"SHOWN": "other"}, 0),
        ):
            before = scene.pool.statistics().claims_parked
            for _ in range(2):
                live = await scene.claim(env=env)
                assert live.spec.env == env
                await scene.pool.wait_full()
            assert scene.pool.statistics().claims_parked - before == parked
        values = [each.spec.env for each in scene.runtime.started if not each.killed]
        assert sum("secret" in env.values() for env in values) == 2  # the claimed ones alone

    play(body)


def test_single_program_shares_the_bucket_of_programs_where_it_is_nothing_of_its_own() -> None:
    async def body(scene: Scene) -> None:
        await scene.claim("program")
        await scene.pool.wait_full()
        live = await scene.claim("single_program")
        assert live.spec.purpose == "program"
        assert scene.pool.statistics().claims_parked == 1

    play(body)


def test_each_purpose_that_a_runtime_prepares_for_has_its_own_bucket() -> None:
    async def body(scene: Scene) -> None:
        scene.runtime = StandInRuntimeWithSinglePrograms()
        for purpose in get_args(Purpose):
            live = await scene.claim(purpose)
            await scene.pool.wait_full()
            assert live.spec.purpose == purpose
        assert scene.pool.statistics().claims_parked == 0
        exact = await scene.claim("single_program", start="exec")
        assert exact.spec.purpose == "program"  # only a fork can be a single program's

    play(body)


def test_claim_that_no_parked_one_fits_starts_its_own() -> None:
    async def body(scene: Scene) -> None:
        await scene.claim()
        await scene.pool.wait_full()
        live = await scene.claim(memory_mb=64)
        assert live.spec.limits.memory_mb == 64
        assert scene.pool.statistics().claims_started == 2

    play(body)


def test_limits_that_are_asked_for_often_are_parked() -> None:
    """Beside the usual ones, which stay parked; a fifth claim with them has a parked one."""

    async def body(scene: Scene) -> None:
        scene.release(await scene.claim())
        await scene.pool.wait_full()
        for parked in (*[0] * 4, 1, 2):
            live = await scene.claim(memory_mb=64, wall_s=parked + 1)
            assert scene.pool.statistics().claims_parked == parked
            assert live.spec.limits.memory_mb == 64
            await scene.pool.wait_full()
            scene.release(live)
        await scene.claim()
        assert scene.pool.statistics().claims_parked == 3

    play(body)


def test_limits_that_are_one_of_many_are_never_parked() -> None:
    async def body(scene: Scene) -> None:
        for number in range(200):
            scene.release(await scene.claim(memory_mb=64 + number % 6))
            await scene.pool.wait_full()
            assert scene.pool.statistics().parked == 2

    play(body)


def test_limits_are_parked_only_if_they_alone_kept_a_claim_from_a_parked_one() -> None:
    """A claim with variables of its own would not fit with the usual limits either."""

    async def body(scene: Scene) -> None:
        for _ in range(12):
            scene.release(await scene.claim(memory_mb=64, env={"OWN": "1"}))
            await scene.pool.wait_full()
        assert scene.pool.statistics().parked == 2

    play(body)


@pytest.mark.parametrize("is_idle", [True, False])
def test_limits_that_are_asked_for_no_more_give_way(
    monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    """The parked ones of the first end; what is claimed of it counts until its release."""
    monkeypatch.setattr(pool, "_SHRINK_AFTER_S", 0 if is_idle else 60)

    async def body(scene: Scene) -> None:
        scene.release(await scene.claim())
        await scene.pool.wait_full()
        held = []
        for memory_mb in range(64, 69):
            for _ in range(4):
                held.append(await scene.claim(memory_mb=memory_mb))
                await scene.pool.wait_full()
        parked = Counter(each.limits.memory_mb for each in scene.runtime.started if not each.killed)
        parked -= Counter(each.spec.limits.memory_mb for each in held)
        del parked[Limits().memory_mb]
        assert set(parked) == ({65, 66, 67, 68} if is_idle else {64, 65, 66, 67})
        for live in held:
            scene.release(live)
        assert {each.in_use for each in scene.pool._buckets.values()} == {0}
        assert not scene.pool._claimed

    play(body)


def test_sandbox_that_was_renamed_leaves_its_bucket() -> None:
    """As a session is, by the id that its owner gave it."""

    async def body(scene: Scene) -> None:
        lives = [await scene.claim(memory_mb=64) for _ in range(3)]
        for live in lives:
            live.be_called(new_id())
            scene.release(live)
        assert {each.in_use for each in scene.pool._buckets.values()} == {0}
        assert not scene.pool._claimed

    play(body)


def test_what_was_released_is_dead_at_once_and_removed_behind_the_answer() -> None:
    """And a pool that is closed before has removed it as well."""

    async def body(scene: Scene) -> None:
        live = await scene.claim()
        sandbox = cast("StandInSandbox", live.runtime_sandbox)
        scene.release(live)
        assert sandbox.killed
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not sandbox.closed
        assert scene.pool.statistics().destroying == 1
        await scene.pool.aclose()
        assert sandbox.closed

    play(body)


def test_every_sandbox_is_used_once_and_destroyed() -> None:
    async def body(scene: Scene) -> None:
        seen = []
        for _ in range(5):
            await scene.pool.wait_full()
            live = await scene.claim()
            seen.append(live.runtime_sandbox)
            scene.release(live)
        await scene.pool.wait_buried()
        assert len(set(map(id, seen))) == 5
        assert all(cast("StandInSandbox", s).closed for s in seen)

    play(body)


def test_two_claims_never_get_the_same_one() -> None:
    async def body(scene: Scene) -> None:
        await scene.claim()
        await scene.pool.wait_full()
        lives = await asyncio.gather(*(scene.claim() for _ in range(20)))
        assert len({id(live.runtime_sandbox) for live in lives}) == 20

    play(body)


def test_parked_one_that_died_is_not_handed_out() -> None:
    async def body(scene: Scene) -> None:
        await scene.claim()
        await scene.pool.wait_full()
        parked = scene.runtime.started[1:]
        for sandbox in parked:
            sandbox.channel.end()
        live = await scene.claim()
        assert all(live.runtime_sandbox is not cast("object", sandbox) for sandbox in parked)
        await scene.pool.wait_buried()
        assert all(sandbox.closed for sandbox in parked)

    play(body)


def test_claim_passes_refills_that_wait() -> None:
    async def body(scene: Scene) -> None:
        await scene.claim()  # a refill follows, after a pause
        scene.runtime.hold = asyncio.Event()
        claims = [asyncio.ensure_future(scene.claim()) for _ in range(30)]
        await clock().advance(10)
        claims += [asyncio.ensure_future(scene.claim()) for _ in range(10)]
        await clock().settle()
        under_way = scene.runtime.attempts
        scene.runtime.hold.set()
        handed_out = {id(live.runtime_sandbox) for live in await asyncio.gather(*claims)}
        assert handed_out == {id(sandbox) for sandbox in scene.runtime.started[1:41]}
        assert under_way < 30  # parallel starts are bounded
        await clock().settle()
        assert len(scene.runtime.started) > 41, "refills did wait"

    play(body, loop_clock.run)


def test_failing_start_reaches_the_claim_and_backs_off() -> None:
    async def body(scene: Scene) -> None:
        scene.runtime.fail = True
        with pytest.raises(HostUnsupported):
            await scene.claim()
        await scene.pool.wait_full()
        tried = scene.runtime.attempts
        await scene.pool.wait_full()
        assert scene.runtime.attempts == tried
        with pytest.raises(HostUnsupported):
            await scene.claim()

    play(body)


def test_claim_waiting_for_a_fork_that_fails_goes_its_own_way() -> None:
    async def body(scene: Scene) -> None:
        first = await scene.claim()
        scene.runtime.hold, scene.runtime.fail = asyncio.Event(), True
        filling = asyncio.ensure_future(scene.pool.wait_full())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        claim = asyncio.ensure_future(scene.claim())
        await asyncio.sleep(0)
        scene.runtime.hold.set()
        with pytest.raises(HostUnsupported):
            await asyncio.wait_for(claim, 5)
        await filling
        scene.release(first)

    play(body)


def test_no_pool_parks_nothing() -> None:
    async def body(scene: Scene) -> None:
        scene.release(await scene.claim())
        await scene.pool.wait_full()
        assert len(scene.runtime.started) == 1

    play(body, pool_min=0, pool_max=0)


def test_target_follows_recent_concurrency() -> None:
    async def body(scene: Scene) -> None:
        lives = [await scene.claim() for _ in range(6)]
        await scene.pool.wait_full()
        assert scene.pool.statistics().parked == 6
        for live in lives:
            scene.release(live)

    play(body)


def test_closed_pool_has_destroyed_all_it_parked() -> None:
    runtime: list[StandInRuntime] = []

    async def body(scene: Scene) -> None:
        runtime.append(scene.runtime)
        scene.release(await scene.claim())
        await scene.pool.wait_full()

    play(body)
    assert all(sandbox.closed for sandbox in runtime[0].started)


def test_parked_sandbox_that_ended_unnoticed_is_passed_over() -> None:
    async def body(scene: Scene) -> None:
        scene.release(await scene.claim())
        await scene.pool.wait_full()
        for parked in scene.runtime.started:
            parked.has_ended = True
        live = await scene.claim(processes=7)
        found = cast("StandInSandbox", live.runtime_sandbox)
        assert not found.has_ended
        assert found.limits.processes == 7
        scene.release(live)
        assert all(each.killed for each in scene.runtime.started if each.has_ended)

    play(body, pool_min=2, pool_max=2)


def test_refill_that_waits_makes_no_noise_at_the_end_of_a_loop() -> None:
    """What a loop closes at its end are asynchronous generators, and none may run meanwhile."""

    async def main() -> list[dict[str, Any]]:
        loop, said = asyncio.get_running_loop(), list[dict[str, Any]]()
        loop.set_exception_handler(lambda _loop, context: said.append(context))
        gate = StartGate(1)
        begun = asyncio.Event()

        async def refill() -> None:
            begun.set()
            async with gate.passing(is_claim=False):
                pass

        async with gate.passing(is_claim=True):
            waiting = asyncio.ensure_future(refill())
            await begun.wait()
            await loop.shutdown_asyncgens()
        await waiting
        return said

    assert asyncio.run(main()) == []


def test_place_that_was_given_to_a_cancelled_claim_is_the_next_ones() -> None:
    async def main() -> None:
        gate = StartGate(1)

        async def claim() -> str:
            async with gate.passing(is_claim=True):
                return "passed"

        async with gate.passing(is_claim=True):
            first, second = asyncio.ensure_future(claim()), asyncio.ensure_future(claim())
            await asyncio.sleep(0)
        first.cancel()  # its place has been given to it, and it does not know yet
        assert await asyncio.wait_for(second, 5) == "passed"

    asyncio.run(main())
