"""The volumes of one state directory, by owner and name: made, found, copied, removed.

Used by the engine and by `cellwall volumes`. It mounts nothing (`runtimes.volumes`), and it opens
no path inside of a volume. Blocking. The invariants: a volume is there whole or not at all; one
that is in use is neither removed nor copied while it is written.

    volumes/<owner>/<name>/volume.img     its file system, sparse, made by us
                           volume.json    what is known of it
                           lock           held while locks are taken
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cellwall.model.errors import CellwallError, Conflict, HostUnsupported
from cellwall.model.shortage import shortage
from cellwall.model.volume import Volume, VolumeMount, check_name, check_size
from cellwall.runtimes.roots import VolumeRoot
from cellwall.runtimes.volumes import ext4, locks

_DOCUMENT = "volume.json"
_COMING, _GOING = ".coming-", ".going-"
_PIECE = 1 << 26
_CLONE = 0x40049409
"""FICLONE of ioctl_ficlone(2): share the blocks, where the host's file system can."""


class VolumeStore:
    """The volumes of one state directory."""

    def __init__(self, directory: Path) -> None:
        """Touch nothing yet."""
        self._folder = directory / "volumes"

    def create(
        self, name: str, size_mb: int = 1024, inodes: int | None = None, owner: str = ""
    ) -> Volume:
        """Make an empty volume of `size_mb` MiB.

        `inodes`: number of files and directories that it may have, by default one for each 16 KiB;
        rounded up to whole blocks, the answer says to what. Raises UsageError, Conflict if the
        name is taken, HostUnsupported, CapacityError.
        """
        size_mb, inodes = check_size(size_mb, inodes)
        with _Coming(self._of(owner), check_name(name)) as coming:
            made = ext4.make(coming.place / locks.IMAGE, size_mb, inodes)
            document = {"size_mb": size_mb, "inodes": made.free_inodes, "created_at": time.time()}
            coming.appear(document)
        return self.get(name, owner)

    def copy(self, source: str, name: str, owner: str = "") -> Volume:
        """Make a volume with the content that another has now.

        Raises NotFound, and Conflict if a sandbox writes to the source, or the name is taken.
        """
        folder = self._path(source, owner)
        with _Coming(self._of(owner), check_name(name)) as coming:
            file = locks.acquire(folder, exclusive=False)
            try:
                document = _read(folder)
                _copied(file, coming.place / locks.IMAGE)
            finally:
                os.close(file)
            coming.appear({**document, "created_at": time.time()})
        return self.get(name, owner)

    def volumes(self, owner: str = "") -> list[Volume]:
        """Return the volumes of an owner, by name."""
        folder = self._of(owner)
        names = sorted(path.name for path in _folders(folder) if not path.name.startswith("."))
        return [self.get(name, owner) for name in names if (folder / name / _DOCUMENT).exists()]

    def get(self, name: str, owner: str = "") -> Volume:
        """Return a volume. Raises NotFound."""
        folder = self._path(name, owner)
        said = _read(folder)
        image = folder / locks.IMAGE
        found, size_mb, inodes = ext4.figures(image), said["size_mb"], said["inodes"]
        return Volume(
            name=name,
            size_mb=size_mb,
            inodes=inodes,
            created_at=said["created_at"],
            used_bytes=max(0, (size_mb << 20) - found.free_blocks * ext4.BLOCK_BYTES),
            used_inodes=max(0, inodes - found.free_inodes),
            disk_bytes=image.stat().st_blocks * 512,
        )

    def check(self, name: str, owner: str = "") -> None:
        """Raise NotFound unless there is a volume of that name."""
        self._path(name, owner)

    def remove(self, name: str, owner: str = "") -> None:
        """Remove a volume and all that is in it. Raises NotFound, Conflict if it is in use."""
        folder = self._path(name, owner)
        file = locks.acquire(folder, exclusive=True, is_to_be_used=False)
        try:
            going = folder.with_name(f"{_GOING}{secrets.token_hex(8)}")
            folder.rename(going)
            shutil.rmtree(going)
        finally:
            os.close(file)

    def attached(self, mounts: tuple[VolumeMount, ...], owner: str = "") -> tuple[VolumeRoot, ...]:
        """Return volumes as a runtime takes them. Raises NotFound."""
        return tuple(
            VolumeRoot(each.name, each.path, each.read_only, str(self._path(each.name, owner)))
            for each in mounts
        )

    def sweep(self) -> int:
        """Remove what is left of volumes that an ended process was making or removing."""
        left = [
            place
            for owner in _folders(self._folder)
            for place in _folders(owner)
            if place.name.startswith((_COMING, _GOING)) and _is_left(place)
        ]
        for place in left:
            shutil.rmtree(place, ignore_errors=True)
        return len(left)

    def _of(self, owner: str) -> Path:
        digest = hashlib.sha256(owner.encode()).hexdigest()[:32]
        return self._folder / (f"tenant-{digest}" if owner else "local")

    def _path(self, name: str, owner: str) -> Path:
        folder = self._of(owner) / check_name(name)
        if not (folder / _DOCUMENT).exists():
            raise locks.absent(name)
        return folder


class _Coming:
    """A volume under construction; it has its name once it is whole, and is gone otherwise."""

    def __init__(self, owner: Path, name: str) -> None:
        self._target = owner / name
        self.place = owner / f"{_COMING}{secrets.token_hex(8)}"
        self._lock = -1

    def __enter__(self) -> _Coming:
        if os.geteuid() != 0:
            raise HostUnsupported(
                "volumes",
                "volume: an ordinary user cannot mount one",
                remedy="run cellwall as root",
            )
        if self._target.exists():
            raise self._taken()
        self.place.mkdir(mode=0o700, parents=True)
        self._target.parent.chmod(0o700)
        self._lock = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def _taken(self) -> Conflict:
        return Conflict(
            f"volume {self._target.name}: the name is taken",
            remedy="use it, choose another name, or remove it first",
        )

    def appear(self, document: dict[str, Any]) -> None:
        """Write the document, have all on disk, and give the volume its name."""
        (self.place / _DOCUMENT).write_text(json.dumps(document), encoding="utf-8")
        for path in (self.place / locks.IMAGE, self.place / _DOCUMENT, self.place):
            _synced(path)
        try:
            self.place.rename(self._target)
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
                raise self._taken() from None
            raise
        _synced(self._target.parent)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        os.close(self._lock)
        if self.place.exists():
            shutil.rmtree(self.place, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, CellwallError):
            raise _explained(error) from error


def _explained(error: OSError) -> CellwallError:
    short = shortage(error.errno, "volume: make it", error, on_disk=True)
    return short or HostUnsupported(
        "volumes",
        f"volume: make it: {error}",
        remedy="keep the state directory on a local file system with room",
        errno=error.errno,
    )


def _is_left(place: Path) -> bool:
    """Whether no process is making this volume: one would hold its lock."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _folders(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []


def _read(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / _DOCUMENT).read_bytes())
    except FileNotFoundError:
        raise locks.absent(folder.name) from None
    return found


def _synced(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copied(source: int, path: Path) -> None:
    """Copy a sparse file: by reference where possible, else its parts that are no holes."""
    target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.ioctl(target, _CLONE, source)
        except OSError:
            size = os.fstat(source).st_size
            os.ftruncate(target, size)
            for start, end in _parts(source, size):
                _copied_part(source, target, start, end)
    finally:
        os.close(target)


def _copied_part(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        count = os.copy_file_range(source, target, min(_PIECE, end - start), start, start)
        if not count:
            raise OSError(errno.EIO, "the source became shorter")
        start += count


def _parts(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data, as offsets. lseek(2), SEEK_DATA."""
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        yield start, end
