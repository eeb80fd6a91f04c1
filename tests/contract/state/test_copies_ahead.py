"""Sandboxes that are made like the base ahead of time: who gets them, and what they refuse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.runtimes.base import RuntimeSandbox
from cellwall.runtimes.channel.copy_requests import request_with_files
from cellwall.runtimes.channel.replies import GuestRefused
from kit.arena import Arena

pytestmark = [pytest.mark.root]


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=1, pool_max=2)))
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code)
    assert done.verdict.value == "ok", done.stderr
    return done.stdout.strip()


async def _forked(source: AsyncSandbox, **options: Any) -> AsyncSandbox:
    (fork,) = await source.fork(**options)
    return fork.sandbox


async def _ready(engine: Engine) -> list[RuntimeSandbox]:
    """Return what is parked for copies, once the pool is full."""
    await engine.pool.wait_full()
    buckets = engine.pool._buckets.values()
    return [each.sandbox for bucket in buckets if bucket.spec.lineage for each in bucket.parked]


@pytest.mark.parametrize("limits", [{}, {"memory_mb": 300, "open_files": 100}])
def test_copy_is_made_of_a_sandbox_that_was_made_ready(
    arena: Arena, limits: dict[str, int]
) -> None:
    async def scenario() -> None:
        async with arena.sandbox(limits=limits) as source:
            await _said(source, "import random\nnumbers, opened = [1, 2], open('kept', 'w')")
            async with await _forked(source):
                pass
            ready, parked = await _ready(arena.engine), arena.engine.pool.statistics().claims_parked
            assert ready
            async with await _forked(source) as copy:
                assert copy.live.runtime_sandbox in ready
                assert await _said(copy, "print(numbers, opened.write('x'))") == "[1, 2] 1"
                assert copy.live.readings().memory_bytes < source.live.spec.limits.memory_bytes
            assert arena.engine.pool.statistics().claims_parked == parked + 1

    arena.do(scenario())


def test_sandbox_that_was_made_ready_is_for_copies_only(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.sandbox() as source:
            await _said(source, "secret = 1")
            async with await _forked(source):
                pass
            ready = await _ready(arena.engine)
            assert ready
            async with arena.sandbox() as plain:
                assert plain.live.runtime_sandbox not in ready
                assert await _said(plain, "print('secret' in globals())") == "False"

    arena.do(scenario())


@pytest.mark.parametrize("reseed", [True, False])
def test_copy_renews_its_generators_as_asked_when_it_was_made_ready(
    arena: Arena, reseed: bool
) -> None:
    async def scenario() -> None:
        async with arena.sandbox() as source:
            await _said(source, "import random")
            async with await _forked(source):
                pass
            said = []
            for _ in range(2):
                assert await _ready(arena.engine)
                async with await _forked(source, reseed=reseed) as copy:
                    said.append(await _said(copy, "print(random.random())"))
            assert (said[0] != said[1]) is reseed

    arena.do(scenario())


def test_fork_outlives_the_end_of_one_that_was_made_ready(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.sandbox() as source:
            await _said(source, "value = 6")
            async with await _forked(source):
                pass
            for each in await _ready(arena.engine):
                each.kill()
            async with await _forked(source) as copy:
                assert await _said(copy, "print(value * 7)") == "42"

    arena.do(scenario())


def _asked(sandbox: AsyncSandbox, **sizes: int) -> Any:
    """Ask the init of a sandbox to become an image, as no host does."""
    opened = [os.open("/dev/null", os.O_RDONLY)]
    fields: dict[str, Any] = {"context": "main", "reseed": True}
    fields |= {"pages": 0, "table": 0, "records": 0, "strings": 0, **sizes}
    channel = sandbox.live.runtime_sandbox.channel
    return request_with_files(channel, "become", opened, **fields)


def test_session_that_was_not_made_ready_becomes_nothing(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.sandbox() as source:
            await _said(source, "value = 42")
            with pytest.raises(GuestRefused, match="is not ready for it"):
                await _asked(source)
            assert await _said(source, "print(value)") == "42"
            async with await _forked(source) as copy:  # no longer ready: it is a session
                with pytest.raises(GuestRefused, match="is not ready for it"):
                    await _asked(copy)
                assert await _said(copy, "print(value)") == "42"

    arena.do(scenario())
