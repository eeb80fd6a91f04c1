"""P-15: a neighbour keeps its latency, within three times, while a bomb goes off beside it.

A ratio of medians of one live sandbox, quiet and beside the bomb in turns, so that whatever else
this machine does falls on both. The proof that the bomb went off is the kernel's account of it; the
proof that the ratio can tell is the same bomb inside the neighbour's own walls.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import pytest

from cellwall import AsyncSandbox
from cellwall.model.outcome import Usage
from kit.arena import Arena

pytestmark = [pytest.mark.attack, pytest.mark.alone]
TURNS = 3
STRETCH_S = 0.5
"""Several periods of the CPU quota, so that a bomb is seen both going off and held back."""

_UP = "import os\nprint('up', flush=True)\n"
_CPU = """
for _ in range(4): os.fork()
while True: pass
"""
_FORK = """
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]: pass
        except ChildProcessError: pass
"""
_MEMORY = """
while True:
    pid = os.fork()
    if pid == 0:
        held = b"x" * (256 << 20)
        os._exit(0)
    os.waitpid(pid, 0)
"""


async def _latencies_s(neighbour: AsyncSandbox) -> list[float]:
    found: list[float] = []
    while sum(found) < STRETCH_S:
        began = time.perf_counter()
        ended = await neighbour.run(f"print({len(found)})")
        assert ended.stdout == f"{len(found)}\n", ended
        found.append(time.perf_counter() - began)
    return found


async def _beside(arena: Arena, bomb: str, neighbour: AsyncSandbox) -> tuple[list[float], Usage]:
    async with arena.sandbox() as sandbox:
        up = asyncio.Event()
        run = sandbox.run(_UP + bomb, timeout=30, on_stdout=lambda _text: up.set())
        task = asyncio.ensure_future(run)
        await up.wait()
        found = await _latencies_s(neighbour)
        assert not task.done(), "the bomb ended before its neighbour did"
        await sandbox.close()
        return found, (await task).outcome.usage


async def _within(neighbour: AsyncSandbox, bomb: str) -> list[float]:
    up = asyncio.Event()
    argv = ["python", "-c", _UP + bomb]
    command = await neighbour.commands.start(argv, on_stdout=lambda _text: up.set())
    await up.wait()
    found = await _latencies_s(neighbour)
    await command.kill()
    await command.wait()
    return found


async def _slowdown(
    arena: Arena, measure: Callable[[AsyncSandbox], Awaitable[list[float]]]
) -> float:
    """How many times slower the median is while `measure` lets the bomb off."""
    quiet, loud = [], []
    async with arena.sandbox() as neighbour:
        await _latencies_s(neighbour)  # the first ones are slower anywhere
        for _ in range(TURNS):
            quiet += await _latencies_s(neighbour)
            loud += await measure(neighbour)
    return statistics.median(loud) / statistics.median(quiet)


@pytest.mark.cgroups
@pytest.mark.parametrize(
    ("bomb", "went_off"),
    [
        pytest.param(_CPU, lambda used: used.cpu_s > 0.2 * used.wall_s, id="P-15-cpu"),
        pytest.param(_FORK, lambda used: used.processes_peak == 31, id="P-15-fork"),
        pytest.param(_MEMORY, lambda used: used.memory_peak_bytes > 120 << 20, id="P-15-memory"),
    ],
)
def test_neighbour_of_a_bomb_keeps_its_latency(
    arena: Arena, bomb: str, went_off: Callable[[Usage], bool]
) -> None:
    async def measure(neighbour: AsyncSandbox) -> list[float]:
        found, used = await _beside(arena, bomb, neighbour)
        assert went_off(used), used
        return found

    with arena.leaving_nothing():
        # Once more if need be: something else that begins in the middle looks like the bomb.
        assert any(arena.do(_slowdown(arena, measure)) <= 3 for _ in range(2))


@pytest.mark.cgroups
@pytest.mark.parametrize("case", ["P-15-cpu"])
def test_bomb_within_the_same_walls_is_felt(arena: Arena, case: str) -> None:
    slowdowns = (
        arena.do(_slowdown(arena, lambda neighbour: _within(neighbour, _CPU))) for _ in range(3)
    )
    assert any(slowdown > 3 for slowdown in slowdowns)
