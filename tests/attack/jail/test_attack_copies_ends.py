"""Copies that end early leave nothing: many of them, cancelled, killed, and with a dead engine.

Counted on the host as for any sandbox (`Traces`), with the files that have no name, in which
sessions are written down, and with what the engine's processes hold: memory, threads, objects. The
control of the counting is a snapshot, which is found. CI makes 100 copies of the 1,000:
CELLWALL_TEST_FORKS says how many.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.model.errors import CellwallError, SandboxUnavailable
from cellwall.runtimes.jail.sandbox import JailSandbox
from kit.arena import Arena, descendants
from kit.figures import Reading, grown
from kit.jail.control_groups import control_groups
from kit.places import ROOT, TESTS

FORKS = int(os.environ.get("CELLWALL_TEST_FORKS", "100"))
AT_ONCE = 10
pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.timeout(120 + FORKS)]


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))

    async def first() -> None:  # the base of the fork-server, which stays, exists from here on
        async with made.sandbox() as source:
            (fork,) = await source.fork()
            await fork.sandbox.close()

    made.do(first())
    yield made
    made.close()


def _nameless() -> list[str]:
    """Files of this process that no name leads to, in the state directory."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [name for name in found if name.endswith(" (deleted)") and "/#" in name]


async def _begun(sandbox: AsyncSandbox) -> None:
    done = await sandbox.run("x = 1; big = bytearray(b'x' * (4 << 20)); open('f', 'w').write('y')")
    assert done.verdict.value == "ok"


def _pid(sandbox: AsyncSandbox) -> int:
    jail = sandbox.live.runtime_sandbox
    assert isinstance(jail, JailSandbox)
    return jail.pid


async def _copied_and_ended(arena: Arena, source: AsyncSandbox, count: int) -> None:
    """Make copies, ten at a time, one of them of a snapshot; each of them answers, and ends."""
    for _ in range(count // AT_ONCE):
        kept = await source.snapshot()
        copies = [each.sandbox for each in await source.fork(AT_ONCE - 1)]
        copies.append(await arena.engine.copies.restore(kept.id, ""))
        arena.engine.copies.delete(kept.id, "")
        said = await asyncio.gather(*(each.run("x += 1; print(x)") for each in copies))
        assert [each.stdout for each in said] == ["2\n"] * AT_ONCE
        for each in copies:
            await each.close()


def test_many_copies_leave_nothing(arena: Arena, tmp_path: Path) -> None:
    before = len(_nameless())
    held: list[Reading] = []

    async def forked() -> None:
        async with arena.sandbox() as source:
            await _begun(source)
            kept = await source.snapshot()
            assert len(_nameless()) == before + 2  # the control: memory and files
            arena.engine.copies.delete(kept.id, "")
            await _copied_and_ended(arena, source, max(AT_ONCE, FORKS // 10))

    async def forked_more() -> None:
        async with arena.sandbox() as source:
            await _begun(source)
            await _copied_and_ended(arena, source, FORKS)

    with arena.leaving_nothing():
        arena.do(forked())  # threads and caches exist from here on
        held.append(arena.reading(tmp_path))
        arena.do(forked_more())
        held.append(arena.reading(tmp_path))
    print(*held, sep="\n")
    assert len(_nameless()) == before
    assert grown(*held) == {}


@pytest.mark.parametrize("seed", range(12))
def test_cancelled_fork_leaves_nothing(arena: Arena, seed: int) -> None:
    """At a moment of its own each; also copies that were made, which the caller never gets."""
    before = len(_nameless())

    async def cancelled() -> None:
        async with arena.sandbox() as source:
            await _begun(source)
            forking = asyncio.ensure_future(source.fork(6))
            await asyncio.sleep(random.Random(seed).uniform(0, 0.4))
            forking.cancel()
            (end,) = await asyncio.gather(forking, return_exceptions=True)
            if isinstance(end, list):
                for each in end:
                    await each.sandbox.close()
            assert (await source.run("print(x)")).stdout == "1\n"
            (fork,) = await source.fork()
            await fork.sandbox.close()

    with arena.leaving_nothing():
        arena.do(cancelled())
    assert len(_nameless()) == before
    assert arena.engine._sandboxes == {}


@pytest.mark.parametrize("how", ["close", "kill"])
@pytest.mark.parametrize("seed", range(4))
def test_source_that_ends_in_the_middle_is_told(arena: Arena, how: str, seed: int) -> None:
    """Copies that come from what was written before are right; else the error has a type."""

    async def ended() -> None:
        async with arena.sandbox() as source:
            await _begun(source)
            forking = asyncio.ensure_future(source.fork(4))
            await asyncio.sleep(random.Random(seed).uniform(0, 0.2))
            if how == "close":
                await source.close()
            else:
                os.kill(_pid(source), signal.SIGKILL)
            (end,) = await asyncio.gather(forking, return_exceptions=True)
            if isinstance(end, BaseException):
                assert isinstance(end, CellwallError), repr(end)
                return
            for each in end:
                assert (await each.sandbox.run("print(x)")).stdout == "1\n"
                await each.sandbox.close()

    with arena.leaving_nothing():
        arena.do(ended())


@pytest.mark.parametrize("seed", range(4))
def test_engine_that_closes_in_the_middle_leaves_nothing(seed: int) -> None:
    before = len(_nameless()), descendants(os.getpid()), len(os.listdir("/proc/self/fd"))

    async def closed() -> None:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        source = await engine.create_sandbox()
        await _begun(source)
        forking = asyncio.ensure_future(source.fork(6))
        await asyncio.sleep(random.Random(seed).uniform(0, 1.2))
        await engine.aclose()
        (end,) = await asyncio.gather(forking, return_exceptions=True)
        if isinstance(end, BaseException):
            assert isinstance(end, (CellwallError, asyncio.CancelledError)), repr(end)
            return
        for each in end:
            if each.made is not None:
                with pytest.raises(SandboxUnavailable):
                    await each.made.run("0")

    asyncio.run(closed())
    after = len(_nameless()), descendants(os.getpid()), len(os.listdir("/proc/self/fd"))
    assert after == before


_ENGINE = """
import asyncio, sys
from cellwall import Engine, EngineSettings
async def main():
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    source = await engine.create_sandbox()
    await source.run("x = 1; big = bytearray(b'x' * (8 << 20))")
    print("ready", flush=True)
    while True:
        for each in await source.fork(3):
            await each.sandbox.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(6))
def test_killed_engine_leaves_nothing_after_the_next_sweep(arena: Arena, seed: int) -> None:
    """SIGKILL at any step of a fork: processes end by themselves, the rest with the next sweep."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{TESTS}"}
    words = [sys.executable, "-c", _ENGINE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(random.Random(seed).uniform(0, 1))
            below = descendants(child.pid)
            assert below  # the control: there is something to leave
            assert control_groups(child.pid)
        finally:
            child.kill()
    arena.do(arena.engine.sweep())
    deadline = time.monotonic() + 10
    while (left := _alive(below)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == set()
    assert control_groups(child.pid) == set()


def _alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}/exe").is_symlink() and _state(pid) != "Z"}


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "Z"
    return text[text.rindex(")") + 2]
