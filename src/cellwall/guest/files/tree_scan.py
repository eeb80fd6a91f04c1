"""What lies below a directory, with fingerprints, and the content that the engine does not have.

`child_tasks.py` runs this in a child; the engine's `history` reads what it writes (`tree_records`).
Every file is read whole each time: its size, times and inode prove nothing, because a program that
keeps a file mapped can write to it without changing any of them (design/0039).

It changes nothing but, for as long as it reads, modes that keep their owner out. The invariant:
what could not be read is a refusal that names it, never left out.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, NamedTuple

from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.files import tree_records as records
from cellwall.guest.files.files import open_regular
from cellwall.guest.files.tree_walk import AFTER, BEFORE, Visit, walk_tree

if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.files.child_tasks import Task

_MOST_READ_BYTES = 8 << 30
"""Most bytes read of one tree; holes are not read where the file system tells them."""
_MOST_PATHS_BYTES = 16 << 20
_MOST_CLOSED_FOLDERS = 128
_HELD_BYTES = 1 << 20
"""A file up to this size is held, so that it need not be read twice."""
_KINDS = {
    stat.S_IFDIR: records.FOLDER,
    stat.S_IFLNK: records.LINK,
    stat.S_IFIFO: records.FIFO,
    stat.S_IFSOCK: records.SOCKET,
    stat.S_IFCHR: records.DEVICE,
    stat.S_IFBLK: records.DEVICE,
}
_DIGEST_BYTES = 32


def scan(path: str, most_files: int, wants_content: bool) -> Task:
    """Return a task that describes a tree of at most `most_files`.

    Its input are the fingerprints whose content is known; content of others follows each, if it is
    wanted.
    """
    return lambda input_r, output_w: _scan(path, most_files, wants_content, (input_r, output_w))


def _scan(path: str, most_files: int, wants_content: bool, fds: tuple[int, int]) -> Header:
    with os.fdopen(fds[0], "rb", closefd=False) as stream:
        raw = stream.read()
    known = {raw[at : at + _DIGEST_BYTES] for at in range(0, len(raw), _DIGEST_BYTES)}
    with os.fdopen(fds[1], "wb", 256 * 1024, closefd=False) as output:
        scanning = _Scan(output, most_files, wants_content, known)
        opened = _Opened()
        try:
            scanning.top(path)
            for visit in walk_tree(path, is_one_system=True, most_names=most_files):
                if visit.moment == AFTER:
                    opened.leave(visit)
                    continue
                if visit.moment == BEFORE:
                    opened.enter(visit)
                scanning.add(visit)
        finally:
            opened.leave_all()
    return {"files": scanning.count}


class _Opened:
    """Directories whose mode keeps their owner out, open to it while the walk is in them."""

    def __init__(self) -> None:
        self._closed: list[tuple[int, int, tuple[int, int]]] = []

    def enter(self, visit: Visit) -> None:
        mode = visit.status.st_mode
        if mode & stat.S_IRWXU == stat.S_IRWXU or os.access(visit.name, os.R_OK | os.X_OK):
            return
        if len(self._closed) >= _MOST_CLOSED_FOLDERS:
            raise Refusal("too_large", f"tree: {visit.name!r}: too many closed directories")
        fd = os.open(visit.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(fd)
        self._closed.append((fd, stat.S_IMODE(status.st_mode), (status.st_dev, status.st_ino)))
        _set_mode(fd, stat.S_IMODE(status.st_mode) | stat.S_IRWXU, visit.name)

    def leave(self, visit: Visit) -> None:
        if self._closed and self._closed[-1][2] == (visit.status.st_dev, visit.status.st_ino):
            self._close()

    def leave_all(self) -> None:
        while self._closed:
            self._close()

    def _close(self) -> None:
        fd, mode, _ = self._closed.pop()
        try:
            _set_mode(fd, mode, "")
        finally:
            os.close(fd)


def _set_mode(fd: int, mode: int, name: str) -> None:
    try:
        os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod(2) takes no descriptor of O_PATH
    except OSError as error:
        raise refusal_from(error, f"tree: open {name!r} to its owner") from None


class _Read(NamedTuple):
    """What one file held when it was read."""

    digest: bytes
    status: os.stat_result
    is_steady: bool
    runs: list[tuple[int, bytes]] | None
    """Its content; None if it is too large to be held."""


class _Scan:
    """A tree being described."""

    def __init__(
        self, output: IO[bytes], most_files: int, wants_content: bool, known: set[bytes]
    ) -> None:
        self._output = output
        self._most_files = most_files
        self._wants_content = wants_content
        self._known = known
        self._read_bytes = self._path_bytes = 0
        self._folders: list[bytes] = []
        """For each directory on the way down, the path with a slash at its end."""
        self.count = 0

    def top(self, path: str) -> None:
        """Describe the top itself, whose path is empty."""
        self._write(records.FOLDER, b"", os.stat(path))

    def add(self, visit: Visit) -> None:
        """Describe what was met."""
        depth = len(visit.parents)
        del self._folders[depth:]
        if len(self._folders) < depth:
            last = self._folders[-1] if self._folders else b""
            self._folders.append(last + os.fsencode(visit.parents[-1]) + b"/")
        path = (self._folders[-1] if self._folders else b"") + os.fsencode(visit.name)
        self._count(path)
        try:
            if stat.S_ISREG(visit.status.st_mode):
                self._add_file(visit, path)
                return
            kind = _KINDS[stat.S_IFMT(visit.status.st_mode)]
            target = os.fsencode(os.readlink(visit.name)) if kind == records.LINK else b""
        except FileNotFoundError:
            return  # it was removed meanwhile
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL):
                raise _changing(path) from None
            raise refusal_from(error, f"tree: {_shown(path)}") from None
        self._write(kind, path, visit.status, target=target)

    def _count(self, path: bytes) -> None:
        self.count += 1
        self._path_bytes += len(path)
        if self.count > self._most_files:
            raise Refusal("too_large", f"tree: has more than {self._most_files} files")
        if len(path) > records.MOST_PATH_BYTES or self._path_bytes > _MOST_PATHS_BYTES:
            raise Refusal("too_large", f"tree: too deep: {_shown(path[:200])}")

    def _add_file(self, visit: Visit, path: bytes) -> None:
        fd = _opened(visit)
        try:
            if not self._wants_content or self._known:
                read = self._fingerprint(fd)
                if not self._wants_content or read.digest in self._known:
                    kind = records.FILE if read.is_steady else records.UNSTEADY
                    self._write(kind, path, read.status, read.digest)
                    return
                if read.runs is not None:
                    self._known.add(read.digest)  # of the very bytes that are sent
                    self._send(path, read.status, read.runs, read.is_steady)
                    return
            before = os.fstat(fd)
            self._write(records.CONTENT, path, before)
            for offset, data in self._runs(fd, before.st_size):
                self._output.write(records.PIECE.pack(b"D-", offset, len(data)) + data)
            self._end(_is_same(before, os.fstat(fd)))
        finally:
            os.close(fd)

    def _fingerprint(self, fd: int) -> _Read:
        before = os.fstat(fd)
        made = records.Fingerprint()
        held: list[tuple[int, bytes]] | None = [] if before.st_size <= _HELD_BYTES else None
        for offset, data in self._runs(fd, before.st_size):
            made.add(offset, data)
            if held is not None:
                held.append((offset, data))
        is_steady = _is_same(before, os.fstat(fd))
        return _Read(made.finish(before.st_size), before, is_steady, held)

    def _runs(self, fd: int, size: int) -> Iterator[tuple[int, bytes]]:
        """Yield what a file holds up to `size`, without its holes and blocks of zeros."""
        for start, end in _extents(fd, size):
            position = start
            self._read_bytes += end - start
            if self._read_bytes > _MOST_READ_BYTES:
                raise Refusal("too_large", "tree: has more than 8 GiB to be read")
            while position < end:
                data = os.pread(fd, min(records.STEP_BYTES, end - position), position)
                if not data:
                    return  # it has become shorter
                yield from records.without_zeros(position, data)
                position += len(data)
                if position % records.BLOCK_BYTES and position < end:
                    return  # a short read: it has become shorter

    def _send(
        self,
        path: bytes,
        status: os.stat_result,
        runs: list[tuple[int, bytes]],
        is_steady: bool,
    ) -> None:
        self._write(records.CONTENT, path, status)
        for offset, data in runs:
            self._output.write(records.PIECE.pack(b"D-", offset, len(data)) + data)
        self._end(is_steady)

    def _end(self, is_steady: bool) -> None:
        self._output.write(records.END.pack(b"Z-" if is_steady else b"Z!"))

    def _write(
        self,
        kind: bytes,
        path: bytes,
        status: os.stat_result,
        digest: bytes = records.NO_FINGERPRINT,
        target: bytes = b"",
    ) -> None:
        fields = (
            stat.S_IMODE(status.st_mode),
            status.st_mtime_ns,
            status.st_size,
            status.st_dev,
            status.st_ino,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
        )
        self._output.write(records.entry(kind, path, fields, (digest, target)))


def _opened(visit: Visit) -> int:
    """Open a file to be read, even if its mode keeps its owner out."""
    try:
        return open_regular(visit.name, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError:
        fd = os.open(visit.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        _set_mode(fd, mode | stat.S_IRUSR, visit.name)
        try:
            return open_regular(f"/proc/self/fd/{fd}", os.O_RDONLY)
        finally:
            _set_mode(fd, mode, visit.name)
    finally:
        os.close(fd)


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data, in whole blocks; all of it where the kernel does not say."""
    block, position = records.BLOCK_BYTES, 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # there is data, or it cannot be asked
                yield position, size
            return
        start = max(position, start - start % block)
        end = min(size, end + -end % block)
        if start < end:
            yield start, end
        position = max(end, position + 1)


def _is_same(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )


def _changing(path: bytes) -> Refusal:
    return Refusal("busy", f"tree: {_shown(path)} changes while it is read; stop what changes it")


def _shown(path: bytes) -> str:
    return repr(os.fsdecode(path))
