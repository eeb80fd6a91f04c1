"""Group D, and what an image adds: root inside an image has no power outside of its sandbox.

The probes and their controls are those of the other sandboxes; their words differ where root of a
user namespace may do to its own sandbox what a plain user may not.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall import AsyncSandbox
from cellwall.jail.plan import image_plan
from cellwall.linux.uid_ranges import COUNT, IMAGE_BASE
from cellwall.model.errors import CellwallError
from kit import controls
from kit.arena import descendants
from kit.images.host_tree import APP, ImageArena, image

pytestmark = [pytest.mark.attack, pytest.mark.root]
MIB = 1 << 20


@pytest.fixture(scope="module")
def tree(image_tree: Path) -> Path:
    return image_tree


@pytest.fixture(scope="module", params=[0, APP], ids=["root", "app"])
def place(request: pytest.FixtureRequest, tree: Path) -> Iterator[ImageArena]:
    arena = ImageArena(image(tree, request.param))
    yield arena
    arena.close()


@pytest.fixture(scope="module")
def rooted(tree: Path) -> Iterator[ImageArena]:
    arena = ImageArena(image(tree))
    yield arena
    arena.close()


@pytest.fixture(scope="module")
def tried(place: ImageArena) -> Iterator[controls.Both]:
    with tempfile.TemporaryDirectory(prefix="bait-") as work:
        Path(work).chmod(0o777)
        inside = {"work": "/tmp", "pid": "1"}
        outside = {"work": work, "pid": str(os.getpid())}
        yield controls.both(place, "probe_privilege", {"inside": inside, "outside": outside})


@pytest.mark.parametrize(
    ("case", "words", "poisoned"),
    [
        pytest.param("D01", "EPERM", False, id="D01-unshare"),
        pytest.param("D02", "EPERM", False, id="D02-clone"),
        pytest.param("D03", "ENOSYS", False, id="D03-clone3"),
        pytest.param("D05", "EPERM ENOENT ENOTTY EACCES", True, id="D05-join-namespaces"),
        pytest.param("D06", "EPERM", True, id="D06-mount-calls"),
        pytest.param("D07", "EPERM", True, id="D07-unmount-masks"),
        pytest.param("D10", "EPERM", True, id="D10-no-way-back"),
        pytest.param("D11", "EACCES EPERM ENOENT", False, id="D11-memory-of-init"),
        pytest.param("D14", "EPERM EACCES EROFS", False, id="D14-id-maps"),
        pytest.param("D16", "EPERM EACCES", False, id="D16-priority"),
        pytest.param("D17", "EPERM", True, id="D17-machine"),
        pytest.param("D18", "EPERM", True, id="D18-hardware"),
        pytest.param("G25", "EPERM", False, id="G25-clock"),
    ],
)
def test_privilege_is_denied(tried: controls.Both, case: str, words: str, poisoned: bool) -> None:
    tried.denied(case, words, poisoned=poisoned)


LEAVE = """
import os
before = os.stat("/").st_dev, os.stat("/").st_ino
os.makedirs("/tmp/cell/below", exist_ok=True)
top = os.open("/", os.O_RDONLY)
try:
    os.chroot("/tmp/cell")
except PermissionError:
    print("REFUSED")
else:
    print("SMALLER", os.listdir("/"))
    os.fchdir(top)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    after = os.stat("/").st_dev, os.stat("/").st_ino
    print("SAME", after == before)
    print("BAIT", os.path.exists({bait!r}))
"""


def leave_a_chroot(place: ImageArena, bait: str) -> str:
    """What the usual way out of a chroot says inside."""

    async def attack() -> str:
        async with place.sandbox(image=place.root) as sandbox:
            done = await sandbox.run(LEAVE.format(bait=bait))
            return done.stdout

    return place.do(attack())


def test_root_inside_leaves_a_chroot_for_its_own_root(place: ImageArena) -> None:
    """D06: chroot(2) is root's inside; its control leaves one on the host, and finds the bait."""
    with tempfile.NamedTemporaryFile(prefix="bait-") as bait:
        control = controls.run_in("root", LEAVE.format(bait=bait.name))
        assert control.split("\n", 1)[1] == "SMALLER ['below']\nSAME True\nBAIT True\n"
        found = leave_a_chroot(place, bait.name)
        was = "REFUSED\n" if place.root.uid else "SMALLER ['below']\nSAME True\nBAIT False\n"
        assert found == was


def test_chroot_is_reached_by_root_alone(place: ImageArena, tried: controls.Both) -> None:
    """The call's argument is a bad address, of which the kernel complains once it may be made."""
    word = tried.inside["D06-chroot", "chroot"].word
    assert word == ("EPERM" if place.root.uid else "EFAULT")
    assert tried.outside["D06-chroot", "chroot"].word == "EFAULT"


def _threads(sandbox: AsyncSandbox) -> list[Path]:
    init = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
    pids = {init, *descendants(init)}
    return [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]


def test_posture_of_every_thread(place: ImageArena) -> None:
    """D12: the capabilities are those of the list, and the ids those of this sandbox alone."""
    uid = place.root.uid
    mask = image_plan.ROOT_CAPABILITIES if uid == 0 else 0
    held = f"{mask:016x}"

    async def attack() -> None:
        async with place.sandbox(image=place.root) as sandbox:
            await sandbox.run("import subprocess; subprocess.Popen(['sleep', '60'])")
            found = _threads(sandbox)
            assert len(found) >= 3
            for task in found:
                status = (task / "status").read_text()
                first, start, count = (task / "uid_map").read_text().split()
                assert (first, count) == ("0", str(COUNT))
                assert int(start) % COUNT == 0
                assert int(start) < IMAGE_BASE
                host = int(start) + uid
                assert f"\nUid:\t{host}\t{host}\t{host}\t{host}\n" in status
                for name in ("CapPrm", "CapEff", "CapBnd"):
                    assert f"\n{name}:\t{held}\n" in status
                for name in ("CapInh", "CapAmb"):
                    assert f"\n{name}:\t{'0' * 16}\n" in status
                assert "\nNoNewPrivs:\t1\nSeccomp:\t2\n" in status

    place.do(attack())


def digest(tree: Path) -> str:
    """Everything that the host can see of the tree: names, owners, modes, contents, times."""
    lines = []
    for folder, names, files in os.walk(tree):
        for name in (*names, *files):
            path = Path(folder, name)
            found = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            digest = hashlib.sha256(content).hexdigest()
            lines.append(f"{path} {found.st_uid} {found.st_mode} {found.st_mtime_ns} {digest}")
    return "\n".join(sorted(lines))


CHANGE = """
import os, shutil
os.chown("/usr/bin/python3.11" if os.path.exists("/usr/bin/python3.11") else "/bin/sh", 5, 5)
open("/etc/passwd", "a").write("evil:x:0:0::/:/bin/sh\\n")
os.chmod("/bin/su", 0o4777)
shutil.rmtree("/usr/share", ignore_errors=True)
os.utime("/etc/group", (1, 1))
os.rename("/etc/group", "/etc/other")
os.symlink("/etc/other", "/etc/group")
os.mkdir("/usr/share")
print("CHANGED", sorted(os.listdir("/usr/share")), os.stat("/bin/su").st_mode & 0o7777 == 0o4777)
"""


def test_changes_stay_in_their_sandbox(rooted: ImageArena, tree: Path) -> None:
    """A05: what root changes is its own sandbox's; the host's tree and a neighbour show none."""
    before = digest(tree)

    async def attack() -> None:
        async with (
            rooted.sandbox(image=rooted.root) as one,
            rooted.sandbox(image=rooted.root) as other,
        ):
            await one.files.write("/tmp/change.py", CHANGE)
            said = await one.commands.run(["python3", "/tmp/change.py"])
            assert said.stdout == "CHANGED [] True\n", said
            passwd = await other.commands.run(["cat", "/etc/passwd"])
            assert "evil" not in passwd.stdout
            assert (await other.commands.run(["ls", "/usr/share"])).stdout

    rooted.do(attack())
    assert digest(tree) == before


def _id_map(pid: int) -> str:
    return Path(f"/proc/{pid}/uid_map").read_text()


def _mounts(pid: int) -> list[list[str]]:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [re.split(r"\s+", line) for line in lines]


def test_neighbours_have_different_ids(rooted: ImageArena) -> None:
    """E04: a file of one sandbox's root belongs to no id of the other; host's witness."""

    async def attack() -> None:
        async with (
            rooted.sandbox(image=rooted.root) as one,
            rooted.sandbox(image=rooted.root) as other,
        ):
            starts = set()
            for each in (one, other):
                pid = each.live.runtime_sandbox.pid  # type: ignore[attr-defined]
                starts.add(int(_id_map(pid).split()[1]))
            assert len(starts) == 2
            assert min(abs(a - b) for a in starts for b in starts if a != b) >= COUNT

    rooted.do(attack())


FILL = """
import os
size = 0
with open("/big", "wb", buffering=0) as file:
    try:
        while True:
            size += file.write(b"x" * 65536)
    except OSError as error:
        print(error.errno, size)
"""
COUNT_INODES = """
import os
os.mkdir("/many")
made = 0
try:
    while made < 100000:
        os.close(os.open(f"/many/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    print(error.errno, made)
"""


def test_disk_and_inodes_are_hard(rooted: ImageArena) -> None:
    """C01, C02: writes anywhere in the root count, and end where the limit says."""
    rooted.do(disk_and_inodes_are_hard(rooted, ""))


async def disk_and_inodes_are_hard(place: ImageArena, folder: str) -> None:
    """Fill a directory with bytes, and with files, of a sandbox each; on each wall."""
    limits = {"disk_mb": 32, "inodes": 500, "file_mb": 64}
    said = await place.on_image(FILL.replace("/big", f"{folder}/big"), limits)
    number, size = (int(word) for word in said.stdout.split())
    assert number == errno.ENOSPC
    assert 30 * MIB < size <= 32 * MIB
    said = await place.on_image(COUNT_INODES.replace("/many", f"{folder}/many"), limits)
    number, made = (int(word) for word in said.stdout.split())
    assert number == errno.ENOSPC
    assert 450 < made <= 500


POWER = """
import os, subprocess
os.chmod("/usr/bin/setsid", 0o4755)
os.setgid(1001); os.setuid(1001)
who = ["python3", "-c", "import os; print(os.geteuid())"]
print(subprocess.run(who, capture_output=True).stdout)
print(subprocess.run(["/usr/bin/setsid", "-w", *who], capture_output=True).stdout)
try:
    os.setuid(0)
    print("REACHED")
except OSError as error:
    print(error.errno)
"""


def test_who_left_root_does_not_come_back(rooted: ImageArena) -> None:
    """D08: a set-uid file gives nothing, and a process that became a user stays that."""
    said = rooted.do(rooted.on_image(POWER))
    assert said.stdout.split() == ["b'1001\\n'", "b'1001\\n'", str(errno.EPERM)]


@pytest.mark.parametrize("name", ["proc", "sys", "dev", "tmp"])
def test_root_with_links_for_mount_points_does_not_start(
    rooted: ImageArena, tree: Path, tmp_path: Path, name: str
) -> None:
    """N15: an image that leads our mounts elsewhere is found out by where the kernel has them."""
    hostile = tmp_path / "tree"
    for path in ("bin", "etc", "opt/cellwall", "dev/pts", "dev/shm", "proc", "sys", "tmp", "var"):
        (hostile / path).mkdir(parents=True)
    if name == "tmp":
        (hostile / "opt/cellwall").rmdir()
        (hostile / "opt").rmdir()
        (hostile / "opt").symlink_to("/var")
    else:
        for below in sorted((hostile / name).iterdir()):
            below.rmdir()
        (hostile / name).rmdir()
        (hostile / name).symlink_to("/var")

    async def attack() -> None:
        with pytest.raises(CellwallError, match=r"posture|sandbox set-up"):
            async with rooted.sandbox(image=image(hostile)):
                pass

    with rooted.leaving_nothing():
        rooted.do(attack())


def test_what_is_mounted_is_only_what_the_plan_says(rooted: ImageArena) -> None:
    """N15: every mount but the root, shm and terminals is read-only, and none lets set-uid work."""

    async def attack() -> None:
        async with rooted.sandbox(image=rooted.root) as sandbox:
            pid = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
            found = _mounts(pid)
            assert any(words[4] == "/" for words in found)
            for words in found:
                options = words[5].split(",")
                assert "nosuid" in options
                assert "nodev" in options or words[4].startswith("/dev/")
                writable = {"/", "/dev/shm", "/dev/pts"}
                assert "ro" in options or words[4] in writable, words

    rooted.do(attack())
