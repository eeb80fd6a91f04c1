"""M09 and its like on an image: the files that its sandboxes share carry nothing between them.

Locks, FIFOs, unix sockets and notices of changes belong to inodes, and a tree is one for all. The
control of each is the same attempt within one sandbox.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from cellwall import AsyncSandbox
from cellwall.linux.uid_ranges import IMAGE_BASE
from kit.images.host_tree import ImageArena, arena_behind

pytestmark = [pytest.mark.attack, pytest.mark.root]
FILE, PIPE = "/usr/share/shared", "/usr/share/pipe"

HOLD = {
    "lock": "import fcntl; held = open(FILE); fcntl.flock(held, fcntl.LOCK_EX)",
    "fifo": "import os; fd = os.open(PIPE, os.O_RDWR | os.O_NONBLOCK); os.write(fd, b'told')",
    "notice": "import os\nopen(FILE, 'a').write('more'); os.utime(FILE)",
}
LOOK = {
    "lock": """
import fcntl
with open(FILE) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("nothing")
    except BlockingIOError:
        print("told")
""",
    "fifo": """
import os
fd = os.open(PIPE, os.O_RDONLY | os.O_NONBLOCK)
try:
    print(os.read(fd, 9).decode() or "nothing")
except BlockingIOError:
    print("nothing")
""",
    "notice": """
import os
try:
    print("told" if os.read(watch, 4096) else "nothing")
except BlockingIOError:
    print("nothing")
""",
}
WATCH = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, FILE.encode(), 6) >= 0  # IN_MODIFY and IN_ATTRIB
"""


@pytest.fixture(scope="module")
def tree(image_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a file and a FIFO that everybody inside may write."""
    made = tmp_path_factory.mktemp("shared") / "tree"
    shutil.copytree(image_tree, made, symlinks=True, copy_function=os.link)
    for folder, names, _ in os.walk(made):
        for name in (".", *names):
            os.lchown(os.path.join(folder, name), IMAGE_BASE, IMAGE_BASE)
    (made / FILE[1:]).write_text("shared")
    os.mkfifo(made / PIPE[1:])
    for path in (made / FILE[1:], made / PIPE[1:]):
        os.chown(path, IMAGE_BASE, IMAGE_BASE)
        path.chmod(0o666)
    return made


@pytest.fixture(scope="module", params=["jail", "docker", "gvisor"])
def place(request: pytest.FixtureRequest, tree: Path) -> Iterator[ImageArena]:
    arena = arena_behind(request, request.param, tree)
    yield arena
    arena.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(f"FILE, PIPE = {FILE!r}, {PIPE!r}\n{code}")
    assert done.ok, (done.stderr, done.error)
    return done.stdout.strip()


async def _between(one: AsyncSandbox, other: AsyncSandbox, way: str) -> str:
    """Hold something in one sandbox, and look for it in the other, which may be the same."""
    if way == "notice":
        await _said(other, WATCH)
    await _said(one, HOLD[way])
    return await _said(other, LOOK[way])


def _pair(place: ImageArena, work: Callable[[AsyncSandbox, AsyncSandbox], Awaitable[str]]) -> str:
    async def attack() -> str:
        async with (
            place.sandbox(image=place.root) as one,
            place.sandbox(image=place.root) as other,
        ):
            return await work(one, other)

    return place.do(attack())


def _opens_fifos(place: ImageArena) -> bool:
    """gVisor opens no FIFO of a tree at all, since what serves it files would open the host's."""
    return str(place.choice["runtime"]) != "gvisor"


@pytest.mark.parametrize("way", HOLD)
def test_shared_files_carry_nothing_between_sandboxes(place: ImageArena, way: str) -> None:
    if way != "fifo" or _opens_fifos(place):
        assert _pair(place, lambda one, other: _between(one, other, way)) == "nothing"


@pytest.mark.parametrize("way", HOLD)
def test_shared_files_carry_it_within_one_sandbox(place: ImageArena, way: str) -> None:
    if way == "fifo" and not _opens_fifos(place):
        with pytest.raises(AssertionError, match="PermissionError"):
            _pair(place, lambda one, _: _between(one, one, way))
        return
    assert _pair(place, lambda one, _: _between(one, one, way)) == "told"


def test_host_holds_no_lock_of_a_sandbox_and_gives_it_none(place: ImageArena, tree: Path) -> None:
    """The witness is a process of the host on the tree's own file."""

    async def attack(one: AsyncSandbox, _: AsyncSandbox) -> str:
        with (tree / FILE[1:]).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            inside = await _said(one, LOOK["lock"])
        await _said(one, HOLD["lock"])
        with (tree / FILE[1:]).open() as file:
            await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return inside

    assert _pair(place, attack) == "nothing"
