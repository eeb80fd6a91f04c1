"""A copy is confined as any other sandbox, and what it does stays in it.

Its posture is compared with that of a fresh sandbox of the same spec, field by field. What is
written in a copy is looked for in its source, its siblings and the image, by the same look that
finds it where it was written. Hostile sessions use what they get while they are copied: the image,
the base of the fork-server, and the pipe to which they write.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.state.copies import Written
from cellwall.jail.inspect import posture
from cellwall.runtimes.jail import copying
from cellwall.runtimes.jail.sandbox import JailSandbox
from kit.arena import Arena, descendants
from kit.copies.hostile import KEEPS_FILES, LOCKS

pytestmark = [pytest.mark.attack, pytest.mark.root]
LARGE = 200 << 20


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))

    async def first() -> None:  # the base of the fork-server, which stays, exists from here on
        async with made.sandbox() as source, _copied(source):
            pass

    made.do(first())
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code)
    assert done.verdict.value == "ok", (done.outcome, done.stderr)
    return done.stdout.strip()


@asynccontextmanager
async def _copied(
    source: AsyncSandbox, count: int = 1, **options: Any
) -> AsyncIterator[list[AsyncSandbox]]:
    forks = await source.fork(count, **options)
    try:
        yield [each.sandbox for each in forks]
    finally:
        for each in forks:
            if each.made is not None:
                await each.made.close()


# -- posture ---------------------------------------------------------------------------------------

_OF_ONE_PROCESS = re.compile(
    r"^(Pid|Tgid|PPid|NSpid|NStgid|NSpgid|NSsid|Ngid|Vm\w+|Rss\w+|HugetlbPages|\w+_ctxt_switches|"
    r"FDSize|Cpus_allowed\w*|Mems_allowed\w*|THP_enabled|untag_mask):",
)
"""Lines of /proc/PID/status that are another number in each process, or of the moment."""
_UID = re.compile(r"(?<!\d)[14]\d{9}(?!\d)")


def _processes(sandbox: AsyncSandbox) -> list[int]:
    """Init and the context, in this order."""
    jail = sandbox.live.runtime_sandbox
    assert isinstance(jail, JailSandbox)
    return [jail.pid, *sorted(descendants(jail.pid))]


def _normal(facts: dict[str, object]) -> dict[str, str]:
    """The facts without ids of this sandbox alone: of its user, namespaces, cgroup and mounts."""
    return {key: _without_ids(repr(value)) for key, value in facts.items()}


def _without_ids(text: str) -> str:
    text = _UID.sub("ID", text)
    text = re.sub(r"\[\d+\]", "[N]", text)
    text = re.sub(r"cellwall\.[-\w.]+/\d+", "cellwall/N", text)
    return re.sub(r"/views/\d+/", "/views/N/", text)


def _facts(pid: int) -> dict[str, object]:
    """All that the host's kernel says about the confinement of a process."""
    proc = Path(f"/proc/{pid}")
    status = (proc / "status").read_text().splitlines()
    mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    return {
        "posture": {
            key: sorted(value) if isinstance(value, frozenset) else value
            for key, value in posture.read(pid).items()
        },
        "status": [line for line in status if not _OF_ONE_PROCESS.match(line)],
        "limits": (proc / "limits").read_text(),
        "mounts": sorted((at[3], at[4], at[5], at[-3]) for at in mounts),
        "oom": (proc / "oom_score_adj").read_text(),
        "files": sorted(_kind(proc / "fd" / fd) for fd in os.listdir(proc / "fd")),
        "root": os.readlink(proc / "root"),
        "slack": (proc / "timerslack_ns").read_text(),
    }


def _kind(link: Path) -> str:
    return os.readlink(link).partition(":")[0]


def test_posture_of_a_copy_is_that_of_a_fresh_sandbox(arena: Arena) -> None:
    """Of init and of the session, and the same for a copy of a copy."""

    async def compared() -> None:
        async with arena.sandbox() as source, arena.sandbox() as fresh:
            await _said(source, "x = 1")
            await _said(fresh, "x = 1")
            async with _copied(source, 2) as (one, two), _copied(one) as (grandchild,):
                wanted = [_normal(_facts(pid)) for pid in _processes(fresh)]
                assert len(wanted) == 2
                for each in (source, one, two, grandchild):
                    found = [_normal(_facts(pid)) for pid in _processes(each)]
                    for ours, theirs in zip(found, wanted, strict=True):
                        assert ours.keys() == theirs.keys()
                        for key, value in theirs.items():
                            assert ours[key].split(", ") == value.split(", "), key
                    assert each.isolation == fresh.isolation
                owners = {_facts_of_owner(each) for each in (source, fresh, one, two, grandchild)}
                assert len(owners) == 5, "each has a user, and namespaces, of its own"

    arena.do(compared())


def _facts_of_owner(sandbox: AsyncSandbox) -> tuple[str, ...]:
    facts = posture.read(_processes(sandbox)[1])
    return (str(facts["Uid"]), *facts["namespaces"].values(), repr(facts["cgroups"]))


def test_other_limits_are_noticed_by_the_comparison(arena: Arena) -> None:
    """The control: a sandbox with one limit more has another posture."""

    async def compared() -> None:
        async with arena.sandbox() as one, arena.sandbox(limits={"open_files": 64}) as other:
            ours, theirs = (_normal(_facts(_processes(each)[1])) for each in (one, other))
            assert ours != theirs

    arena.do(compared())


def test_copy_has_the_limits_of_its_source(arena: Arena) -> None:
    """By what happens: each is ended by its own limit of memory, and no other is."""

    async def filled() -> None:
        async with arena.sandbox(limits={"memory_mb": 64}) as source:
            await _said(source, "x = 1")
            async with _copied(source, 2) as (one, two):
                done = await one.run("y = bytearray(b'x' * (100 << 20))")
                assert done.verdict.value == "memory"
                assert [await _said(each, "print(x)") for each in (source, two)] == ["1", "1"]

    arena.do(filled())


# -- what is written stays -------------------------------------------------------------------------

_WRITE = """
import os
big[::4096] = bytes([{n}]) * (len(big) // 4096)
small[0] = {n}
with open('f', 'w') as f: f.write('{n}')
os.makedirs('/tmp/d{n}'); kept.seek(0); kept.write('{n}'); kept.flush()
os.umask({n}); os.chdir('/')
"""
_LOOK = """
import os
print(set(big[::4096]), small, open('/home/user/f').read(), sorted(os.listdir('/tmp')),
      os.umask(0o22), os.getcwd(), open('/home/user/k').read())
"""


def test_writes_of_a_copy_reach_no_other(arena: Arena) -> None:
    """Not the source, a sibling, the image of which a large array is mapped, nor later copies."""

    async def written() -> None:
        async with arena.sandbox(limits={"memory_mb": 700}) as source:
            begin = f"big, small = bytearray({LARGE}), [0]\nbig[::4096] = b'a' * (len(big) // 4096)"
            await _said(source, f"{begin}\nopen('f', 'w').write('0')\nkept = open('k', 'w')")
            snapshot = await source.snapshot()
            made = arena.engine.copies._kept[snapshot.id].written
            assert made is not None
            image = _digest(made)
            clean = await _said(source, _LOOK)
            restored = arena.engine.copies.restore
            one, two = [await restored(snapshot.id, "") for _ in range(2)]
            await _said(one, _WRITE.format(n=7))
            assert await _said(one, _LOOK) != clean  # the control: the look shows what is written
            assert [await _said(each, _LOOK) for each in (source, two)] == [clean, clean]
            await _said(source, _WRITE.format(n=9))
            assert await _said(two, _LOOK) == clean
            assert _digest(made) == image
            later = await restored(snapshot.id, "")
            assert await _said(later, _LOOK) == clean
            for each in (one, two, later):
                await each.close()
            arena.engine.copies.delete(snapshot.id, "")

    arena.do(written())


def _digest(written: Written) -> tuple[str, ...]:
    import hashlib

    found = []
    for fd in written.files:
        copy = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        with open(copy, "rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return tuple(found)


# -- hostile sessions ------------------------------------------------------------------------------

_TRIES = """
import os, fcntl, errno
def tried(what, *args):
    try: what(*args)
    except OSError as error: return errno.errorcode[error.errno]
    return 'REACHED'
found = {}
for name, fd in zip(('image', 'base'), kept):
    path = f'/proc/self/fd/{fd}'
    found[name] = [
        tried(os.write, fd, b'x'), tried(os.ftruncate, fd, 0), tried(os.pwrite, fd, b'x', 0),
        tried(os.open, path, os.O_RDWR), tried(os.open, path, os.O_RDONLY),
        tried(os.fchmod, fd, 0o777), tried(os.utime, fd), tried(os.setxattr, fd, 'user.x', b'x'),
        tried(os.link, path, '/tmp/linked'), tried(os.posix_fallocate, fd, 0, 1 << 30),
        tried(fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    ]
print({word for words in found.values() for word in words}, len(found['image']), len(found['base']))
"""


def test_kept_image_can_be_read_and_nothing_else(arena: Arena) -> None:
    """By a session that keeps the descriptors of the image and the base while it becomes a copy."""

    async def kept() -> None:
        async with arena.sandbox() as source:
            await _said(source, KEEPS_FILES)
            async with _copied(source) as (copy,):
                words = await _said(copy, "import os; print(len(os.pread(kept[0], 4096, 0)))")
                assert words == "4096"  # the control: it has them
                said = await _said(copy, _TRIES)
                assert "REACHED" not in said
                assert said.endswith(" 11 11")

    arena.do(kept())


@pytest.mark.parametrize("which", [0, 1], ids=["image", "base"])
def test_kept_image_carries_no_word_from_one_copy_to_another(arena: Arena, which: int) -> None:
    """M09: neither by a lock nor by the position, which all who have the file might share."""
    flock = LOCKS.format(which=which)
    look = f"print(locked(fcntl.LOCK_SH), os.lseek(kept[{which}], 0, os.SEEK_CUR))"

    async def spoken() -> None:
        async with arena.sandbox() as source:
            await _said(source, KEEPS_FILES)
            async with _copied(source, 2) as (one, two):
                for each in (one, two):
                    await _said(each, flock)
                before = await _said(two, look)
                await _said(two, "locked(fcntl.LOCK_UN)")
                await _said(one, f"locked(fcntl.LOCK_EX); os.lseek(kept[{which}], 1234, 0)")
                assert await _said(two, look) == before

    arena.do(spoken())


def test_copy_sees_no_path_of_the_host(arena: Arena) -> None:
    """The image is mapped; the names in the copy's own map say nothing of where it lies."""

    async def looked() -> None:
        async with arena.sandbox(limits={"memory_mb": 256}) as source:
            await _said(source, "big = bytearray(b'x' * (20 << 20))")
            async with _copied(source) as (copy,):
                maps = await _said(copy, "print(open('/proc/self/maps').read())")
                assert "(deleted)" in maps  # the control: the image is mapped here
                assert str(arena.engine.state_dir) not in maps

    arena.do(looked())


_HOSTILE_TO_COPIES = """
import os, time
from cellwall.guest.channel import init_link
held, _files = [], init_link.Link.receive_files
def receive(self):
    files = _files(self)
    held.append(os.dup(files[0]))
    {then}
    return files
init_link.Link.receive_files = receive
"""
THEN = {"holds its pipe": "pass", "never answers": "time.sleep(1000)"}


def _readers() -> int:
    return sum(each.name == "copy" for each in threading.enumerate())


async def _reading(count: int) -> None:
    """Wait until so many sessions are being written down."""
    while _readers() < count:  # noqa: ASYNC110 - a thread sets no event
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("then", THEN)
def test_hostile_session_delays_the_copies_of_no_other(arena: Arena, then: str) -> None:
    """As many as there are threads for what would wait; a neighbour is copied meanwhile."""
    hostile = (os.cpu_count() or 1) + 5  # more than threads of asyncio's own executor

    async def held() -> None:
        async with arena.sandbox() as benign:
            await _said(benign, "x = 1")
            sources = [await arena.engine.create_sandbox() for _ in range(hostile)]
            for each in sources:
                await _said(each, _HOSTILE_TO_COPIES.format(then=THEN[then]))
            waiting = [asyncio.ensure_future(each.fork()) for each in sources]
            if then == "never answers":
                await asyncio.wait_for(_reading(hostile), 30)
            else:
                await asyncio.wait(waiting)
            began = time.monotonic()
            async with _copied(benign) as (copy,):
                assert await _said(copy, "print(x)") == "1"
            took = time.monotonic() - began
            is_late = [task.done() for task in waiting]
            for task in waiting:
                task.cancel()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            for fork in [fork for end in ends if isinstance(end, list) for fork in end]:
                await fork.sandbox.close()
            assert took < copying._TIMEOUT_S / 4, f"{took:.1f} s"
            # The control: who never answers is waited for.
            assert then != "never answers" or not any(is_late)
            for source in sources:
                await source.close()

    with arena.leaving_nothing():
        arena.do(held())
