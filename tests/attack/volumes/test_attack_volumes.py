"""Hostile code with a volume: what it leaves there does nothing outside, and limits hold.

Controls are done by this process, as root, on a file system that `ext4.make` made and that is
mounted as a volume is not: with set-uid and devices, in a mount namespace of the control's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cellwall import Engine
from cellwall.engine.volumes.content import Content
from cellwall.linux.uid_ranges import IMAGE_BASE
from cellwall.model.errors import FileError, HostUnsupported, SandboxBroken, UsageError
from cellwall.runtimes.volumes import ext4
from kit.images.volume_walls import ran

if TYPE_CHECKING:
    from kit.images.volume_walls import Wall

pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.timeout(120)]
on_images = pytest.mark.parametrize(
    "wall", ["jail-image", "gvisor-image", "docker-image"], indirect=True
)
SECRET = "the host's own secret"
VOLUMES = "volumes/local"


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    path = tmp_path / "bait"
    path.write_text(SECRET)
    return path


def attacked(wall: Wall, code: str, volume: str = "data:/data") -> str:
    """Run Python in a sandbox with the volume: as root in an image, or as a template's user."""
    found: list[str] = []

    async def work(engine: Engine) -> None:
        async with wall.sandbox(engine, [volume]) as sandbox:
            found.append(await ran(sandbox, code))

    wall.inside(work)
    return found[0]


def naked(code: str, path: str, options: str = "suid,dev") -> str:
    """Run the same Python as root of the host, with a file system like that of a volume."""
    point = f"{path}.mounted"
    os.makedirs(point, exist_ok=True)
    code = code.replace("/data", f"{point}/data")
    words = f"mount -o loop,{options} '{path}' '{point}' && exec \"$0\" -c \"$1\""
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", words, sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def plain(tmp_path: Path) -> str:
    path = tmp_path / "plain.img"
    ext4.make(path, 16, 1024)
    return str(path)


DEVICE = """
import os, stat
try:
    os.mknod("/data/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    print(os.write(os.open("/data/null", os.O_WRONLY), b"x"))
except OSError as error:
    print(error.strerror)
"""


def test_a_device_node_is_denied(wall: Wall, plain: str) -> None:
    said = attacked(wall, DEVICE)
    assert said == "Operation not permitted"
    assert naked(DEVICE, plain) == "1"
    assert naked(DEVICE.replace("/data/null", "/data/other"), plain, "nodev") == "Permission denied"


RUN_IT = """
import os, subprocess
words = ["/data/id", "python3", "-c", "import os; print(os.geteuid())"]
said = subprocess.run(words, capture_output=True, text=True).stdout.strip()
print(said == str(os.getuid()), said == "0")
"""
SET_UID = """
import os, shutil
shutil.copy("/usr/bin/id", "/data/id")
os.chown("/data/id", 0, 0)
os.chmod("/data/id", 0o6755)
print(oct(os.stat("/data/id").st_mode))
"""


@on_images
def test_a_set_uid_file_gives_nothing_outside(wall: Wall) -> None:
    """On disk it belongs to an id that no account and no process has."""
    script = SET_UID.replace("/usr/bin/id", "/bin/su")
    assert attacked(wall, script) == "0o106755"
    path = wall.place / VOLUMES / "data/volume.img"
    words = ["debugfs", "-R", "stat data/id", str(path)]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Mode:  06755" in found
    assert f"User: {IMAGE_BASE} " in " ".join(found.split())


@on_images
def test_a_set_uid_file_gives_nothing_to_another_sandbox(wall: Wall, plain: str) -> None:
    make = SET_UID.replace("/usr/bin/id", "/usr/bin/setsid")
    attacked(wall, make)
    assert attacked(replace(wall, tree=None), RUN_IT) == "True False"
    control = SET_UID + (
        "import subprocess\n"
        "fd = os.open('/data/id', os.O_PATH)\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "print(subprocess.run([f'/proc/self/fd/{fd}', '-u'], pass_fds=[fd], "
        "capture_output=True, text=True).stdout.strip())"
    )
    assert naked(control, plain).splitlines()[-1] == "0"


LINKS = """
import os
os.symlink({bait!r}, "/data/file")
os.symlink({folder!r}, "/data/folder")
os.mkdir("/data/d")
os.symlink({bait!r}, "/data/d/file")
os.symlink("/", "/data/d/root")
open("/data/d/real", "w").write("real")
print("made")
"""


def test_links_lead_nowhere_outside(wall: Wall, bait: Path, tmp_path: Path) -> None:
    code = LINKS.format(bait=str(bait), folder=str(bait.parent))
    assert attacked(wall, code) == "made"

    async def work(engine: Engine) -> None:
        content = Content(engine)
        for path in ("file", "folder/bait", "d/file", "folder"):
            with pytest.raises(FileError):
                await content.get("data", path, tmp_path / "got")
        (tmp_path / "innocent").write_text("new")
        with pytest.raises(FileError):
            await content.put("data", tmp_path / "innocent", "folder/bait")
        await content.get("data", "d", tmp_path / "tree")
        with pytest.raises(UsageError):
            await content.get("data", "../etc/passwd", tmp_path / "got")

    wall.inside(work)
    assert sorted(path.name for path in (tmp_path / "tree").iterdir()) == ["real"]
    assert not (tmp_path / "got").exists()
    assert bait.read_text() == SECRET
    link = tmp_path / "control"
    link.symlink_to(bait)
    assert link.read_text() == SECRET  # what a host that followed it would have read


NAMES = r"""
import os
for name in (b"-rf", b"a\nb", b"\xff\xfe", b"n" * 255, b"$(touch x)", b"\x1b[2J", b" ", b"..."):
    open(b"/data/" + name, "w").write("x")
path = "/data"
for depth in range(60):
    path += "/d" * 10
    os.makedirs(path, exist_ok=True)
print(len(os.listdir(b"/data")))
"""


def test_hostile_names_do_nothing_to_the_store(wall: Wall) -> None:
    assert int(attacked(wall, NAMES)) == 9
    store = wall.store
    assert store.get("data").used_inodes > 300
    store.copy("data", "copy")
    store.remove("data")
    assert [each.name for each in store.volumes()] == ["copy"]
    assert sorted(path.name for path in (wall.place / VOLUMES).iterdir()) == ["copy"]


CONTROL_CALLS = """
import errno, fcntl, os, struct
calls = {
    "freeze": (0xC0045877, struct.pack("i", 0)),
    "trim": (0xC0185879, struct.pack("3Q", 0, 1 << 40, 0)),
    "shutdown": (0x8004587D, struct.pack("I", 1)),
    "immutable": (0x40086602, struct.pack("L", 0x10)),
    "resize": (0x40086610, struct.pack("Q", 1 << 30)),
}
fd = os.open("/data", os.O_RDONLY)
said = []
for name, (number, data) in calls.items():
    try:
        fcntl.ioctl(fd, number, data)
        said.append(name)
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.EACCES, errno.ENOTTY), (name, error)
print(*said)
"""


def test_the_file_system_is_not_controlled_from_inside(wall: Wall, plain: str) -> None:
    assert attacked(wall, CONTROL_CALLS) == ""
    trim = CONTROL_CALLS.replace('"freeze"', '"trim"').replace("0xC0045877", "0xC0185879")
    control = trim.replace('struct.pack("i", 0)', 'struct.pack("3Q", 0, 1 << 40, 0)')
    lines = [each for each in control.splitlines() if '"shutdown"' not in each]
    assert "trim" in naked("\n".join(lines), plain)


ABOVE = """
import os
print("lost+found" in os.listdir("/data/.."), os.listdir("/data"))
"""


def test_nothing_lies_above_the_top(wall: Wall, plain: str) -> None:
    assert attacked(wall, ABOVE) == "False []"
    assert "lost+found" in naked("import os; print(os.listdir('/data/..'))", plain)


READ_ONLY = """
import os
said = []
for call in (
    lambda: open("/data/new", "w"),
    lambda: open("/data/x", "a"),
    lambda: os.chmod("/data/x", 0o777),
    lambda: os.utime("/data/x", (1, 1)),
    lambda: os.rename("/data/x", "/data/y"),
    lambda: os.remove("/data/x"),
    lambda: os.link("/data/x", "/data/y"),
):
    try:
        call()
        said.append("done")
    except OSError as error:
        said.append(error.strerror)
print(*sorted(set(said)), sep="|")
"""


def test_a_reader_changes_nothing(wall: Wall) -> None:
    attacked(wall, "open('/data/x', 'w').write('x')")
    said = attacked(wall, READ_ONLY, "data:/data:ro")
    assert said == "Read-only file system"
    assert "done" in attacked(wall, READ_ONLY)


@on_images
def test_an_image_with_a_link_in_the_path_does_not_start(wall: Wall, tmp_path: Path) -> None:
    """Else a hostile image could have a volume where its caller did not want it.

    Under gVisor root of the host makes the mount point, and would make it where the link leads.
    """
    assert wall.tree is not None
    aim = tmp_path / "aim"
    aim.mkdir()
    for target in ("/home/app", str(aim)):
        link = wall.tree / "data"
        link.symlink_to(target)
        os.lchown(link, IMAGE_BASE, IMAGE_BASE)
        try:
            with pytest.raises((SandboxBroken, HostUnsupported), match="/data/x"):
                attacked(wall, "print(1)", "data:/data/x")
        finally:
            link.unlink()
        assert not list(aim.iterdir())
    assert attacked(wall, "print(1)", "data:/data/x") == "1"
    (tmp_path / "control").symlink_to(aim)
    (tmp_path / "control/x").mkdir()
    assert list(aim.iterdir())  # what a host that followed it would have made


NO_LOOPS = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cellwall import Engine, EngineSettings
from cellwall.model.errors import HostUnsupported
from cellwall.engine.templates.store import TemplateStore, state_dir

async def main():
    settings = EngineSettings(pool_min=0, pool_max=0)
    engine = Engine(Path(sys.argv[1]), settings, templates=TemplateStore(state_dir()))
    try:
        await engine.create_sandbox(volumes={"data": "/data"})
    except HostUnsupported as error:
        print(error.feature, "loop device" in error.remedy)
    await engine.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("wall", ["jail-template"], indirect=True)
def test_no_free_loop_device_is_an_error_of_the_host(wall: Wall) -> None:
    make = "d=$(mktemp -d) && mount -t tmpfs none $d && cd $d && mkdir shm pts && "
    make += "cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty . && "
    make += 'cd / && mount --move $d /dev && rmdir $d; exec "$0" -c "$1" "$2" "$3"'
    source = str(Path(ext4.__file__).parents[3])
    words = [sys.executable, NO_LOOPS, str(wall.place), source]
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", make, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "volumes True\n", done.stderr
    assert attacked(wall, "print(1)") == "1"
