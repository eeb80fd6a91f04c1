"""Copies of a session with threads: refused, or made without them, and never one that hangs.

Each program goes on in the source with all of its threads, and in the copy without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.model.errors import Conflict, UsageError
from kit.arena import Arena

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

BEGIN = """
import threading, time
def begin(work, name="worker"):
    threading.Thread(target=work, name=name, daemon=True).start()
def until(is_true):
    while not is_true():
        time.sleep(0.005)
"""
ALIVE = "print(sorted(t.name for t in threading.enumerate() if t.name == 'worker'))"
COUNTS = """
beats = [0]
def beat():
    while True:
        beats[0] += 1
        time.sleep(0.001)
begin(beat)
until(lambda: beats[0] > 3)
"""
GOES_ON = "before = beats[0]; until(lambda: beats[0] > before + 3); print('goes on')"
STANDS = "before = beats[0]; time.sleep(0.1); print(beats[0] - before)"


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code, timeout=20)
    assert done.verdict.value == "ok", (code, done.stderr)
    return done.stdout.strip()


async def _copy(source: AsyncSandbox) -> tuple[AsyncSandbox, tuple[str, ...]]:
    (fork,) = await asyncio.wait_for(source.fork(threads="drop"), 60)
    return fork.sandbox, fork.left_behind


WORK = {
    "sleeps": ("begin(lambda: time.sleep(1000))", "print(6 * 7)", "42"),
    "waits": (
        "import queue; q = queue.Queue(); seen = []\n"
        "begin(lambda: [seen.append(q.get()) for _ in range(9)])",
        "q.put(1); time.sleep(0.01); print(q.qsize(), seen)",
        "1 []",
    ),
    "prints": (
        "def say():\n  while True: print('x' * 9, flush=True); time.sleep(0)\nbegin(say)",
        "print('', flush=True); print('end')",
        "end",
    ),
    "writes": (
        "f = open('log', 'w')\ndef put():\n"
        "  while True: f.seek(0); f.write('y' * 5000)\n"
        "begin(put)",
        "f.write('z'); f.close(); print('end')",
        "end",
    ),
    "allocates": (
        "kept = []\ndef take():\n"
        "  while True: kept[:] = [bytearray(n * 99) for n in range(99)]\n"
        "begin(take)\nbegin(take)",
        "more = [bytearray(n * 9) for n in range(999)]; print(len(more))",
        "999",
    ),
    "imports": (
        "import sys, importlib\ndef load():\n"
        "  while True:\n"
        "    import colorsys; sys.modules.pop('colorsys', None); time.sleep(0.01)\n"
        "begin(load)",
        "import colorsys; print(colorsys.__name__)",
        "colorsys",
    ),
    "locks for a moment": (
        "lock = threading.Lock()\ndef work():\n"
        "  while True:\n    with lock: time.sleep(0.002)\n    time.sleep(0.002)\nbegin(work)",
        "with lock: print('got it')",
        "got it",
    ),
    "logs": (
        "import logging; logging.basicConfig(filename='l')\n"
        "def log():\n  while True: logging.error('x')\nbegin(log)",
        "logging.error('y'); print('end')",
        "end",
    ),
}


@pytest.mark.parametrize("kind", WORK)
def test_copy_goes_on_without_a_thread_that(arena: Arena, kind: str) -> None:
    """Three times: what a thread holds at a moment is chance."""
    begin, then, expected = WORK[kind]

    async def forked() -> None:
        # What a thread may print in a cell's twenty seconds, however fast it prints.
        async with arena.sandbox(limits={"output_kb": 65_536}) as source:
            await _said(source, f"{BEGIN}\n{COUNTS}\n{begin}\ntime.sleep(0.05)")
            threads = 1 + begin.count("begin(")
            for _ in range(3):
                copy, left = await _copy(source)
                assert [each for each in left if "worker" in each] == [
                    "thread 'worker' (daemon)"
                ] * threads
                assert (await _said(copy, then)).endswith(expected)
                assert await _said(copy, STANDS + "\n" + ALIVE) == "0\n[]"
                assert "goes on" in await _said(source, GOES_ON)
                await copy.close()

    arena.do(forked())


def test_threads_are_refused_unless_they_may_be_dropped(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, BEGIN + COUNTS)
            for call in (source.fork(), source.snapshot(), source.fork(threads="refuse")):
                with pytest.raises(Conflict, match=r"1 threads beside its own.*threads='drop'"):
                    await call
            with pytest.raises(UsageError, match="threads"):
                await source.fork(threads="keep")  # type: ignore[arg-type]  # a caller's mistake
            kept = await source.snapshot(threads="drop")
            assert kept.left_behind == ("thread 'worker' (daemon)",)
            restored = await arena.engine.copies.restore(kept.id, "")
            assert await _said(restored, STANDS) == "0"
            await restored.close()
            assert await _said(source, GOES_ON) == "goes on"

    arena.do(forked())


HELD = {
    "a lock": "lock = threading.Lock()\ndef hold():\n  with lock: time.sleep(1000)\nbegin(hold)",
    "a lock of its own": (
        "lock = threading.RLock()\ndef hold():\n  with lock: time.sleep(1000)\nbegin(hold)"
    ),
    "an import": (
        "import sys; open('slow.py', 'w').write('import time; time.sleep(1000)')\n"
        "sys.path.insert(0, '')\ndef load():\n  import slow\nbegin(load)"
    ),
    "a file": (
        "import os; r, w = os.pipe(); f = os.fdopen(w, 'wb')\n"
        "import _thread; _thread.start_new_thread(lambda: f.write(b'x' * (1 << 20)), ())"
    ),
}


@pytest.mark.parametrize("kind", HELD)
def test_copy_that_would_wait_for_ever_is_refused(arena: Arena, kind: str) -> None:
    """And the control: without what the thread holds the same session is copied."""

    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, BEGIN + COUNTS)
            copy, _left = await _copy(source)
            await copy.close()
            await _said(source, HELD[kind] + "\ntime.sleep(0.1)")
            with pytest.raises(Conflict, match=f"holds {kind.partition(' of')[0]}"):
                await _copy(source)
            assert await _said(source, GOES_ON) == "goes on"

    arena.do(forked())


def test_executors_of_a_copy_get_threads_of_its_own(arena: Arena) -> None:
    """And what a thread had begun ends with an error, in the copy only."""
    begin = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
print(pool.submit(pow, 2, 5).result(), await asyncio.to_thread(pow, 2, 6))
is_open = threading.Event()
begun, waiting = pool.submit(is_open.wait), pool.submit(pow, 2, 7)
"""
    then = "print(pool.submit(pow, 2, 8).result(), await asyncio.to_thread(pow, 2, 9))"
    lost = "print(repr(begun.exception(timeout=5))[:29], waiting.cancelled())"

    async def forked() -> None:
        async with arena.sandbox() as source:
            assert await _said(source, BEGIN + begin) == "32 64"
            copy, left = await _copy(source)
            assert len(left) == 2, left
            assert await _said(copy, lost) == "RuntimeError('the thread that True"
            assert await _said(copy, then) == "256 512"
            await copy.close()
            after = "is_open.set(); print(begun.result(), waiting.result())"
            assert await _said(source, after) == "True 128"
            assert await _said(source, then) == "256 512"

    arena.do(forked())


def test_threads_that_compute_in_a_library_are_left_behind(arena: Arena) -> None:
    begin = """
import numpy as np
a = np.random.default_rng(1).random((300, 300))
def work():
    while True:
        a @ a
begin(work)
"""

    async def forked() -> None:
        async with arena.sandbox(template="data", limits={"memory_mb": 1024}) as source:
            await _said(source, BEGIN + COUNTS + begin + "\ntime.sleep(0.1)")
            for _ in range(3):
                copy, left = await _copy(source)
                assert "thread 'worker' (daemon)" in left
                assert await _said(copy, "print((a @ a).shape)") == "(300, 300)"
                assert await _said(source, GOES_ON + "\n(a @ a).shape") == "goes on"
                await copy.close()

    arena.do(forked())


def test_exact_copy_draws_what_its_source_draws_without_threads(arena: Arena) -> None:
    """A handler of `random` seeds it at every fork of a process; an exact copy must not have it."""

    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, BEGIN + COUNTS + "import random; random.seed(5)")
            (fork,) = await source.fork(threads="drop", reseed=False)
            (new,) = await source.fork(threads="drop")
            drawn = [
                await _said(each, "print(random.random())")
                for each in (source, fork.sandbox, new.sandbox)
            ]
            assert drawn[0] == drawn[1] != drawn[2]
            await fork.sandbox.close()
            await new.sandbox.close()

    arena.do(forked())


def test_handlers_at_a_fork_that_never_end_are_refused(arena: Arena, tmp_path: Path) -> None:
    """The session's own code runs at a fork; the copy is refused in time, and nothing is left."""
    bad = "import os; os.register_at_fork(after_in_child=lambda: time.sleep(1000))"

    async def forked() -> None:
        async with arena.sandbox() as source:
            count = "import glob; print(len(glob.glob('/proc/[0-9]*')))"
            before = await _said(source, BEGIN + COUNTS + bad + "\n" + count)
            with pytest.raises(Conflict, match="does not end"):
                await _copy(source)
            assert await _said(source, GOES_ON) == "goes on"
            assert await _said(source, count) == before

    arena.do(forked())
