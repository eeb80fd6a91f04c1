"""FI-24: cancelled at every stage of a start, a run and its answer, and nothing is left.

A caller that hangs up is ordinary, and one that does so on purpose, again and again and at the
worst moment, is an attack on the others: so neither a trace nor a warm fork-server may be lost.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Event, Execution
from cellwall.runtimes.shared.cgroup_keeper import GroupKeeper
from conftest import Require
from kit.arena import Arena
from kit.jail.control_groups import control_groups, is_left, is_occupied

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("spins", [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096])
def test_cancel_at_any_moment_leaves_nothing(arena: Arena, spins: int) -> None:
    # Spins of the loop, not seconds: they pass through queueing, the fork-server's start, ours.
    async def attack() -> None:
        for extra in range(3):
            work = arena.arun("open('made', 'w').write('x' * 9999)", collect=["made"])
            task = asyncio.ensure_future(work)
            for _ in range(spins + extra):
                await asyncio.sleep(0)
            task.cancel()
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(result, Execution):
                assert result.files["made"] == b"x" * 9999
            else:
                assert isinstance(result, asyncio.CancelledError)
        assert (await arena.arun("print('fine')")).stdout.endswith("fine\n")

    # Empty cgroups are not counted here: the next test has the one case, without the luck.
    with arena.leaving_nothing(is_occupied):
        arena.do(attack())


@pytest.mark.parametrize("case", ["FI-24-placing"])
def test_cancel_while_a_worker_is_placed_leaves_no_cgroup(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, require: Require, case: str
) -> None:
    require("cgroups", bool(control_groups(os.getpid())), "run `cellwall doctor`")
    placing, go_on, placed = threading.Event(), threading.Event(), threading.Event()
    real = GroupKeeper._work
    # By the thread, as where the kernel makes it wait; on the loop nothing comes in between.
    monkeypatch.setattr(GroupKeeper, "move_at_once", lambda keeper, worker: False)

    def late(keeper: GroupKeeper, tell: Any, worker: Any, ended: Any) -> None:
        if worker is not None:
            placing.set()
            go_on.wait(10)
        try:
            real(keeper, tell, worker, ended)
        finally:
            if worker is not None:
                placed.set()

    async def attack() -> set[str]:
        monkeypatch.setattr(GroupKeeper, "_work", late)
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        task = asyncio.ensure_future(engine.run("print('never seen')"))
        try:
            await asyncio.to_thread(placing.wait, 20)
            before = control_groups(os.getpid())
            task.cancel()
            for _ in range(1000):  # so far that it only waits for the thread, if it does
                await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(placed.wait, 10)
            left = control_groups(os.getpid()) - before
            return {path for path in left if is_left(path)}
        finally:
            go_on.set()
            await engine.aclose()

    assert asyncio.run(attack()) == set()


_COLLECTED = "import os\nopen('made', 'wb').write(bytes(4 << 20))\nprint('up', flush=True)"


@pytest.mark.parametrize("case", ["FI-24-collecting"])
def test_cancel_between_the_program_and_its_answer_leaves_nothing(arena: Arena, case: str) -> None:
    async def end(spins: int) -> Execution | BaseException:
        up = asyncio.Event()

        def on_event(event: Event) -> None:
            if "up" in (event.text or ""):
                up.set()

        run = arena.engine.run(_COLLECTED, on_event=on_event, collect=["made"])
        task = asyncio.ensure_future(run)
        await up.wait()
        for _ in range(spins):
            await asyncio.sleep(0)
        task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    async def attack() -> set[type]:
        ends = [await end(spins) for _ in range(4) for spins in (*range(30), 100, 1000, 100_000)]
        for each in ends:
            if isinstance(each, Execution):
                assert len(each.files["made"]) == 4 << 20
        return {type(each) for each in ends}

    with arena.leaving_nothing():
        assert arena.do(attack()) == {Execution, asyncio.CancelledError}


@pytest.mark.parametrize("case", ["FI-24-starting"])
def test_cancelled_start_costs_nobody_the_warm_fork_server(arena: Arena, case: str) -> None:
    async def attack() -> None:
        assert (await arena.arun("print('fine')")).ok
        before = await arena.fork_server()
        for spins in range(1, 40):
            task = asyncio.ensure_future(arena.arun("print('fine')"))
            for _ in range(spins):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (await arena.arun("print('fine')")).ok
            assert await arena.fork_server() == before

    arena.do(attack())
