"""M09: what one sandbox reads of the files that all share, and whether another can tell.

The shared file is one of the template's; the witness stands on the host, which looks at the same
inode. The control of each look is the same look from there, where it has to tell.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall import Engine, EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.jail.inspect import overlay_depth
from cellwall.jail.plan.plan import TEMPLATE_ROOT
from cellwall.linux import seccomp
from conftest import Require
from kit.arena import Arena

pytestmark = [pytest.mark.attack, pytest.mark.root]
DAY_NS = 86_400 * 10**9


class Shared:
    """A file of the template that no process has open or mapped."""

    def __init__(self) -> None:
        store = TemplateStore(state_dir())
        template = Path((store.find("python") or store.build("python")).path)
        texts = [path for path in template.rglob("*.pyi") if path.stat().st_size > 8192]
        self.path = max(texts, key=lambda path: path.stat().st_size)
        self.inside = f"{TEMPLATE_ROOT}/{self.path.relative_to(template)}"
        self.fd = os.open(self.path, os.O_RDONLY)

    def evict(self) -> None:
        """Let go of its pages, so that whoever reads it leaves a trace."""
        deadline = time.monotonic() + 5
        while True:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not any(self.pages()) or time.monotonic() > deadline:
                return
            time.sleep(0.01)  # one that is on its way from the disk cannot be let go of

    def is_cached(self) -> bool:
        """Look at its first page."""
        return self.pages()[0]

    def pages(self) -> list[bool]:
        """Which of its pages are there. Not by RWF_NOWAIT: that has the kernel read ahead."""
        size = os.fstat(self.fd).st_size
        found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        start = libc.mmap(None, ctypes.c_size_t(size), 1, 1, self.fd, ctypes.c_long(0))
        whole = ctypes.c_void_p(start), ctypes.c_size_t(size)
        assert libc.mincore(*whole, found) == 0
        libc.munmap(*whole)
        return [bool(page & 1) for page in found]

    def accessed_ns(self) -> int:
        return self.path.stat().st_atime_ns


@pytest.fixture
def shared(require: Require) -> Iterator[Shared]:
    """The file, on a file system whose page cache can be looked at and emptied."""
    found = Shared()
    before = found.path.stat()
    os.pread(found.fd, 1, 0)
    seen = [found.is_cached()]
    found.evict()
    seen.append(found.is_cached())
    require("page cache to look at", seen == [True, False], "keep the state directory on a disk")
    yield found
    os.utime(found.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.close(found.fd)


def test_reading_a_shared_file_leaves_no_access_time(
    arena: Arena, shared: Shared, require: Require
) -> None:
    """M09"""
    old = shared.path.stat().st_mtime_ns - DAY_NS
    os.utime(shared.path, ns=(old, shared.path.stat().st_mtime_ns))
    read = f"import os\nprint(len(open({shared.inside!r}).read()) > 8192)\n"
    look = f"print(os.stat({shared.inside!r}).st_atime_ns)"
    said = arena.run(read + look).stdout.split()[1:]
    assert said == ["True", str(old)]
    assert shared.accessed_ns() == old
    with shared.path.open("rb") as file:
        file.read()
    require("access times", shared.accessed_ns() != old, "mount the state directory with relatime")


_RESIDENT = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open({path!r}, os.O_RDONLY)
size = os.fstat(fd).st_size
start = libc.mmap(None, ctypes.c_size_t(size), 1, 1, fd, ctypes.c_long(0))
pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages) == 0
print(all(page & 1 for page in pages))
print(libc.syscall(451, fd, 0, 0, 0), ctypes.get_errno())  # cachestat
"""


def test_residency_of_a_shared_file_is_not_told(arena: Arena, shared: Shared) -> None:
    """M09: mincore says "resident" of everything that is not the caller's own."""
    shared.evict()
    assert arena.run(_RESIDENT.format(path=shared.inside)).stdout.split()[1:] == [
        "True",
        "-1",
        str(38),  # ENOSYS
    ]
    assert not any(shared.pages())  # the owner is told


_LOOK = """
import os
fd = os.open({path!r}, os.O_RDONLY)
try: print(os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT))
except OSError: print(0)
"""
_READ = "print(len(open({path!r}).read()) > 8192)"
_EVICT = "import os\nos.posix_fadvise(os.open({path!r}, os.O_RDONLY), 0, 0, 4)\nprint('done')"
_ACCEPTED = "a side channel that SECURITY.md does not promise to close; {} would"


def _unlayered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next engine bind shared trees as they are, as where overlays cannot be had."""
    monkeypatch.setattr(overlay_depth, "ask", lambda _: overlay_depth.Layers(0, "the test says so"))


def test_pages_one_sandbox_has_read_are_not_seen_by_another(
    arena: Arena, shared: Shared, require: Require, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M09: a bit for each page of every shared file, and without noise. No overlay answers that."""
    given = overlay_depth.ask(["/usr", str(state_dir())])
    require("an overlay over the template", given.depth > 0, given.problem)
    quiet, loud = _looks(arena, shared)
    assert quiet == loud
    _unlayered(monkeypatch)
    control = Arena()
    try:
        # Tests beside this one read the template as well, and each of them may hide the difference.
        seen = [_looks(control, shared) for _ in range(5)]
        assert any(quiet != loud for quiet, loud in seen), f"the control: {seen}"
    finally:
        control.close()


def _looks(arena: Arena, shared: Shared) -> list[str]:
    """What another sandbox sees while one reads nothing, and while it reads the file."""

    async def looks() -> list[str]:
        seen = []
        async with arena.sandbox() as reader, arena.sandbox() as other:
            for code in ("print(True)", _READ):
                shared.evict()
                assert (await reader.run(code.format(path=shared.inside))).stdout == "True\n"
                seen.append((await other.run(_LOOK.format(path=shared.inside))).stdout)
        return seen

    return arena.do(looks())


@pytest.mark.xfail(strict=True, reason=_ACCEPTED.format("ignoring POSIX_FADV_DONTNEED"))
def test_pages_of_a_shared_file_are_not_dropped_from_inside(arena: Arena, shared: Shared) -> None:
    """M09: the other half of that channel, and a way to slow the neighbours' reading down."""
    os.pread(shared.fd, 1, 0)
    assert arena.run(_EVICT.format(path=shared.inside)).stdout.endswith("done\n")
    assert shared.is_cached()


_WATCH = """
import ctypes, os, select, struct
libc, fds = ctypes.CDLL(None, use_errno=True), []
for mask in {masks}:
    fds.append(libc.inotify_init1(os.O_NONBLOCK))
    number = libc.inotify_add_watch(fds[-1], {folder!r}.encode(), mask)
    print(ctypes.get_errno() if number < 0 else "watched")
"""
_TOLD = """
for fd in fds:
    told = os.read(fd, 65536) if select.select([fd], [], [], 0)[0] else b""
    print({name!r}.encode() in told)
"""
_READERS = (0x1, 0x10, 0x20, 0xFFF)  # IN_ACCESS, IN_CLOSE_NOWRITE, IN_OPEN, IN_ALL_EVENTS
_WRITERS = (0xFCE,)  # all the others, which see what is changed
_UNGUARDED = "allow inotify_add_watch if low32(arg2) & IN_READERS == 0"


async def _watched(shared: Shared, masks: tuple[int, ...]) -> list[str]:
    """What the calls say, and whether each watch tells that the host reads the file."""
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        async with await engine.create_sandbox() as sandbox:
            folder, name = os.path.split(shared.inside)
            said = (await sandbox.run(_WATCH.format(masks=masks, folder=folder))).stdout
            shared.path.read_bytes()
            return [*said.split(), *(await sandbox.run(_TOLD.format(name=name))).stdout.split()]
    finally:
        await engine.aclose()


def test_opens_and_reads_of_a_shared_file_are_not_told(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M09: live, of every program that the host and the neighbours start.

    On trees that are bound as they are: an overlay, where there is one, is a guard of its own.
    """
    _unlayered(monkeypatch)
    denied = asyncio.run(_watched(shared, _READERS))
    assert denied[: len(_READERS)] == [str(errno.EPERM)] * len(_READERS)
    assert asyncio.run(_watched(shared, _WRITERS)) == ["watched", "False"]
    policy = seccomp.load_policy()
    assert _UNGUARDED in policy
    free = policy.replace(_UNGUARDED, "allow inotify_add_watch")
    monkeypatch.setattr(seccomp, "load_policy", lambda: free)
    told = asyncio.run(_watched(shared, _READERS))
    assert told == ["watched"] * len(_READERS) + ["True"] * len(_READERS), "the control"
