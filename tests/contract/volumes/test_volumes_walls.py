"""Volumes behind each wall, on templates and on images: what holds wherever a sandbox has one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cellwall import Engine
from cellwall.model.errors import Conflict, FileError, NotFound
from cellwall.runtimes.volumes import ext4
from kit.images.volume_walls import ran

if TYPE_CHECKING:
    from kit.images.volume_walls import Wall

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]
MIB = 1 << 20
DATA = {"data": "/data"}
READ = {"data": "/data:ro"}

FILL = """
import errno, os
def fill(path, piece):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    done = 0
    try:
        while True:
            done += os.write(fd, piece)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    os.fsync(fd)
    return done
whole = fill("/data/a", bytes(4096))
print(whole, os.stat("/data/a").st_blocks * 512, fill("/data/b", b"x"))
os.remove("/data/a")
open("/data/c", "w").write("room again")
"""
MAKE_FILES = """
import errno, os
made = 0
try:
    while True:
        os.close(os.open(f"/data/f{made}", os.O_WRONLY | os.O_CREAT))
        made += 1
except OSError as error:
    assert error.errno == errno.ENOSPC, error
print(made)
"""


def test_metadata_of_a_file_on_a_volume_is_its_own_or_refused(wall: Wall) -> None:
    """A volume uses the numbers of inodes again; the kernel of gVisor does not tell births."""
    given = {"author": "me"}
    again = "rm /data/a; echo x > /data/b; mv /data/b /data/c"

    async def work(engine: Engine) -> None:
        async with wall.sandbox(engine, DATA) as sandbox:
            await sandbox.files.write("own", "x", metadata=given)
            assert (await sandbox.files.stat("own")).metadata == given
            if wall.runtime == "gvisor":
                with pytest.raises(FileError, match="no metadata can be kept on this volume"):
                    await sandbox.files.write("/data/a", "x", metadata=given)
                assert not await sandbox.files.exists("/data/a")
                return
            await sandbox.files.write("/data/a", "x", metadata=given)
            assert (await sandbox.files.stat("/data/a")).metadata == given
            await sandbox.commands.run(again)
            assert (await sandbox.files.stat("/data/c")).metadata == {}

    wall.inside(work)


def test_a_volume_is_full_at_its_last_block_and_its_last_inode(wall: Wall) -> None:
    volume = wall.store.create("small", 2, inodes=100)

    async def work(engine: Engine) -> None:
        async with wall.sandbox(engine, {"small": "/data"}) as sandbox:
            assert await ran(sandbox, FILL) == f"{2 * MIB} {2 * MIB} 0"
            assert int(await ran(sandbox, MAKE_FILES)) == volume.inodes - 2

    wall.inside(work)


MAKE_MANY = "for n in range(10_000): open(f'/data/{n}', 'w').write(str(n))"
READ_MANY = """
import os
print(all(open(f"/data/{n}").read() == str(n) for n in range(10_000)), len(os.listdir("/data")))
"""


def test_ten_thousand_files_are_there_in_the_next_engine(wall: Wall) -> None:
    wall.store.create("many", 64, inodes=11_000)

    async def written(engine: Engine) -> None:
        async with wall.sandbox(engine, {"many": "/data"}) as sandbox:
            await ran(sandbox, MAKE_MANY)

    async def read(engine: Engine) -> None:
        async with wall.sandbox(engine, {"many": "/data:ro"}) as sandbox:
            assert await ran(sandbox, READ_MANY) == "True 10000"

    wall.inside(written)
    wall.inside(read)


REFUSED = """
try:
    open("/data/new", "w")
except OSError as error:
    print(error.strerror)
"""


def test_one_writes_and_many_read(wall: Wall) -> None:
    async def work(engine: Engine) -> None:
        async with wall.sandbox(engine, DATA) as writer, wall.sandbox(engine, READ) as reader:
            await ran(writer, "open('/data/x', 'w').write('new')")
            assert await ran(reader, "print(open('/data/x').read())") == "new"
            assert await ran(reader, REFUSED) == "Read-only file system"
            with pytest.raises(Conflict, match="another sandbox writes"):
                await wall.start(engine, DATA)
            async with wall.engine() as other:
                for volumes in (DATA, READ):
                    with pytest.raises(Conflict, match="another engine"):
                        await wall.start(other, volumes)
            for change in (
                lambda: wall.store.copy("data", "more"),
                lambda: wall.store.remove("data"),
            ):
                with pytest.raises(Conflict):
                    await asyncio.to_thread(change)
        async with wall.sandbox(engine, DATA) as next_one:
            assert await ran(next_one, "print(open('/data/x').read())") == "new"

    wall.inside(work)


def test_an_engine_that_starts_leaves_a_volume_in_use_alone(wall: Wall) -> None:
    async def work(engine: Engine) -> None:
        async with wall.sandbox(engine, DATA) as sandbox:
            await ran(sandbox, "open('/data/x', 'w').write('kept')")
            async with wall.engine() as other:
                assert "volumes" not in (await other.sweep()).removed
                assert [each.name for each in other.volumes.volumes()] == ["data"]
            assert await ran(sandbox, "print(open('/data/x').read())") == "kept"

    wall.inside(work)


def test_files_belong_to_inner_ids_on_every_root(wall: Wall) -> None:
    """A template's user is user 1000 of an image, in a jail and behind this wall alike."""

    async def work(engine: Engine) -> None:
        async with wall.sandbox(engine, DATA) as sandbox:
            await ran(sandbox, "open('/data/x', 'w').write('x')")
        async with wall.sandbox(engine, READ, runtime="jail") as sandbox:
            expected = "0" if wall.tree is not None else "1000"
            assert await ran(sandbox, "import os; print(os.stat('/data/x').st_uid)") == expected

    wall.inside(work)


def test_another_tenant_cannot_name_a_volume(wall: Wall) -> None:
    async def work(engine: Engine) -> None:
        with pytest.raises(NotFound):
            await wall.start(engine, DATA, tenant="another")
        async with wall.sandbox(engine, DATA):
            pass

    wall.inside(work)


@pytest.mark.parametrize("path", ["/data/deep/er", "/var/lib/service/data", "/home/user/sub/data"])
def test_a_path_may_be_anywhere_but_in_the_system(wall: Wall, path: str) -> None:
    async def work(engine: Engine) -> None:
        async with wall.sandbox(engine, [f"data:{path}"]) as sandbox:
            await ran(sandbox, f"open('{path}/x', 'w').write('there')")
        async with wall.sandbox(engine, DATA) as sandbox:
            assert await ran(sandbox, "print(open('/data/x').read())") == "there"

    wall.inside(work)


# -- what stays ------------------------------------------------------------------------------

CHILD = """
import asyncio, json, os, sys
from pathlib import Path
order = json.loads(sys.argv[1])
sys.path[:0] = order["path"]
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.testing.bare import BareTemplates
from kit.images.volume_walls import Wall

CODE = '''
import os
n = int(max(os.listdir("/data"), default="0", key=int)) + 1
while True:
    fd = os.open(f"/data/{n}", os.O_WRONLY | os.O_CREAT)
    os.write(fd, str(n).encode() * 1000)
    os.fsync(fd)
    os.close(fd)
    print(n, flush=True)
    n += 1
'''

async def main():
    bare = order["bare"]
    templates = BareTemplates(Path(bare)) if bare else TemplateStore(state_dir())
    tree = Path(order["tree"]) if order["tree"] else None
    wall = Wall(order["runtime"], tree, templates, Path(order["place"]))
    say = lambda text: (sys.stdout.write(text), sys.stdout.flush())
    async with wall.engine() as engine, wall.sandbox(engine, {"data": "/data"}) as sandbox:
        await sandbox.files.write("/tmp/p.py", CODE)
        await sandbox.commands.run(["python3", "/tmp/p.py"], timeout=60, on_stdout=say)

asyncio.run(main())
"""
CHECK = """
import os
names = sorted(map(int, os.listdir("/data")))
print(max(n for n in names if open(f"/data/{n}").read() == str(n) * 1000), len(names))
"""


@contextlib.contextmanager
def writing(wall: Wall) -> Iterator[subprocess.Popen[str]]:
    """Have another engine write files one after the other; it says which are synced."""
    bare = str(wall.place.parent / "env") if wall.runtime == "docker" else ""
    tests = str(Path(__file__).parents[2])
    order = {
        "path": [tests, str(Path(ext4.__file__).parents[3])],
        "runtime": wall.runtime,
        "tree": "" if wall.tree is None else str(wall.tree),
        "place": str(wall.place),
        "bare": bare,
    }
    words = [sys.executable, "-c", CHILD, json.dumps(order)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def synced(child: subprocess.Popen[str], count: int) -> list[int]:
    assert child.stdout is not None
    return [int(child.stdout.readline()) for _ in range(count)]


async def _newest(wall: Wall, engine: Engine, volumes: object) -> int:
    async with wall.sandbox(engine, volumes) as sandbox:
        newest, count = map(int, (await ran(sandbox, CHECK)).split())
        assert count >= newest
        return newest


def test_what_was_synced_is_there_after_kill_9_of_the_engine(wall: Wall) -> None:
    for count in (5, 25):
        with writing(wall) as child:
            last = synced(child, count)[-1]
            child.send_signal(signal.SIGKILL)
            child.wait()

        async def read(engine: Engine, last: int = last) -> None:
            assert await _newest(wall, engine, READ) >= last

        wall.inside(read)


def test_what_was_synced_is_there_after_a_loss_of_power(wall: Wall) -> None:
    """The loop device's file, copied in the middle, is what a disk would have."""
    folder = wall.place / "volumes/local"
    lost = folder / "lost"
    with writing(wall) as child:
        last = synced(child, 30)[-1]
        lost.mkdir()
        for name in ("volume.json", "volume.img"):
            words = ["cp", "--sparse=always", str(folder / "data" / name), str(lost / name)]
            subprocess.run(words, check=True)
        synced(child, 1)
    assert not ext4.figures(lost / "volume.img").is_clean

    async def read(engine: Engine) -> None:
        assert await _newest(wall, engine, {"lost": "/data"}) >= last
        async with wall.sandbox(engine, READ):  # once the killed engine's has ended
            pass

    wall.inside(read)
    assert ext4.figures(lost / "volume.img").is_clean
