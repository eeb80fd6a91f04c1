"""The file system of a volume, in one sparse file: made, looked at, repaired. mke2fs(8), ext4(5).

Called by the store, which makes volumes, and by `holder`, before a mount. Blocking; it mounts
nothing. The invariants: a file system is made by us, never taken from a caller; what it promises
(free blocks, free inodes) is what was asked for, to the block.

The mount's root is `data`, a directory of the file system: what lies beside it (`lost+found`) is
out of reach of all sandboxes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cellwall.model.errors import Conflict, HostUnsupported

DATA = "data"
"""Name of the directory that sandboxes see: `jail.volumes.keeper.DATA`, which importers of this
module must not import. A test compares."""
FILES_BASE = 0x7FFF0000
"""First of the ids that own files of volumes on disk: `linux.uid_ranges.IMAGE_BASE`; likewise."""
USER = 1000
"""Inner user id that owns the top directory: that of sandboxes on templates."""
BLOCK_BYTES = 4096
_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
_BLOCKS_A_MIB = (1 << 20) // BLOCK_BYTES
_BLOCKS_A_GROUP = 8 * BLOCK_BYTES
_INODE_BYTES = 256
_OWN_INODES = 12
"""Number of inodes that the file system itself uses: ten, `lost+found` and `data`."""
_SUPERBLOCK = 1024
_MAGIC = 0xEF53
_CLEAN = 1
_NEEDS_RECOVERY = 0x4
_MOST_KEPT_BACK = 4096
"""Most blocks that ext4 itself keeps back for its own trees, of each file system a fiftieth."""
_REPAIRED = {0, 1}
"""Exit statuses of e2fsck(8) after which the file system is right."""
_TIMEOUT_S = 600.0


class Figures(NamedTuple):
    """What a superblock says."""

    free_blocks: int
    """Blocks that files may still take."""
    free_inodes: int
    is_clean: bool
    """Whether it was unmounted, or never mounted, since it was last checked."""


def make(path: Path, size_mb: int, inodes: int) -> Figures:
    """Make the file `path` with an empty file system; return its figures.

    It has exactly `size_mb` MiB for files, and at least `inodes` inodes: whole blocks of them.
    Raises HostUnsupported, OSError.
    """
    wanted = size_mb * _BLOCKS_A_MIB
    journal_mb = 4 if size_mb < 256 else 16
    blocks = _blocks(wanted, inodes, journal_mb)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, blocks * BLOCK_BYTES)
    finally:
        os.close(fd)
    content = path.with_name(f"{path.name}.content")
    with _content(content):
        options = ["-O", "^resize_inode", "-E", "lazy_journal_init=1", "-J", f"size={journal_mb}"]
        each = {"-b": BLOCK_BYTES, "-I": _INODE_BYTES, "-N": inodes + _OWN_INODES, "-m": 0}
        sizes = [word for option, number in each.items() for word in (option, str(number))]
        words = ["-q", "-F", "-t", "ext4", *options, *sizes, "-e", "remount-ro"]
        _run("mkfs.ext4", [*words, "-d", str(content), str(path)])
    # What is left over is kept back for root of the host, which no sandbox is.
    surplus = figures(path).free_blocks - wanted
    if surplus < 0:
        raise HostUnsupported(
            "volumes",
            f"volume: mkfs.ext4 left {-surplus} blocks too few",
            remedy="use e2fsprogs 1.46 or newer",
        )
    _run("tune2fs", ["-r", str(surplus), str(path)])
    return figures(path)


@contextlib.contextmanager
def _content(folder: Path) -> Iterator[None]:
    """Have a directory meanwhile with what a new file system has in it."""
    top = folder / DATA
    top.mkdir(parents=True)
    try:
        top.chmod(0o777)
        os.chown(top, FILES_BASE + USER, FILES_BASE + USER)
        yield
    finally:
        shutil.rmtree(folder)


def _blocks(wanted: int, inodes: int, journal_mb: int) -> int:
    """Return how many blocks a file system needs to have `wanted` of them for files."""
    tables = (inodes + _OWN_INODES) * _INODE_BYTES // BLOCK_BYTES
    own = tables + journal_mb * _BLOCKS_A_MIB + 1024
    whole = wanted + own
    groups = whole // _BLOCKS_A_GROUP + 2
    # Of each group bitmaps, descriptors, and a table that is rounded up.
    return whole + whole // 40 + 8 * groups + groups * groups // 64


def figures(path: Path) -> Figures:
    """Read the superblock. ext4(5); Raises OSError, Conflict if there is none."""
    with open(path, "rb") as file:
        file.seek(_SUPERBLOCK)
        data = file.read(1024)
    count, reserved, free, free_inodes = struct.unpack_from("<4I", data, 0x4)
    magic, state = struct.unpack_from("<2H", data, 0x38)
    if magic != _MAGIC:
        raise damaged(path, "it is no ext4")
    high, high_reserved, high_free = struct.unpack_from("<3I", data, 0x150)
    (incompatible,) = struct.unpack_from("<I", data, 0x60)
    blocks = count | high << 32
    kept = min(blocks // 50, _MOST_KEPT_BACK) + (reserved | high_reserved << 32)
    is_clean = state == _CLEAN and not incompatible & _NEEDS_RECOVERY
    return Figures(max(0, (free | high_free << 32) - kept), free_inodes, is_clean)


def repair(path: Path) -> None:
    """Make a file system right that was in use when its host went down. e2fsck(8).

    Raises Conflict if that cannot be done without a decision, HostUnsupported.
    """
    done = _run("e2fsck", ["-p", str(path)], accepted=range(8))
    if done.returncode not in _REPAIRED:
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-300:]
        raise damaged(path, f"e2fsck -p: {said}")


def damaged(path: Path, why: str) -> Conflict:
    """Return the error for a file system that is not right."""
    return Conflict(
        f"volume {path.parent.name}: its file system is damaged: {why}",
        remedy=f"copy {path}, and run `e2fsck -y` on it",
    )


def _run(
    name: str, words: Sequence[str], accepted: Container[int] = (0,)
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which(name, path=_PLACES)
    if program is None:
        raise HostUnsupported(
            "volumes",
            f"volume: this machine has no {name}",
            remedy="install e2fsprogs",
        )
    done = subprocess.run(
        [program, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_TIMEOUT_S,
        env={"PATH": _PLACES, "LANG": "C.UTF-8"},
    )
    if done.returncode not in accepted:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
        raise HostUnsupported(
            "volumes",
            f"volume: {name}: {said}",
            remedy="keep the state directory on a local file system with room",
        )
    return done
