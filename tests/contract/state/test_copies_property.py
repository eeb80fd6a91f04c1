"""A copy of a session goes on as its source does: random programs, copied in the middle.

Each program begins something, is copied three times and kept as a snapshot, and is asked five times
more, in the source, in each copy, and in what the snapshot gives when the source has ended. All 200
programs run with CELLWALL_TEST_PROGRAMS=200, in some minutes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from kit.arena import Arena
from kit.copies.programs import ASKED, DATA, PLAIN, program

pytestmark = [pytest.mark.root]
PROGRAMS = int(os.environ.get("CELLWALL_TEST_PROGRAMS", "30"))
OF_PYTHON = 4
"""One program of so many is of the template `python`."""
COPIES = 3
LIMITS = {"memory_mb": 1024, "processes": 60, "disk_mb": 256}


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))
    yield made
    made.close()


async def _answers(sandbox: AsyncSandbox, cells: Sequence[str]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for cell in cells:
        done = await sandbox.run(cell)
        error = None if done.error is None else (done.error.name, done.error.value)
        found.append((done.verdict.value, done.stdout, done.stderr, done.results, error))
    return found


async def _restored(arena: Arena, snapshot: str, cells: Sequence[str]) -> list[tuple[object, ...]]:
    """The answers of a sandbox that is made of a snapshot, which is deleted meanwhile."""
    restored = await arena.engine.copies.restore(snapshot, "", reseed=False)
    arena.engine.copies.delete(snapshot, "")
    try:
        return await _answers(restored, cells)
    finally:
        await restored.close()


async def _compared(arena: Arena, seed: int) -> None:
    is_python = seed % OF_PYTHON == 0
    begin, asked = program(seed, PLAIN if is_python else PLAIN | DATA)
    template = "python" if is_python else "data"
    async with arena.sandbox(template=template, limits=LIMITS) as source:
        for cell in begin:
            done = await source.run(cell)
            assert done.verdict.value == "ok", f"the program fails: {cell}\n{done.stderr}"
        kept = await source.snapshot()
        forks = await source.fork(COPIES, reseed=False)
        copies = [each.sandbox for each in forks]
        try:
            wanted, *got = await asyncio.gather(
                *(_answers(each, asked) for each in (source, *copies))
            )
        finally:
            for each in copies:
                await each.close()
    assert [answer[0] for answer in wanted] == ["ok"] * ASKED, wanted
    assert got == [wanted] * COPIES
    assert await _restored(arena, kept.id, asked) == wanted


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_copies_answer_as_their_source(arena: Arena, seed: int) -> None:
    arena.do(_compared(arena, seed))


def test_programs_have_each_piece() -> None:
    """By the text of what they ask; or a piece would be tested by nothing."""
    asked = "\n".join(program(seed, PLAIN | DATA)[1][0] for seed in range(200) if seed % OF_PYTHON)
    assert [name for name in PLAIN | DATA if f"print({name!r})" not in asked] == []
