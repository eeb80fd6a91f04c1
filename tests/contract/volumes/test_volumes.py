"""Volumes in sandboxes of the jail: sizes that hold, one writer or many readers, what survives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.engine.volumes.volume_store import VolumeStore
from cellwall.jail.inspect.posture import descendants as children
from cellwall.model.errors import Conflict, HostUnsupported, NotFound, SandboxBroken, UsageError
from cellwall.runtimes.volumes import ext4
from conftest import Require
from kit import waiting
from kit.images import archives
from kit.images.archives import layer, small_root
from kit.images.host_tree import host_tree
from kit.images.host_tree import image as host_image

pytestmark = pytest.mark.root
MIB = 1 << 20
DATA = {"data": "/data"}
READ = {"data": "/data:ro"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(place: Path) -> VolumeStore:
    return VolumeStore(place)


@contextlib.asynccontextmanager
async def engine_in(place: Path, **settings: Any) -> AsyncIterator[Engine]:
    settings = {"pool_min": 0, "pool_max": 0, **settings}
    engine = Engine(place, EngineSettings(**settings), templates=TemplateStore(state_dir()))
    try:
        yield engine
    finally:
        await engine.aclose()


def inside(place: Path, work: Callable[[Engine], Awaitable[None]]) -> None:
    """Do work with one engine in `place`, from its start to its end."""

    async def done() -> None:
        async with engine_in(place) as engine:
            await work(engine)

    asyncio.run(done())


@contextlib.asynccontextmanager
async def sandbox_of(
    engine: Engine, volumes: object, **options: Any
) -> AsyncIterator[AsyncSandbox]:
    sandbox = await engine.create_sandbox(volumes=volumes, **options)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def ran(sandbox: AsyncSandbox, code: str) -> str:
    execution = await sandbox.run(code, timeout=60)
    assert execution.ok, execution.stderr
    return execution.stdout.strip()


def loops_of(place: Path) -> list[str]:
    """Return the loop devices with a file below `place`, as the kernel lists them."""
    found = []
    for each in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if each.read_text().startswith(f"{place}/"):
                found.append(each.parts[3])
    return found


# -- sizes -----------------------------------------------------------------------------------

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
"""


@pytest.mark.parametrize("size_mb", [1, 20])
def test_a_volume_is_full_at_its_last_block(place: Path, store: VolumeStore, size_mb: int) -> None:
    store.create("data", size_mb)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA) as sandbox:
            whole, blocks, more = map(int, (await ran(sandbox, FILL)).split())
            assert (whole, blocks, more) == (size_mb * MIB, size_mb * MIB, 0)
            assert (
                await ran(
                    sandbox, "import os; os.remove('/data/a'); open('/data/c', 'w').write('x')"
                )
                == ""
            )

    inside(place, work)
    assert store.get("data").used_bytes <= 2 * ext4.BLOCK_BYTES


MAKE_FILES = """
import errno, os
made = 0
try:
    while True:
        os.close(os.open(f"/data/{made}", os.O_WRONLY | os.O_CREAT))
        made += 1
except OSError as error:
    assert error.errno == errno.ENOSPC, error
print(made)
"""


def test_a_volume_has_the_inodes_that_its_answer_says(place: Path, store: VolumeStore) -> None:
    volume = store.create("data", 4, inodes=100)
    assert 100 <= volume.inodes < 116

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA) as sandbox:
            assert int(await ran(sandbox, MAKE_FILES)) == volume.inodes

    inside(place, work)
    assert store.get("data").used_inodes == volume.inodes


# -- what stays ------------------------------------------------------------------------------


def test_sandboxes_on_templates_and_images_share_files_by_inner_ids(
    place: Path, store: VolumeStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store.create("data", 16)
    root = host_image(host_tree(tmp_path_factory.mktemp("image")))

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA, image=root) as sandbox:
            words = "echo of-root > /data/root; echo of-app > /data/app; chown 1000:1000 /data/app"
            done = await sandbox.commands.run(words)
            assert done.exit_code == 0, done.stderr
        async with sandbox_of(engine, DATA) as sandbox:
            code = "import os; print([os.stat(f'/data/{n}').st_uid for n in ('root', 'app')])"
            assert await ran(sandbox, code) == "[0, 1000]"
            await ran(sandbox, "open('/data/app', 'a').write('more')")
            execution = await sandbox.run("open('/data/root', 'a')")
            assert "PermissionError" in execution.stderr

    inside(place, work)


def test_image_of_a_live_sandbox_with_a_volume_is_not_removed(
    place: Path, tmp_path: Path, store: VolumeStore
) -> None:
    """The control is the same removal once the sandbox has ended."""
    root = layer(small_root())
    archive = archives.docker_archive(tmp_path / "small.tar", [root])
    store.create("data", 8)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA, image=str(archive)) as sandbox:
            with pytest.raises(Conflict, match="an engine uses it"):
                await engine.images.remove("small.tar")
            done = await sandbox.commands.run(["ls", "/bin/sh"])
            assert done.exit_code == 0, done.stderr
        await engine.images.remove("small.tar")

    inside(place, work)


CHILD = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cellwall import Engine, EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir

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
    settings = EngineSettings(pool_min=0, pool_max=0)
    engine = Engine(Path(sys.argv[1]), settings, templates=TemplateStore(state_dir()))
    sandbox = await engine.create_sandbox(volumes={"data": "/data"})
    say = lambda text: (sys.stdout.write(text), sys.stdout.flush())
    await sandbox.run(CODE, timeout=60, on_stdout=say)

asyncio.run(main())
"""


@contextlib.contextmanager
def writing(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another engine write files one after the other; it says which are synced."""
    source = str(Path(ext4.__file__).parents[3])
    words = [sys.executable, "-c", CHILD, str(place), source]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
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


CHECK = """
import os
names = sorted(map(int, os.listdir("/data")))
print(max(n for n in names if open(f"/data/{n}").read() == str(n) * 1000), len(names))
"""


@pytest.mark.parametrize("rounds", [3])
def test_what_was_synced_is_there_after_kill_9_of_the_engine(
    place: Path, store: VolumeStore, rounds: int
) -> None:
    store.create("data", 256)
    for number in range(rounds):
        with writing(place) as child:
            last = synced(child, 5 + 20 * number)[-1]
            child.send_signal(signal.SIGKILL)
            child.wait()

        async def read(engine: Engine, last: int = last) -> None:
            async with sandbox_of(engine, READ) as sandbox:
                newest, count = map(int, (await ran(sandbox, CHECK)).split())
                assert newest >= last
                assert count >= last

        inside(place, read)
    waiting.wait_until(lambda: not loops_of(place), "the end of the loop device")


def test_what_was_synced_is_there_after_a_loss_of_power(place: Path, store: VolumeStore) -> None:
    """The loop device's file, copied in the middle, is what a disk would have."""
    store.create("data", 256)
    lost = place / "volumes/local/lost"
    with writing(place) as child:
        last = synced(child, 50)[-1]
        lost.mkdir()
        for name in ("volume.json", "volume.img"):
            subprocess.run(
                ["cp", "--sparse=always", place / "volumes/local/data" / name, lost / name],
                check=True,
            )
        synced(child, 1)
    assert not ext4.figures(lost / "volume.img").is_clean

    async def read(engine: Engine) -> None:
        async with sandbox_of(engine, {"lost": "/data"}) as sandbox:
            assert int((await ran(sandbox, CHECK)).split()[0]) >= last

    inside(place, read)
    assert ext4.figures(lost / "volume.img").is_clean


def test_a_killed_keeper_is_told_and_the_next_sandbox_has_the_files(
    place: Path, store: VolumeStore
) -> None:
    store.create("data", 16)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA) as sandbox:
            await ran(sandbox, "open('/data/x', 'w').write('kept')")
            pids = keepers()
            os.kill(pids[0], signal.SIGKILL)
            with pytest.raises((SandboxBroken, Conflict)):
                await engine.create_sandbox(volumes=READ)
            assert await ran(sandbox, "print(open('/data/x').read())") == "kept"
        async with sandbox_of(engine, DATA) as sandbox:
            assert await ran(sandbox, "print(open('/data/x').read())") == "kept"

    inside(place, work)


def test_an_engine_that_has_made_ready_has_its_keeper_before_the_first_volume(
    place: Path, store: VolumeStore
) -> None:
    async def work(engine: Engine) -> None:
        await engine.prepare_volumes()
        # A moment after execve(2) a process has no arguments in /proc yet.
        await asyncio.to_thread(waiting.wait_until, lambda: bool(keepers()), "the keeper")
        (keeper,) = keepers()
        await asyncio.to_thread(store.create, "data", 16)
        async with sandbox_of(engine, DATA) as sandbox:
            await ran(sandbox, "open('/data/x', 'w').write('kept')")
            assert keepers() == [keeper]

    inside(place, work)
    assert not keepers()


def keepers() -> list[int]:
    """The keepers of this process's engines, once each has its arguments in /proc."""

    def last_word(pid: int) -> bytes:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")[-1]

    return [pid for pid in children(os.getpid()) if last_word(pid).endswith(b"/volumes")]


# -- one writer, many readers ----------------------------------------------------------------


def test_a_second_writer_is_refused(place: Path, store: VolumeStore) -> None:
    store.create("data", 16)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA):
            with pytest.raises(Conflict, match="another sandbox writes"):
                await engine.create_sandbox(volumes=DATA)
            async with engine_in(place) as other:
                for volumes in (DATA, READ):
                    with pytest.raises(Conflict, match="another engine"):
                        await other.create_sandbox(volumes=volumes)
            with pytest.raises(Conflict):
                store.copy("data", "more")
            with pytest.raises(Conflict):
                store.remove("data")
        async with sandbox_of(engine, DATA):  # the first one has ended, also if only just now
            pass

    inside(place, work)
    store.remove("data")


def test_many_sandboxes_of_two_engines_read(place: Path, store: VolumeStore) -> None:
    store.create("data", 16)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA) as sandbox:
            await ran(sandbox, "open('/data/x', 'w').write('read me')")
        async with engine_in(place) as other, contextlib.AsyncExitStack() as open_:
            for which in (engine, other, engine, other):
                sandbox = await open_.enter_async_context(sandbox_of(which, READ))
                assert await ran(sandbox, "print(open('/data/x').read())") == "read me"
                execution = await sandbox.run("open('/data/y', 'w')")
                assert "Read-only file system" in execution.stderr
            with pytest.raises(Conflict, match="another engine read"):
                await engine.create_sandbox(volumes=DATA)
            sandbox = await open_.enter_async_context(sandbox_of(other, READ))
            assert await ran(sandbox, "print(open('/data/x').read())") == "read me"

    inside(place, work)


def test_a_reader_sees_what_a_later_writer_writes(place: Path, store: VolumeStore) -> None:
    store.create("data", 16)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, READ) as reader, sandbox_of(engine, DATA) as writer:
            await ran(writer, "open('/data/x', 'w').write('new')")
            assert await ran(reader, "print(open('/data/x').read())") == "new"
            async with sandbox_of(engine, READ) as later:
                for each in (reader, later):
                    execution = await each.run("open('/data/x', 'w')")
                    assert "Read-only file system" in execution.stderr

    inside(place, work)


def test_a_sandbox_with_a_volume_is_never_parked(place: Path, store: VolumeStore) -> None:
    store.create("data", 16)

    async def work() -> None:
        async with engine_in(place, pool_min=2, pool_max=4) as engine:
            async with sandbox_of(engine, READ):
                await engine.pool.wait_full()
                assert engine.pool.statistics().parked == 0
            execution = await engine.run("print(1)")
            assert execution.stdout == "1\n"
            await engine.pool.wait_full()
            assert engine.pool.statistics().parked >= 2
            result = await engine.run("import os; print(os.path.ismount('/data'))", volumes=DATA)
            assert result.stdout == "True\n"

    asyncio.run(work())


def test_a_hundred_attachments_leave_nothing_behind(place: Path, store: VolumeStore) -> None:
    store.create("data", 16)

    async def work(engine: Engine) -> None:
        for number in range(100):
            async with sandbox_of(engine, DATA) as sandbox:
                await sandbox.files.write("/data/n", str(number))
        async with sandbox_of(engine, READ) as sandbox:
            assert await sandbox.files.read("/data/n") == "99"

    inside(place, work)
    waiting.wait_until(lambda: not loops_of(place), "the end of the loop device")
    assert str(place) not in Path("/proc/mounts").read_text()


# -- the store -------------------------------------------------------------------------------


def test_a_copy_has_the_content_and_a_life_of_its_own(place: Path, store: VolumeStore) -> None:
    store.create("data", 16)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA) as sandbox:
            await sandbox.files.write("/data/x", "first")
        await asyncio.to_thread(store.copy, "data", "copy")
        both = {"data": "/data", "copy": "/copy"}
        async with sandbox_of(engine, both) as sandbox:
            await sandbox.files.write("/data/x", "second")
            assert await sandbox.files.read("/copy/x") == "first"

    inside(place, work)
    assert [each.name for each in store.volumes()] == ["copy", "data"]


def test_what_is_not_there_or_taken_is_said(place: Path, store: VolumeStore) -> None:
    store.create("data", 1)
    with pytest.raises(Conflict, match="taken"):
        store.create("data", 1)
    for call in (store.get, store.remove):
        with pytest.raises(NotFound):
            call("other")

    async def work(engine: Engine) -> None:
        with pytest.raises(NotFound, match="cellwall volumes create"):
            await engine.create_sandbox(volumes={"other": "/data"})
        with pytest.raises(UsageError):
            await engine.create_sandbox(volumes={"data": "/usr"})

    inside(place, work)


def test_owners_do_not_see_each_other(place: Path, store: VolumeStore) -> None:
    store.create("data", 1, owner="a")
    assert store.volumes() == store.volumes("b") == []
    with pytest.raises(NotFound):
        store.get("data", "b")

    async def work(engine: Engine) -> None:
        with pytest.raises(NotFound):
            await engine.create_sandbox(volumes=DATA, tenant="b")
        async with sandbox_of(engine, DATA, tenant="a") as sandbox:
            assert await ran(sandbox, "import os; print(os.path.ismount('/data'))") == "True"

    inside(place, work)


def test_a_sweep_removes_what_was_never_whole_and_nothing_else(
    place: Path, store: VolumeStore
) -> None:
    volume = store.create("data", 1)
    left = place / "volumes/local/.coming-0123"
    left.mkdir()
    (left / "volume.img").write_bytes(b"half")

    async def work(engine: Engine) -> None:
        assert (await engine.sweep()).removed["volumes"] == 1

    inside(place, work)
    assert not left.exists()
    assert store.volumes() == [volume]


@pytest.mark.parametrize("runtime", ["process"])
def test_a_runtime_without_volumes_refuses_them(
    place: Path, store: VolumeStore, runtime: str
) -> None:
    store.create("data", 1)

    async def work(engine: Engine) -> None:
        with pytest.raises(HostUnsupported, match="volumes"):
            await engine.create_sandbox(volumes=DATA, runtime=runtime, isolation="process")

    async def done() -> None:
        async with engine_in(place, allow_process=True) as engine:
            await work(engine)

    asyncio.run(done())


def test_a_damaged_volume_is_refused_with_a_remedy(place: Path, store: VolumeStore) -> None:
    store.create("data", 1)
    (place / "volumes/local/data/volume.img").write_bytes(bytes(1 << 20))

    async def work(engine: Engine) -> None:
        with pytest.raises(Conflict, match="e2fsck"):
            await engine.create_sandbox(volumes=DATA)

    inside(place, work)
    with pytest.raises(Conflict, match="e2fsck"):
        store.get("data")


def test_a_document_is_plain(place: Path, store: VolumeStore) -> None:
    volume = store.create("data", 1)
    said = json.loads((place / "volumes/local/data/volume.json").read_bytes())
    assert said == {"size_mb": 1, "inodes": volume.inodes, "created_at": volume.created_at}


# -- gVisor ----------------------------------------------------------------------------------


@pytest.fixture
def _gvisor(place: Path, require: Require) -> None:
    reasons = []

    async def asked(engine: Engine) -> None:
        try:
            await engine.runtime("kernel", "gvisor")
        except HostUnsupported as error:
            reasons.append(str(error))

    inside(place, asked)
    require("gvisor", not reasons, "".join(reasons))


@pytest.mark.usefixtures("_gvisor")
def test_gvisor_and_the_jail_share_a_volume(place: Path, store: VolumeStore) -> None:
    store.create("data", 16, inodes=100)

    async def work(engine: Engine) -> None:
        async with sandbox_of(engine, DATA, runtime="gvisor") as sandbox:
            await ran(sandbox, "import os; os.mkdir('/data/d'); open('/data/d/x', 'w').write('g')")
            with pytest.raises(Conflict):
                await engine.create_sandbox(volumes=DATA, runtime="jail")
        async with sandbox_of(engine, DATA, runtime="jail") as sandbox:
            code = "import os; print(os.stat('/data/d/x').st_uid, open('/data/d/x').read())"
            assert await ran(sandbox, code) == "1000 g"
        volumes = ["data:/home/user/deep/data:ro"]
        async with sandbox_of(engine, volumes, runtime="gvisor") as sandbox:
            assert await ran(sandbox, "print(open('deep/data/d/x').read())") == "g"
            execution = await sandbox.run("open('deep/data/y', 'w')")
            assert "Read-only file system" in execution.stderr

    inside(place, work)
    waiting.wait_until(lambda: not loops_of(place), "the end of the loop device")
