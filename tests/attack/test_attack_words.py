"""P-15 for what a program says: a flood of frames costs others no more than a loop of its own.

The engine takes frames apart on the one loop that everybody waits for. Witnesses are others: their
one-shots, in turns quiet, beside floods, and beside as many burners, which say nothing and use all
of their share. Every flood tells of what it got rid of, so that one that did not happen is no
proof; it waits, as a rule, because nobody takes more.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable

import pytest
from arena import LIMITS, Arena

from cellwall import AsyncSandbox
from cellwall.model.execution import Event

pytestmark = [pytest.mark.attack, pytest.mark.cgroups]
TURNS = 3
STRETCH_S = 0.4
_MOST_BESIDE_ONE = 3.0
_MOST_OF_BURNERS = 1.5
_LEAST_S = 0.005
"""What a factor of nearly nothing would be too strict about."""

_BURN = "while True: pass\n"
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


async def _latencies_s(arena: Arena) -> list[float]:
    found: list[float] = []
    while sum(found) < STRETCH_S:
        began = time.perf_counter()
        ended = await arena.engine.run(f"print({len(found)})", limits=LIMITS, timeout=30)
        assert ended.stdout == f"{len(found)}\n", ended
        found.append(time.perf_counter() - began)
    return found


class Beside:
    """Programs under way."""

    def __init__(self, count: int) -> None:
        self.up = asyncio.Event()
        self._heard = [0] * count

    def hears(self, number: int, text: str) -> None:
        """One of them has said something."""
        self._heard[number] += text.count("\n")
        if all(self._heard):
            self.up.set()

    @property
    def least(self) -> int:
        """How often the quietest was heard."""
        return min(self._heard)


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


async def _compared(
    arena: Arena, start: Start, code: str, count: int
) -> tuple[float, float, float]:
    """Medians: quiet, beside floods, beside burners."""
    quiet, floods, burners = [], [], []
    await _latencies_s(arena)  # the first ones are slower anywhere
    for _ in range(TURNS):
        quiet += await _latencies_s(arena)
        async with start(arena, code, count) as beside:
            floods += await _latencies_s(arena)
            assert beside.least > 2, "a flood did not happen"
        async with start(arena, _BURN, count):
            burners += await _latencies_s(arena)
    return statistics.median(quiet), statistics.median(floods), statistics.median(burners)


def _holds(arena: Arena, start: Start, code: str, count: int) -> list[str]:
    """Once more if need be: something else that begins in the middle looks like the flood."""
    said = []
    for _ in range(3):
        quiet_s, flood_s, burner_s = arena.do(_compared(arena, start, code, count))
        is_near = count > 1 or flood_s <= _MOST_BESIDE_ONE * max(quiet_s, _LEAST_S)
        if is_near and flood_s <= _MOST_OF_BURNERS * max(burner_s, _LEAST_S):
            return []
        said.append(f"quiet {quiet_s:.4f} s, floods {flood_s:.4f} s, burners {burner_s:.4f} s")
    return said


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
    assert _holds(arena, _one_shots, f"{_ALONE}flood({words})", count) == []


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
    assert _holds(arena, _sessions, f"{_SESSION}flood({words})", count) == []
