"""Copies of whole gVisor sandboxes: every process goes on in the source and in each copy.

What goes on is asked from inside, each by an answer that a fresh sandbox could not give; the
confinement of a copy and what is left of it are read on the host.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.model.errors import CapacityError, Conflict, HostUnsupported, SandboxBroken
from cellwall.runtimes.copies import CopiesSessions
from cellwall.runtimes.gvisor import binary
from cellwall.runtimes.shared.saved_tree import TreeFiles
from kit.arena import Arena

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

_BEGIN = """
import os, random, subprocess, sys, threading, time, urllib.request
ticks = [0, 0]
def tick(which):
    while True:
        ticks[which] += 1
        time.sleep(0.01)
for which in (0, 1):
    threading.Thread(target=tick, args=(which,), daemon=True).start()
words = [sys.executable, "-m", "http.server", "8123", "--bind", "127.0.0.1"]
server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
note = open("note.txt", "w+")
note.write("before")
note.flush()
random.seed(1)
def served():
    return urllib.request.urlopen("http://127.0.0.1:8123/note.txt").read().decode()
for _ in range(100):
    try:
        print(served())
        break
    except OSError:
        time.sleep(0.1)
"""
_TICKED = """
before = list(ticks)
for _ in range(200):
    time.sleep(0.1)
    if all(b > a for a, b in zip(before, ticks)):
        break
print(all(b > a for a, b in zip(before, ticks)))
"""
_VARIABLES = "import os; print(sorted(os.environ.items()))"
_BEATS = "while :; do echo . >> beats; sleep 0.05; done"
_BEAT = """
size = os.stat('beats').st_size
for _ in range(200):
    time.sleep(0.1)
    if os.stat('beats').st_size > size:
        break
print(os.stat('beats').st_size > size)
"""


async def _said(sandbox: AsyncSandbox, code: str, language: str = "python") -> str:
    done = await sandbox.run(code, language, timeout=60)
    assert done.verdict.value == "ok", (done.stderr, done.error)
    return done.stdout.strip()


async def _copies(source: AsyncSandbox, count: int = 1, **options: Any) -> list[AsyncSandbox]:
    return [each.sandbox for each in await source.fork(count, **options)]


def test_threads_services_commands_and_contexts_go_on_in_every_branch(
    gvisor_arena: Arena,
) -> None:
    async def forked() -> None:
        async with gvisor_arena.sandbox(limits={"processes": 60, "memory_mb": 512}) as source:
            assert await _said(source, _BEGIN) == "before"
            assert await _said(source, "kept=12; echo $kept", "bash") == "12"
            command = await source.commands.start(_BEATS)
            forks = await source.fork(3, scope="tree")
            assert {each.carries for each in forks} == {"tree"}
            assert forks[0].left_behind == (f"output of process {command.pid}",)
            branches = [source, *(each.sandbox for each in forks)]
            for number, each in enumerate(branches):
                assert await _said(each, _TICKED) == "True"
                assert await _said(
                    each, f"note.write(str({number})); note.flush(); print(served())"
                )
                assert await _said(each, "echo $kept; kept=13", "bash") == "12"
                assert await _said(each, _BEAT) == "True"
            shared = [await _said(each, "print(random.random())") for each in branches]
            assert len(set(shared)) == len(branches)
            for number, each in enumerate(branches):
                assert await _said(each, "print(served())") == f"before{number}"
            for each in branches[1:]:
                await each.close()
            assert (await source.commands.run("echo on")).stdout == "on\n"

    gvisor_arena.do(forked())


def test_copy_is_confined_as_its_source(gvisor_arena: Arena) -> None:
    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            fresh = dict(source.posture)
            variables = await _said(source, _VARIABLES)
            (copy,) = await _copies(source)
            assert await _said(copy, _VARIABLES) == variables
            for each in (copy, source):
                assert _facts(each.posture) == _facts(fresh)
                assert each.isolation == source.isolation
            await copy.close()

    gvisor_arena.do(forked())


def _facts(posture: Any) -> dict[str, Any]:
    """A posture without the numbers of namespaces, which are each sandbox's own."""
    return {
        name: {key: value for key, value in facts.items() if key != "namespaces"}
        for name, facts in posture.items()
    }


def test_snapshot_is_restored_any_number_of_times_and_forked_again(gvisor_arena: Arena) -> None:
    async def kept() -> None:
        copies = gvisor_arena.engine.copies
        async with gvisor_arena.sandbox() as source:
            await _said(source, "x = 1; open('f', 'w').write('kept')")
            made = await source.snapshot("whole")
            assert made.carries == "tree"
            await _said(source, "x = 2; open('f', 'w').write('changed')")
        for _ in range(2):
            restored = await copies.restore("whole", "", reseed=False)
            assert await _said(restored, "print(x, open('f').read())") == "1 kept"
            await _said(restored, "x = 3")
            (again,) = await _copies(restored)
            assert await _said(again, "print(x)") == "3"
            await again.close()
            await restored.close()
        copies.delete(made.id, "")

    gvisor_arena.do(kept())


def test_files_of_a_copy_are_those_of_its_source(gvisor_arena: Arena) -> None:
    """Holes, hard links, links, times and modes; and none that a copy changes are another's."""
    make = (
        "import os\n"
        "open('plain', 'w').write('a'); os.chmod('plain', 0o640); os.utime('plain', (1, 2.5))\n"
        "os.link('plain', 'twin'); os.symlink('plain', 'link'); os.mkdir('d', 0o700)\n"
        "f = open('d/holes', 'wb'); f.seek(1 << 24); f.write(b'x'); f.close()\n"
        "open('na\\nme', 'w').close(); open('/dev/shm/seen', 'w').write('shm')\n"
    )
    show = (
        "s = os.stat('plain'); h = os.stat('d/holes')\n"
        "print(oct(s.st_mode), s.st_mtime, s.st_nlink, os.readlink('link'), h.st_size, "
        "h.st_blocks < 1000, sorted(os.listdir('.')), open('/dev/shm/seen').read())"
    )

    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            await _said(source, make)
            before = await _said(source, show)
            (copy,) = await _copies(source)
            assert await _said(copy, show) == before
            assert await _said(source, show) == before
            await _said(copy, "open('plain', 'a').write('b')")
            assert await _said(source, "print(open('plain').read())") == "a"
            assert await _said(copy, "print(open('twin').read())") == "ab"
            await copy.close()

    gvisor_arena.do(forked())


def test_limits_of_a_copy_hold(gvisor_arena: Arena) -> None:
    async def forked() -> None:
        async with gvisor_arena.sandbox(limits={"memory_mb": 128, "disk_mb": 16}) as source:
            (copy,) = await _copies(source)
            done = await copy.run("open('f', 'wb').write(bytes(32 << 20))")
            assert "No space left" in done.stderr
            done = await copy.run("b = bytearray(b'x' * (512 << 20))", timeout=60)
            assert done.verdict.value == "memory"
            await copy.close()
            assert await _said(source, "print(6 * 7)") == "42"

    gvisor_arena.do(forked())


def test_copies_leave_nothing(gvisor_arena: Arena) -> None:
    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            for _ in range(2):
                for each in await _copies(source, 2):
                    await each.close()
            kept = await source.snapshot()
            gvisor_arena.engine.copies.delete(kept.id, "")

    with gvisor_arena.leaving_nothing():
        gvisor_arena.do(forked())


def test_source_that_is_closed_in_a_fork_ends(gvisor_arena: Arena) -> None:
    async def forked() -> None:
        for delay in (0.0, 0.1, 0.4, 1.0, 2.0):
            async with gvisor_arena.sandbox() as source:
                await _said(source, "x = 1")
                forking = asyncio.ensure_future(source.fork())
                await asyncio.sleep(delay)
                await source.close()
                made = (await asyncio.gather(forking, return_exceptions=True))[0]
                for each in made if isinstance(made, list) else ():
                    if each.made is not None:
                        await each.made.close()

    with gvisor_arena.leaving_nothing():
        gvisor_arena.do(forked())


def test_caller_that_goes_away_leaves_the_source_alive(gvisor_arena: Arena) -> None:
    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            await _said(source, "x = 1")
            for delay in (0.05, 0.5):
                forking = asyncio.ensure_future(source.fork())
                await asyncio.sleep(delay)
                forking.cancel()
                await asyncio.gather(forking, return_exceptions=True)
                assert await _said(source, "print(x)") == "1"

    with gvisor_arena.leaving_nothing():
        gvisor_arena.do(forked())


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        "f = open('gone', 'w+'); f.write('x'); f.flush(); os.unlink('gone')",
        "import mmap; f = open('gone', 'wb+'); f.write(bytes(9)); f.flush();"
        "m = mmap.mmap(f.fileno(), 9); f.close(); os.unlink('gone')",
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    ],
    ids=["open", "mapped", "directory"],
)
def test_removed_file_in_use_is_refused_by_name(gvisor_arena: Arena, use: str) -> None:
    """`runsc` ends in a trace at one; the control is the same without the removal."""

    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            await _said(source, "import os; open('x (deleted)', 'w').close()")
            await _said(source, "named = open('x (deleted)')\n" + use)
            with pytest.raises(Conflict, match=r"was removed: /home/user/gone"):
                await source.fork()
            assert await _said(source, "print(6 * 7)") == "42"
        async with gvisor_arena.sandbox() as source:
            await _said(source, "import os; named = open('x (deleted)', 'w')")
            await _said(source, use.rpartition("; " if "mkdir" in use else ";")[0])
            for each in await _copies(source):
                await each.close()

    gvisor_arena.do(forked())


def test_image_that_was_cut_is_refused(gvisor_arena: Arena) -> None:
    """A copy of half an image is an error, and its source goes on."""

    async def forked() -> None:
        copies = gvisor_arena.engine.copies
        async with gvisor_arena.sandbox() as source:
            parts = 1
            while parts:
                made = await source.snapshot("cut")
                written = copies._find("cut", "").written
                assert written is not None
                files = written.files
                assert isinstance(files, TreeFiles)
                image = files.image[-parts]
                os.truncate(image, os.fstat(image).st_size // 2)
                with pytest.raises(SandboxBroken, match="gVisor: start sandbox") as caught:
                    await copies.restore("cut", "")
                assert caught.value.remedy
                copies.delete(made.id, "")
                parts = 0 if parts == len(files.image) else parts + 1
            assert await _said(source, "print(6 * 7)") == "42"

    with gvisor_arena.leaving_nothing():
        gvisor_arena.do(forked())


def test_tree_that_is_asked_of_a_jail_is_refused_by_name(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            for asked in (source.fork(scope="tree"), source.snapshot(scope="tree")):
                with pytest.raises(HostUnsupported, match="not the tree of its") as caught:
                    await asked
                assert "gvisor" in str(caught.value.remedy)
            (fork,) = await source.fork(scope="session")  # the control
            assert fork.carries == "session"
            await fork.sandbox.close()

    arena.do(forked())


def test_copy_that_has_no_room_stops_nothing() -> None:
    made = Arena(
        lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0, snapshots_mb=8)),
        runtime="gvisor",
        isolation="kernel",
    )

    async def kept() -> None:
        async with made.sandbox() as source:
            await _said(source, "x = 1")
            with pytest.raises(CapacityError, match=r"no room for \d+ MiB"):
                await source.snapshot()
            assert await _said(source, "print(x)") == "1"

    try:
        made.do(kept())
    finally:
        made.close()


def test_network_is_copied_or_refused_by_name(gvisor_arena: Arena) -> None:
    """A `runsc` that ends what it writes down cannot start a sandbox with a network again."""
    stays = binary.leaves_running(binary.inspect(binary.find()))

    async def forked() -> None:
        async with gvisor_arena.sandbox(network=["example.org"]) as source:
            await _said(source, "x = 1")
            if stays:
                (copy,) = await _copies(source)
                assert await _said(copy, "print(x)") == "1"
                await copy.close()
            else:
                with pytest.raises(Conflict, match="with a network"):
                    await source.fork()
            assert await _said(source, "print(x)") == "1"

    gvisor_arena.do(forked())


def test_pool_parks_no_copy() -> None:
    """What a pool starts ahead has nothing of a copy's source, whatever was claimed before."""
    made = Arena(
        lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=2)),
        runtime="gvisor",
        isolation="kernel",
    )

    async def forked() -> None:
        async with made.sandbox() as source:
            await _said(source, "secret = 'mine'")
            for each in await _copies(source, 2):
                assert await _said(each, "print(secret)") == "mine"
                await each.close()
            await made.engine.pool.wait_full()
            for _ in range(3):
                async with made.sandbox() as other:
                    assert await _said(other, "print('secret' in globals())") == "False"

    try:
        made.do(forked())
    finally:
        made.close()


def test_copies_that_may_be_on_no_disk_are_refused(gvisor_arena: Arena) -> None:
    """Where snapshots are encrypted: runsc writes to a disk as it is."""

    async def refused() -> None:
        runtime = await gvisor_arena.engine.runtime("kernel", "gvisor")
        assert isinstance(runtime, CopiesSessions)
        with pytest.raises(HostUnsupported, match="encrypted") as caught:
            runtime.copier.new_files(None)
        assert "jail" in (caught.value.remedy or "")

    gvisor_arena.do(refused())
