"""P-15 for what a program says: a flood of frames costs others no more than a loop of its own.

The engine takes frames apart on the one loop that everybody waits for. Others are the witnesses
(`neighbours`); as many burners are the control, which say nothing and use all of their share.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from cellwall import AsyncSandbox
from cellwall.model.execution import Event
from kit.arena import LIMITS, Arena
from kit.attack.neighbours import BURN, Beside, missed

pytestmark = [pytest.mark.attack, pytest.mark.alone, pytest.mark.cgroups]
_SAY = """
import json, os, socket, struct
def frame(header, body=b""):
    head = json.dumps(header).encode()
    return struct.pack(">II", len(head), len(body)) + head + body
def flood(data):
    while True:
        try:
            line = socket.socket(socket.AF_UNIX)
            line.connect(address)
            while True:
                line.sendall(data)
                os.write(1, b"said\\n")
        except OSError:
            line.close()
"""
_ALONE = _SAY + "address = '\\0cellwall'\n"
_SESSION = _SAY + (
    "(address,) = {line.split()[-1].replace('@', '\\0')"
    " for line in open('/proc/net/unix') if ' 00010000 ' in line and '@' in line}\n"
)
_ERROR = """frame({"ev": "error"}, b'{"name": "a", "value": "b", "traceback": "c"}') * 100"""
_SMALL = "frame({'ev': 'display'}, b'{}') * 100"
_NOTE = "frame({'ev': 'value', 'x': [[]] * 950}) * 10"
_WIDE = "frame({'ev': 'display', 'metadata': {'x': [[]] * 12_000}}, b'{}')"
_FORMS = "frame({'ev': 'display'}, json.dumps({f'{n:x}': '' for n in range(500)}).encode())"


@contextlib.asynccontextmanager
async def _one_shots(arena: Arena, code: str, count: int) -> AsyncIterator[Beside]:
    beside = Beside(count)

    def listener(number: int) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            if event.kind == "stdout":
                beside.hears(number, event.text or "")

        return on_event

    whole = "import os\nos.write(1, b'up\\n')\n" + code
    tasks = [
        asyncio.ensure_future(
            arena.engine.run(whole, limits=LIMITS, timeout=30, on_event=listener(number))
        )
        for number in range(count)
    ]
    try:
        await asyncio.wait_for(beside.up.wait(), 10)
        yield beside
        assert not any(task.done() for task in tasks), "one of them ended before its neighbours did"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _sessions(arena: Arena, code: str, count: int) -> AsyncIterator[Beside]:
    beside = Beside(count)
    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for number in range(count):
            sandbox: AsyncSandbox = await stack.enter_async_context(arena.sandbox())
            await sandbox.run("import os")

            def heard(text: str, number: int = number) -> None:
                beside.hears(number, text)

            run = sandbox.run("os.write(1, b'up\\n')\n" + code, timeout=30, on_stdout=heard)
            tasks.append(asyncio.ensure_future(run))
        await asyncio.wait_for(beside.up.wait(), 10)
        yield beside
        assert not any(task.done() for task in tasks), "one of them ended before its neighbours did"
    await asyncio.gather(*tasks, return_exceptions=True)


Start = Callable[[Arena, str, int], contextlib.AbstractAsyncContextManager[Beside]]


def _missed(arena: Arena, start: Start, code: str, count: int) -> list[str]:
    flood, burner = partial(start, arena, code, count), partial(start, arena, BURN, count)
    return missed(arena, flood, burner, is_one=count == 1)


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(_SMALL, id="P-15-displays"),
        pytest.param(_NOTE, id="P-15-values"),
        pytest.param(_ERROR, id="P-15-errors"),
        pytest.param(_FORMS, id="P-15-bundles"),
    ],
)
def test_flood_of_a_program_alone_costs_no_more_than_a_loop(
    arena: Arena, words: str, count: int
) -> None:
    assert _missed(arena, _one_shots, f"{_ALONE}flood({words})", count) == []


@pytest.mark.parametrize(
    ("words", "count"),
    [
        pytest.param(_WIDE, 1, id="P-15-headers"),
        pytest.param(_ERROR, 1, id="P-15-errors"),
        pytest.param(_SMALL, 1, id="P-15-displays"),
        pytest.param(_SMALL, 6, id="P-15-displays-of-six"),
        pytest.param(_FORMS, 1, id="P-15-bundles"),
    ],
)
def test_flood_of_a_session_costs_no_more_than_a_loop(arena: Arena, words: str, count: int) -> None:
    """Init takes it apart first, at its sandbox's cost; what it passes on is heard in turns."""
    assert _missed(arena, _sessions, f"{_SESSION}flood({words})", count) == []
