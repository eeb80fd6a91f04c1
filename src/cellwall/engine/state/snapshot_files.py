"""The files of snapshots and of hibernated sandboxes: a folder for each, whole or not there.

A folder is made under another name, which its writer holds locked, synchronised, and renamed; one
whose lock is free was left by an engine that was killed. Several engines may use one directory. The
invariant: a byte is used only from a copy without a name that was found right while it was made, so
what is checked is what is loaded. Nothing here looks into a part.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.engine.state.snapshot_header import (
    MOST_BYTES,
    Damaged,
    Header,
    Part,
    decoded,
    encoded,
)
from cellwall.model.errors import CapacityError, CellwallError, NotFound, UsageError
from cellwall.model.ids import is_id, new_id, node_of

if TYPE_CHECKING:
    from cellwall.engine.state.part_seal import PartSeal

_log = logging.getLogger("cellwall.engine")
COMING, GOING = ".coming-", ".going-"
"""Begin the names of folders that are being made, and removed."""
HEADER = "header"
BASE = "base"
_CHUNK_BYTES = 1 << 20
_OCCUPIED = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_NOT_LINKED = frozenset({errno.EXDEV, errno.EMLINK, errno.ENOENT, errno.EPERM, errno.EOPNOTSUPP})
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(slots=True)
class Coming:
    """A folder that is on the disk with all of its files, and is not there before `publish`."""

    header: Header
    folder: Path
    held: contextlib.ExitStack
    """The folder's lock, and its removal if it was not published."""

    def give_up(self) -> None:
        """Remove it, unless it was published; idempotent."""
        self.held.close()


class SnapshotFiles:
    """The snapshots below one directory."""

    def __init__(self, folder: Path, seal: PartSeal | None) -> None:
        """Make the directory, for its owner alone. Raises UsageError if that cannot be."""
        self._folder = folder
        self._seal = seal
        self._bases: defaultdict[str, set[str]] = defaultdict(set)
        """Ids of snapshots whose base was found right or written here, by its digest."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
        except OSError as error:
            raise _unusable(folder, error.strerror or "") from None
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise _unusable(folder, "others than its owner may read it")

    @property
    def is_sealed(self) -> bool:
        """Whether its parts are encrypted."""
        return self._seal is not None

    # -- writing ---------------------------------------------------------------------------

    def prepare(self, header: Header, parts: Mapping[str, int], base_digest: str = "") -> Coming:
        """Write a snapshot to the disk, whose parts are files by descriptor; it is not there yet.

        `base_digest`: that of the base, if it is known. Raises CapacityError.
        """
        made = self._folder / f"{COMING}{header.id}"
        held = contextlib.ExitStack()
        try:
            with _of_the_disk():
                with locked(self._folder, fcntl.LOCK_SH):
                    made.mkdir(mode=0o700)
                    held.callback(_removed, made)
                    lock = held.enter_context(opened(made))
                    fcntl.flock(lock, fcntl.LOCK_EX)
                whole = self._filled(made, header, parts, base_digest)
                os.fsync(lock)
        except BaseException:
            held.close()
            raise
        return Coming(whole, made, held)

    def publish(self, coming: Coming) -> None:
        """Have a snapshot there, in the place of what has its id. Raises CapacityError.

        It is there after a loss of power only once `synchronise` has returned.
        """
        header = coming.header
        with _of_the_disk():
            try:
                coming.folder.rename(self._folder / header.id)
            except OSError as error:
                if error.errno not in _OCCUPIED or self.take_away(header.id) is None:
                    raise
                coming.folder.rename(self._folder / header.id)
        coming.give_up()
        if BASE in header.parts:
            self._bases[header.parts[BASE].digest].add(header.id)

    def synchronise(self) -> None:
        """Have what is there, and what is gone, be so after a loss of power, too."""
        with _of_the_disk():
            _synchronise(self._folder)

    def change(self, header: Header) -> None:
        """Replace the header of what is there, and remove the parts that it does not have.

        Raises NotFound if it is gone, CapacityError.
        """
        folder, text = self._folder / header.id, encoded(header, self._seal)
        made = folder / f"{HEADER}.{new_id()}"
        self.check(header)
        with _of_the_disk():
            try:
                with _new(made) as target:
                    _write_all(target, text)
                    os.fsync(target)
                made.rename(folder / HEADER)
            except BaseException:
                made.unlink(missing_ok=True)
                raise
            _synchronise(folder)
            for each in os.listdir(folder):
                if each != HEADER and each not in header.parts:
                    (folder / each).unlink(missing_ok=True)

    def _filled(
        self, made: Path, header: Header, parts: Mapping[str, int], base_digest: str
    ) -> Header:
        """Write all files of a folder; the header is the last."""
        found = {}
        for name, fd in parts.items():
            linked = self._linked_base(made, fd, base_digest) if name == BASE else None
            found[name] = linked or self._written(made / name, header.id, fd)
        whole = replace(header, parts=found, is_sealed=self.is_sealed)
        text = encoded(whole, self._seal)
        if len(text) > MOST_BYTES:
            raise UsageError(
                f"snapshot: what is known of its sandbox takes {len(text) >> 10} KiB",
                remedy="give the sandbox fewer or shorter variables",
            )
        with _new(made / HEADER) as target:
            _write_all(target, text)
            os.fsync(target)
        return whole

    def _linked_base(self, made: Path, fd: int, digest: str) -> Part | None:
        """Share the base of another snapshot, if there is one; return None if not."""
        for other in list(self._bases.get(digest, ())):
            try:
                os.link(self._folder / other / BASE, made / BASE, follow_symlinks=False)
                size = os.stat(made / BASE).st_size
                if size == os.fstat(fd).st_size:
                    return Part(size, size, digest)
                (made / BASE).unlink()
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
            self._bases[digest].discard(other)
        return None

    def _written(self, path: Path, snapshot: str, fd: int) -> Part:
        """Write one part, and return what is to be compared when it is read."""
        digest, stored = hashlib.sha256(), 0
        chunks = _chunks(fd)
        # A base holds nothing of a caller's; snapshots of several tenants share it.
        if self._seal is not None and path.name != BASE:
            chunks = self._seal.encrypted(chunks, f"{snapshot} {path.name}")
        with _new(path) as target:
            for chunk in chunks:
                digest.update(chunk)
                stored += len(chunk)
                _write_all(target, chunk)
            os.fsync(target)
        return Part(os.fstat(fd).st_size, stored, digest.hexdigest())

    # -- reading ---------------------------------------------------------------------------

    def ids(self) -> set[str]:
        """Return the ids of what is stored."""
        with contextlib.suppress(FileNotFoundError):
            names = [each.name for each in os.scandir(self._folder)]
            return {name for name in names if is_id(name, node_of(name))}
        return set()

    def header(self, snapshot: str) -> Header | None:
        """Return a header; None if its snapshot is gone, or the header of no use, which is said."""
        try:
            return self.read(snapshot)
        except CellwallError as error:
            _log.warning("%s", error)
        return None

    def read(self, snapshot: str) -> Header | None:
        """Return a header; None if its snapshot is gone. Raises Damaged, Conflict."""
        try:
            with opened(self._folder / snapshot / HEADER) as fd:
                found = decoded(os.read(fd, MOST_BYTES), snapshot, self._seal)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise Damaged(snapshot, f"read its header: {error.strerror}") from None
        if found.id != snapshot:
            raise Damaged(snapshot, "its header is another's")
        return found

    def copy(self, header: Header, name: str, target: int) -> None:
        """Copy a part to an empty file while its digest is made. Raises Damaged, NotFound."""
        part = header.parts[name]
        try:
            with opened(self._folder / header.id / name) as source:
                size, digest = self._copied(source, target, header, name)
        except FileNotFoundError:
            self.check(header)
            raise header.damaged(f"its {name} is missing") from None
        except ValueError as error:
            raise header.damaged(f"its {name}: {error}") from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
                raise CapacityError(
                    f"restore: copy its {name}: {error.strerror}",
                    retry_after_s=60.0,
                    remedy="have the operator make room in the state directory",
                ) from error
            raise header.damaged(f"its {name}: {error.strerror}") from error
        if (size, digest) != (part.size, part.digest):
            raise header.damaged(f"its {name} is not what was written")
        if name == BASE:
            self._bases[part.digest].add(header.id)

    def has_base(self, digest: str, snapshots: Collection[str]) -> bool:
        """Report whether one of these snapshots has a base with that digest, which is compared."""
        for each in tuple(snapshots):
            with contextlib.suppress(OSError), opened(self._folder / each / BASE) as source:
                found = hashlib.sha256()
                for chunk in _chunks(source):
                    found.update(chunk)
                if found.hexdigest() == digest:
                    self._bases[digest].add(each)
                    return True
        return False

    def _copied(self, source: int, target: int, header: Header, name: str) -> tuple[int, str]:
        """Return the size of what was put in, and the digest of the file."""
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise ValueError("it is no file")
        digest, size = hashlib.sha256(), 0
        chunks = _noted(_chunks(source), digest)
        if self._seal is not None and name != BASE:
            chunks = self._seal.decrypted(chunks, f"{header.id} {name}")
        for chunk in chunks:
            size += len(chunk)
            if size > header.parts[name].size:
                raise ValueError("it is longer than what was written")
            _write_all(target, chunk)
        return size, digest.hexdigest()

    def check(self, header: Header) -> None:
        """Raise NotFound if a snapshot is gone."""
        if not (self._folder / header.id / HEADER).exists():
            raise NotFound(
                f"{header.called}: it was deleted", remedy="list the snapshots that are left"
            )

    # -- removing --------------------------------------------------------------------------

    def take_away(self, snapshot: str) -> Path | None:
        """Have a snapshot gone from now on; return what `removed` then removes."""
        for having in list(self._bases.values()):
            having.discard(snapshot)
        going = self._folder / f"{GOING}{snapshot}.{new_id()}"  # one id may go more than once
        with contextlib.suppress(OSError):  # another engine was sooner
            (self._folder / snapshot).rename(going)
            return going
        return None

    def is_there(self, snapshot: str) -> bool:
        """Report whether there is a folder of that id."""
        return (self._folder / snapshot).exists()

    @staticmethod
    def removed(going: Path) -> None:
        """Remove what was taken away."""
        _removed(going)

    def sweep(self) -> int:
        """Remove what killed engines left; return how many folders that were."""
        count = 0
        with contextlib.suppress(BlockingIOError), locked(self._folder, fcntl.LOCK_EX):
            for each in [*self._folder.glob(f"{COMING}*"), *self._folder.glob(f"{GOING}*")]:
                with contextlib.suppress(BlockingIOError, FileNotFoundError), locked(each):
                    _removed(each)
                    count += 1
        return count


@contextlib.contextmanager
def _of_the_disk() -> Iterator[None]:
    """Raise CapacityError for what the disk refuses."""
    try:
        yield
    except OSError as error:
        raise CapacityError(
            f"snapshot: write it to disk: {error.strerror}",
            retry_after_s=60.0,
            remedy="delete snapshots, or have the operator make room in snapshots_dir",
        ) from error


@contextlib.contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of a folder. Raises BlockingIOError if an exclusive one cannot be had now."""
    with opened(path) as fd:
        fcntl.flock(fd, how | (fcntl.LOCK_NB if how == fcntl.LOCK_EX else 0))
        yield


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor of a file or folder of ours."""
    fd = os.open(path, _OPEN)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _new(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _chunks(fd: int) -> Iterator[bytes]:
    """Yield a file from its beginning; its position stays."""
    position = 0
    while chunk := os.pread(fd, _CHUNK_BYTES, position):
        position += len(chunk)
        yield chunk


def _noted(chunks: Iterator[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _synchronise(folder: Path) -> None:
    with opened(folder) as fd:
        os.fsync(fd)


def _removed(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _unusable(folder: Path, why: str) -> UsageError:
    return UsageError(
        f"settings: snapshots_dir: {folder}: {why}",
        remedy="give a directory that the server's user alone may read and write (chmod 700)",
    )
