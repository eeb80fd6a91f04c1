"""A directory made again what it was, step by step, as the engine's `history` says.

`child_tasks.py` runs this in a child. The input are records (`tree_records`): paths to remove,
directories, files with their content, links, and last the modes and times. A step that fails does
not keep the others from being done; the reply counts them, and the engine looks at the result.

SECURITY: every parent is opened without following links, so that code inside cannot lead a write
out of the tree. What is to be written anew is removed first: what fitted once fits again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, TYPE_CHECKING, NamedTuple

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.files import tree_records as records
from cellwall.guest.files.trees import removal

if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.files.child_tasks import Task

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_NAMED = 3


class _Step(NamedTuple):
    """One record: what is to be at a path."""

    kind: bytes
    path: bytes
    target: bytes
    mode: int
    mtime_ns: int
    size: int
    uid: int
    gid: int


def restoration(path: str) -> Task:
    """Return a task that follows the records of its input below a directory."""
    return lambda input_r, _output: _restore(path, input_r)


def _restore(path: str, input_r: int) -> Header:
    restoring = _Restoring(path)
    with os.fdopen(input_r, "rb", 256 * 1024, closefd=False) as stream:
        while (step := _next(stream)) is not None:
            restoring.follow(step, stream)
    return {
        "failed": restoring.failed,
        "first": restoring.first,
        "no_space": restoring.is_full,
    }


def _next(stream: IO[bytes]) -> _Step | None:
    raw = stream.read(records.ENTRY.size)
    if not raw:
        return None
    tag, mode, mtime_ns, size, _, _, _, uid, gid, _, path, target = records.ENTRY.unpack(raw)
    return _Step(tag[1:], stream.read(path), stream.read(target), mode, mtime_ns, size, uid, gid)


class _Restoring:
    """A tree being restored below one open directory."""

    def __init__(self, top: str) -> None:
        self._top_fd = _passable(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._parent: list[bytes] = []
        self._parent_fd = self._top_fd
        self.failed = 0
        self.first: list[str] = []
        """The first failures, in words."""
        self.is_full = False

    def follow(self, step: _Step, stream: IO[bytes]) -> None:
        """Take one step; note a failure."""
        try:
            self._take(step, stream)
        except (OSError, Refusal) as error:
            self._note(step, error)

    def _note(self, step: _Step, error: OSError | Refusal) -> None:
        self.failed += 1
        number = getattr(error, "errno", None)
        self.is_full = self.is_full or number in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
        if len(self.first) < _MOST_NAMED:
            reason = os.strerror(number) if number else str(error)
            self.first.append(f"{os.fsdecode(step.path)!r:.100}: {reason:.100}")

    def _take(self, step: _Step, stream: IO[bytes]) -> None:
        if step.kind == records.CONTENT:
            self._write(step, stream)
            return
        name = self._enter(step.path)
        if step.kind == records.REMOVE:
            self._remove(name)
        elif step.kind == records.FOLDER:
            os.mkdir(name, 0o700, dir_fd=self._parent_fd)
        elif step.kind == records.LINK:
            os.symlink(step.target, name, dir_fd=self._parent_fd)
            self._dress(name, step)
        elif step.kind == records.FIFO:
            os.mkfifo(name, 0o600, dir_fd=self._parent_fd)
            self._dress(name, step)
        elif step.kind == records.HARD_LINK:
            self._link(name, step)
        elif step.kind == records.DRESS:
            self._dress(name, step)

    # -- places ------------------------------------------------------------------------------------

    def _enter(self, path: bytes) -> bytes:
        """Make the parent of `path` the open directory; return the last name."""
        *parents, name = path.split(b"/")
        if parents != self._parent:
            start, fd = 0, self._top_fd
            held = len(self._parent)
            if held and parents[:held] == self._parent:
                start, fd = held, self._parent_fd
            opened = self._open(parents[start:], fd)
            if self._parent_fd != self._top_fd:
                os.close(self._parent_fd)
            self._parent, self._parent_fd = parents, opened
        return name or b"."

    def _open(self, parts: list[bytes], start_fd: int) -> int:
        fd = start_fd
        for part in parts:
            try:
                below = _open_folder(part, fd)
            finally:
                if fd not in (start_fd, self._top_fd, self._parent_fd):
                    os.close(fd)
            fd = below
        return fd

    # -- what is made ------------------------------------------------------------------------------

    def _remove(self, name: bytes) -> None:
        status = os.stat(name, dir_fd=self._parent_fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            # The tree may lie deeper than a path from the top can say.
            removal(f"/proc/self/fd/{self._parent_fd}/{os.fsdecode(name)}")(0, 1)
        else:
            os.unlink(name, dir_fd=self._parent_fd)

    def _write(self, step: _Step, stream: IO[bytes]) -> None:
        """Make a file; all its pieces are read, whatever happens."""
        fd = -1
        failure: OSError | Refusal | None = None
        try:
            name = self._enter(step.path)
            fd = os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=self._parent_fd)
        except (OSError, Refusal) as error:
            failure = error
        while stream.read(records.END.size) == b"D-":
            _, offset, length = records.PIECE.unpack(
                b"D-" + stream.read(records.PIECE.size - records.END.size)
            )
            data = stream.read(length)
            if failure is None:
                try:
                    _put(fd, data, offset)
                except OSError as error:
                    failure = error
        try:
            if failure is None:
                os.ftruncate(fd, step.size)
                _dress_file(fd, step)
        finally:
            if fd >= 0:
                os.close(fd)
        if failure is not None:
            raise failure

    def _link(self, name: bytes, step: _Step) -> None:
        source = step.target.split(b"/")
        fd = self._open(source[:-1], self._top_fd)
        try:
            os.link(
                source[-1],
                name,
                src_dir_fd=fd,
                dst_dir_fd=self._parent_fd,
                follow_symlinks=False,
            )
        finally:
            if fd not in (self._top_fd, self._parent_fd):
                os.close(fd)

    def _dress(self, name: bytes, step: _Step) -> None:
        """Set owner, mode and times of what is there."""
        found = os.stat(name, dir_fd=self._parent_fd, follow_symlinks=False)
        if (found.st_uid, found.st_gid) != (step.uid, step.gid):
            os.chown(name, step.uid, step.gid, dir_fd=self._parent_fd, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            self._set_mode(name, step.mode)
        times = (step.mtime_ns, step.mtime_ns)
        os.utime(name, ns=times, dir_fd=self._parent_fd, follow_symlinks=False)

    def _set_mode(self, name: bytes, mode: int) -> None:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._parent_fd)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod(2) takes no descriptor of O_PATH
        finally:
            os.close(fd)


def _open_folder(name: bytes, parent_fd: int) -> int:
    """Open a directory, even if its mode keeps its owner out: its mode is set at the end."""
    with contextlib.suppress(PermissionError):
        return _passable(os.open(name, _FOLDER_FLAGS, dir_fd=parent_fd))
    fd = os.open(name, _FOLDER_FLAGS | os.O_PATH, dir_fd=parent_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
    return os.open(name, _FOLDER_FLAGS, dir_fd=parent_fd)


def _passable(fd: int) -> int:
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        with contextlib.suppress(PermissionError):  # another user's, which the steps in it will say
            os.fchmod(fd, mode | stat.S_IRWXU)
    return fd


def _dress_file(fd: int, step: _Step) -> None:
    found = os.fstat(fd)
    if (found.st_uid, found.st_gid) != (step.uid, step.gid):
        os.fchown(fd, step.uid, step.gid)
    os.fchmod(fd, step.mode)
    os.utime(fd, ns=(step.mtime_ns, step.mtime_ns))


def _put(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
