"""What a copy has of its source, what it has not, and what is refused, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings, Secret
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    HostUnsupported,
    NotFound,
    SandboxUnavailable,
    UsageError,
)
from kit.arena import Arena
from kit.images.host_tree import image
from kit.images.volume_walls import Wall

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("rehearsed")]


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))

    async def forked() -> None:
        """Have the base made, which a fork-server keeps."""
        async with made.sandbox() as source:
            for each in await _copies(source):
                await each.close()

    made.do(forked())
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code)
    assert done.verdict.value == "ok", done.stderr
    return done.stdout.strip()


async def _copies(source: AsyncSandbox, count: int = 1, **options: Any) -> list[AsyncSandbox]:
    return [each.sandbox for each in await source.fork(count, **options)]


async def _refused(source: AsyncSandbox, error: type[CellwallError]) -> CellwallError:
    """The error of a fork; the source must go on after it."""
    with pytest.raises(error) as caught:
        await source.fork()
    assert await _said(source, "print(6 * 7)") == "42"
    return caught.value


# -- what a copy has -------------------------------------------------------------------------------


def test_copies_of_copies_have_what_none_of_them_has_read(arena: Arena) -> None:
    """The second and later ones have memory that is mapped from an image, and not read yet."""

    async def forked() -> None:
        async with arena.sandbox(template="data", limits={"memory_mb": 512}) as source:
            await _said(source, "import numpy as np; a = np.arange(5_000_000); b = [0] * 99999")
            made = [source]
            for _ in range(5):
                made += await _copies(made[-1])
                await made[-2].close()
            assert await _said(made[-1], "print(a.sum(), len(b))") == "12499997500000 99999"
            await made[-1].close()

    arena.do(forked())


def test_generators_that_programs_share_are_seeded_anew(arena: Arena) -> None:
    """And those that a program has made itself go on; without `reseed` all of them do."""
    begin = "import random, uuid, numpy as np; mine = np.random.default_rng(1), random.Random(1)"
    shared = "print(random.random(), np.random.random())"
    own = "print(mine[0].random(), mine[1].random())"

    async def forked() -> None:
        async with arena.sandbox(template="data", limits={"memory_mb": 512}) as source:
            await _said(source, begin)
            seeded = await _copies(source, 3)
            exact = await _copies(source, 2, reseed=False)
            theirs = [await _said(each, shared) for each in (source, *seeded)]
            assert len(set(theirs)) == len(theirs)
            assert {await _said(each, shared) for each in exact} == {theirs[0]}
            assert len({await _said(each, own) for each in (source, *seeded, *exact)}) == 1
            for each in (*seeded, *exact):
                await each.close()

    arena.do(forked())


def test_snapshot_is_restored_any_number_of_times(arena: Arena) -> None:
    async def kept() -> None:
        copies = arena.engine.copies
        async with arena.sandbox() as source:
            await _said(source, "x = 1; open('f', 'w').write('kept')")
            made = await source.snapshot("first")
            await _said(source, "x = 2; open('f', 'w').write('changed')")
        assert [each.id for each in copies.snapshots("")] == [made.id]
        for wanted in (made.id, "first"):
            restored = await copies.restore(wanted, "")
            assert await _said(restored, "print(x, open('f').read())") == "1 kept"
            await restored.close()
        with pytest.raises(NotFound):
            await copies.restore("first", "another tenant")
        copies.delete("first", "")
        with pytest.raises(NotFound):
            await copies.restore(made.id, "")

    arena.do(kept())


def test_snapshot_that_has_no_room_is_refused() -> None:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0, snapshots_mb=8)))

    async def kept() -> None:
        async with made.sandbox() as source:
            await _said(source, "big = bytearray(b'x' * (20 << 20))")
            with pytest.raises(CapacityError, match=r"no room after \d+ MiB"):
                await source.snapshot()
            await _refused(source, CapacityError)
            await _said(source, "del big")
            assert (await source.snapshot()).memory_bytes < 8 << 20  # the control: room came back

    try:
        made.do(kept())
        assert len(made.engine.copies.snapshots("")) == 1
    finally:
        made.close()


def test_fork_waits_for_its_turn(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, "import time")
            begun = asyncio.Event()
            code = "print(1, flush=True); time.sleep(0.5); x = 'late'"
            cell = asyncio.ensure_future(source.run(code, on_event=lambda _: begun.set()))
            await begun.wait()
            (copy,) = await _copies(source)
            assert cell.done()
            assert await _said(copy, "print(x)") == "late"
            await copy.close()

    arena.do(forked())


def test_paused_sandbox_is_resumed_by_a_fork_or_refuses_it(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, "x = 'paused'")
            await source.pause()
            (copy,) = await _copies(source)
            assert (source.status, await _said(copy, "print(x)")) == ("running", "paused")
            await copy.close()
        async with arena.sandbox(resume="manual") as source:
            await source.pause()
            with pytest.raises(Conflict, match="it is paused"):
                await source.snapshot()
            assert source.status == "paused"
            await source.resume()
            arena.engine.copies.delete((await source.snapshot()).id, "")

    arena.do(forked())


def test_rollback_and_fork_exclude_each_other(arena: Arena) -> None:
    async def both() -> None:
        async with arena.sandbox() as source:
            await source.files.write("note.txt", "kept")
            kept = await source.files.checkpoint()
            source.live.is_restoring = True
            with pytest.raises(Conflict, match="is being rolled back"):
                await source.fork()
            source.live.is_restoring = False
            with source.live.being_copied(), pytest.raises(Conflict, match="is being copied"):
                await source.files.rollback(kept.id)
            await source.files.rollback(kept.id)  # the control
            for copy in await _copies(source):
                await copy.close()

    arena.do(both())


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), 1e9])
def test_end_of_a_snapshot_is_checked(arena: Arena, seconds: float) -> None:
    async def kept() -> None:
        async with arena.sandbox() as source:
            with pytest.raises(UsageError, match="out of bounds"):
                await source.snapshot(expires_s=seconds)

    arena.do(kept())


@pytest.mark.parametrize("count", [0, -1, 257, True, 1.5, "2"])
def test_number_of_copies_is_checked(arena: Arena, count: Any) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            with pytest.raises(UsageError, match="number of copies"):
                await source.fork(count)

    arena.do(forked())


# -- what is refused -------------------------------------------------------------------------------

REFUSED = {
    "threads": (
        "import threading; e = threading.Event()\nt = threading.Thread(target=e.wait); t.start()",
        "1 threads beside its own",
        "e.set(); t.join()",
    ),
    "shared memory": (
        "import mmap; m = mmap.mmap(-1, 4096)",
        "shares memory",
        "m.close()",
    ),
    "shared file": (
        "import mmap; f = open('f', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096)",
        "shares memory",
        "m.close(); f.close()",
    ),
    "removed file": (
        "import os; f = open('gone', 'w'); os.unlink('gone')",
        "open file that was removed: /home/user/gone",
        "f.close()",
    ),
    "nameless file": (
        "import tempfile; f = tempfile.TemporaryFile()",
        "open file that was removed",
        "f.close()",
    ),
    "high descriptor": (
        "import os, resource; n = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "os.dup2(os.open('/dev/null', 0), n - 1)",
        "is one of the highest",
        "os.close(n - 1)",
    ),
}
"""What a session has → how it is refused, and what it does about it."""


@pytest.mark.parametrize("has", REFUSED)
def test_session_that_cannot_be_copied_is_told_why(arena: Arena, has: str) -> None:
    """And can be, once it has that no more."""
    begin, reason, end = REFUSED[has]

    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, begin)
            error = await _refused(source, Conflict)
            assert reason in str(error), error
            assert error.remedy
            await _said(source, end)
            (copy,) = await _copies(source)
            assert await _said(copy, "print('well')") == "well"
            await copy.close()

    with arena.leaving_nothing():
        arena.do(forked())


def test_session_that_was_refused_gets_its_next_cell(arena: Arena) -> None:
    """At once: it stands still when it is refused, and goes on before it gets one."""

    async def refused() -> None:
        async with arena.sandbox() as source:
            await _said(source, "import mmap; m = mmap.mmap(-1, 4096)")
            for _ in range(40):
                await _refused(source, Conflict)

    arena.do(refused())


def test_start_by_exec_is_refused(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox(start="exec") as source:
            error = await _refused(source, Conflict)
            assert "share no layout" in str(error)

    arena.do(forked())


def test_secrets_are_refused(arena: Arena) -> None:
    async def forked() -> None:
        secret = Secret("KEY", "a-value-of-mine", hosts=["example.com"])
        async with arena.sandbox(network=["example.com"], secrets=[secret]) as source:
            error = await _refused(source, Conflict)
            assert "it has secrets" in str(error)

    arena.do(forked())


def test_image_is_refused(arena: Arena, image_tree: Path) -> None:
    async def forked() -> None:
        async with arena.sandbox(image=image(image_tree), limits={"memory_mb": 256}) as source:
            error = await _refused(source, Conflict)
            assert "it is on an image" in str(error)

    arena.do(forked())


def test_volumes_are_refused(tmp_path: Path) -> None:
    wall = Wall("jail", None, TemplateStore(state_dir()), tmp_path)
    wall.store.create("data", 16)

    async def forked(engine: Engine) -> None:
        async with wall.sandbox(engine, {"data": "/data"}) as source:
            error = await _refused(source, Conflict)
            assert "it has volumes" in str(error)

    wall.inside(forked)
    wall.store.remove("data")


def test_source_that_has_ended_is_told(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            await source.close()
            with pytest.raises(SandboxUnavailable):
                await source.fork()

    arena.do(forked())


def _elsewhere(request: pytest.FixtureRequest, runtime: str) -> Arena:
    if runtime == "process":
        settings = EngineSettings(pool_min=0, pool_max=0, allow_process=True)
        return Arena(lambda: Engine(settings=settings), runtime="process", isolation="process")
    state, templates = request.getfixturevalue("docker_ground")
    settings = EngineSettings(pool_min=0, pool_max=0)
    return Arena(lambda: Engine(state, settings, templates=templates), runtime="docker")


@pytest.mark.parametrize("runtime", ["process", "docker"])
def test_other_runtime_says_that_it_cannot(request: pytest.FixtureRequest, runtime: str) -> None:
    there = _elsewhere(request, runtime)

    async def forked() -> None:
        async with there.sandbox() as source:
            error = await _refused(source, HostUnsupported)
            assert repr(runtime) in str(error)
            assert error.remedy == "use runtime 'jail' or 'gvisor'; Docker can only pause one"
            with pytest.raises(HostUnsupported):
                await source.snapshot()

    try:
        there.do(forked())
    finally:
        there.close()


# -- what is left behind ---------------------------------------------------------------------------

LEFT = {
    "child": ("import subprocess; p = subprocess.Popen(['sleep', '60'])", "other processes: 1"),
    "socket": ("import socket; s = socket.socket()", "descriptor 3 (socket)"),
    "pair": ("import socket; s = socket.socketpair()", "(socket)"),
    "pipe": ("import os; r, w = os.pipe()", "(pipe)"),
    "event": ("import select; e = select.epoll()", "(anon_inode)"),
}


@pytest.mark.parametrize("has", LEFT)
def test_what_a_copy_has_not_is_listed(arena: Arena, has: str) -> None:
    begin, told = LEFT[has]

    async def forked() -> None:
        async with arena.sandbox() as source:
            (nothing,) = await source.fork()
            assert nothing.left_behind == ()
            await nothing.sandbox.close()
            await _said(source, begin)
            (fork,) = await source.fork()
            assert any(told in each for each in fork.left_behind), fork.left_behind
            kept = await source.snapshot()
            assert kept.left_behind == fork.left_behind
            arena.engine.copies.delete(kept.id, "")
            assert await _said(fork.sandbox, "print('well')") == "well"
            await fork.sandbox.close()

    arena.do(forked())


def test_what_is_left_behind_closes_nothing_of_the_copy_s(arena: Arena) -> None:
    """Numbers of descriptors that a copy has not stay taken until their owner closes them."""
    begin = """
import socket, os, select, asyncio, gc
sockets = [socket.socket() for _ in range(4)]
pipe, epoll = os.pipe(), select.epoll()
async def waits(): await asyncio.sleep(3600)
task = asyncio.get_running_loop().create_task(waits())
await asyncio.sleep(0)
"""
    end = """
files = [open(f'f{n}', 'w') for n in range(9)]
del sockets; epoll.close(); [os.close(n) for n in pipe]; gc.collect()
for n, f in enumerate(files): f.write(str(n)); f.close()
print([open(f'f{n}').read() for n in range(9)], task.done())
"""

    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, begin)
            copies = await _copies(source, 2)
            for each in copies:
                assert await _said(each, end) == f"{[str(n) for n in range(9)]} False"
                assert await _said(each, "print(task.done())") == "False"
                await each.close()

    arena.do(forked())


def test_database_in_a_file_is_opened_again_by_a_copy(arena: Arena) -> None:
    """SQLite remembers the number of its file, which is another one's in a copy: it is told."""
    begin = (
        "import sqlite3; d = sqlite3.connect('x.db'); d.execute('create table t (a)'); d.commit()"
    )

    async def forked() -> None:
        async with arena.sandbox() as source:
            await _said(source, begin)
            (copy,) = await _copies(source)
            again = "d = sqlite3.connect('x.db'); d.execute('insert into t values (1)'); d.commit()"
            await _said(copy, again)
            assert await _said(copy, "print(d.execute('select * from t').fetchall())") == "[(1,)]"
            assert await _said(source, "print(d.execute('select * from t').fetchall())") == "[]"
            await copy.close()

    arena.do(forked())


def test_other_contexts_and_commands_are_listed(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            await source.contexts.create("second")
            await source.commands.start(["sleep", "60"])
            (fork,) = await source.fork()
            assert "context 'second'" in fork.left_behind
            assert any("other processes" in each for each in fork.left_behind)
            await fork.sandbox.close()

    arena.do(forked())
