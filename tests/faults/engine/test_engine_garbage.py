"""Nothing of an execution that is over waits for the garbage collector.

In a circle with its clocks, a program and all that it printed stayed until the next collection,
which counts objects and not their bytes.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cellwall.engine.attempts.attempt import Attempt
from cellwall.engine.attempts.deadlines import Deadlines
from cellwall.engine.attempts.recorder import Recorder
from cellwall.engine.sandbox import AsyncSandbox
from cellwall.model.errors import CellwallError, NotFound
from kit.arena import Arena

pytestmark = pytest.mark.attack

KINDS = (Attempt, Recorder, Deadlines, AsyncSandbox)


async def _programs(arena: Arena) -> None:
    run = arena.engine.run
    assert (await run("print(1)")).ok
    assert not (await run("1/0")).ok
    assert not (await run("while True: pass", timeout=0.2)).ok


async def _cancelled(arena: Arena) -> None:
    begun = asyncio.Event()
    code = "print(1, flush=True)\nimport time; time.sleep(30)"
    task = asyncio.ensure_future(arena.engine.run(code, on_event=lambda _: begun.set()))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def _refused_by_the_caller(arena: Arena) -> None:
    def refuse(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await arena.engine.run("print(1)", on_event=refuse)


async def _with_tools(arena: Arena) -> None:
    def double(number: int) -> int:
        return 2 * number

    execution = await arena.engine.run("print(tools.double(21))", tools=[double])
    assert execution.stdout == "42\n"


async def _session(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        assert (await sandbox.run("x = 1\nx")).text == "1"
        assert not (await sandbox.run("while True: pass", timeout=0.2)).ok
        with pytest.raises(NotFound):
            await sandbox.run("1", context="nowhere")
        with pytest.raises(CellwallError):
            await sandbox.files.read("nowhere")
        assert (await sandbox.commands.run("exit 3")).exit_code == 3


async def _hibernated(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        await sandbox.run("x = 1")
        await sandbox.hibernate()
        assert (await sandbox.run("x")).text == "1"
        await sandbox.hibernate()


def _left(arena: Arena, what: Callable[[Arena], Awaitable[None]]) -> Counter[str]:
    """What nobody holds and only the collector would find."""

    async def once() -> None:
        await what(arena)
        await arena.engine.wait_settled()
        await asyncio.sleep(0)

    arena.do(once())  # what is made once is there
    gc.collect()
    before = Counter(type(each) for each in gc.get_objects())
    gc.disable()
    try:
        arena.do(once())
        after = Counter(type(each) for each in gc.get_objects())
    finally:
        gc.enable()
        gc.collect()
    return Counter({kind.__name__: after[kind] - before[kind] for kind in KINDS})


@pytest.mark.parametrize(
    "what", [_programs, _cancelled, _refused_by_the_caller, _with_tools, _session, _hibernated]
)
def test_nothing_waits_for_the_collector(arena: Arena, what: Any) -> None:
    assert not +_left(arena, what)


def test_control_what_is_in_a_circle_is_seen(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "_stop_clocks", lambda each: each._deadlines.stop())
    left = _left(arena, _programs)
    assert left["Attempt"] == left["Recorder"] == left["Deadlines"] == 3
