"""Fork-servers that are to be laid out alike are so in each engine; what sandboxes start is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cellwall import Engine, EngineSettings
from cellwall.guest.transplant import memory_map

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("rehearsed")]
STACK = "grep '\\[stack\\]' /proc/self/maps | cut -d' ' -f1"


async def _seen(template: str, *, are_alike: bool) -> tuple[list[str], set[str]]:
    """The map of a fresh session of a new engine, and where the stacks of three programs lie."""
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        runtime: Any = await engine.runtime(name="jail")
        runtime.are_alike = are_alike
        sandbox = await engine.create_sandbox(template=template, runtime="jail")
        base = await runtime.copier._base(sandbox.live.runtime_sandbox)
        stacks = {(await sandbox.commands.run(STACK)).stdout for _ in range(3)}
        return memory_map.Base(base.maps).lines, stacks
    finally:
        await engine.aclose()


def _differing(template: str, *, are_alike: bool) -> set[str]:
    async def both() -> set[str]:
        ours, _ = await _seen(template, are_alike=are_alike)
        theirs, _ = await _seen(template, are_alike=are_alike)
        return {line for line in set(ours) ^ set(theirs) if memory_map.HEAP not in line}

    return asyncio.run(both())


@pytest.mark.parametrize("template", ["python", "data"])
def test_sessions_of_two_engines_are_mapped_alike(template: str) -> None:
    """But for the end of the heap, which a session that becomes another one changes."""
    assert _differing(template, are_alike=True) == set()


def test_they_are_not_by_chance() -> None:
    """The control: without it nearly every line differs."""
    assert len(_differing("python", are_alike=False)) > 100


def test_programs_in_sandboxes_are_laid_out_at_random() -> None:
    _, stacks = asyncio.run(_seen("python", are_alike=True))
    assert len(stacks) == 3
