"""Operations on single files and folders that are quick enough for init itself.

`init/main.py` calls these by name. Whole trees are elsewhere (`trees.py`, in a worker). No rights
are checked here: init has the rights of the caller's code and no more.

Init must never wait for what it opens. A caller can put a FIFO, a socket or a device anywhere, so
everything is opened non-blocking and only a regular file is read or written.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.channel.frames import MAX_EVENT_BODY_BYTES, Header
from cellwall.guest.channel.requests import Request
from cellwall.guest.files.paths import resolve

if TYPE_CHECKING:
    from cellwall.guest.files.metadata import FileMetadata, Texts

_OPEN_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_PERMISSION_BITS = 0o777
_MOST_ENTRIES = 10_000
_MOST_DEPTH = 64
_MOST_SENT_BYTES = 1 << 30
"""Bytes that one sendfile(2) is asked for; it may copy fewer."""
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def describe(path: str, metadata: FileMetadata | None = None) -> Header:
    """Return what lies at a path, links not followed."""
    found = os.lstat(path)
    entry: Header = {
        "name": os.path.basename(path) or "/",
        "path": path,
        "type": _TYPES.get(stat.S_IFMT(found.st_mode), "other"),
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "mtime": found.st_mtime,
        "uid": found.st_uid,
        "gid": found.st_gid,
    }
    if stat.S_ISLNK(found.st_mode):
        entry["target"] = os.readlink(path)
    if metadata is not None and (texts := metadata.of(path, found, path)):
        entry["metadata"] = texts
    return entry


def open_regular(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a regular file without ever waiting for it. Raises Refusal or OSError."""
    fd = os.open(path, flags | _OPEN_FLAGS, mode)
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind == stat.S_IFDIR:
            raise Refusal("is_directory", f"open {path!r}: is a directory")
        if kind != stat.S_IFREG:
            raise Refusal("invalid", f"open {path!r}: is not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd


class Files:
    """The file operations, relative to one home directory."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Relative paths start at `home`, which is known only once there is a sandbox."""
        self._config = config
        self.metadata: FileMetadata | None = None
        """Metadata of files; None as long as none has some."""

    def resolve(self, request: Request, name: str = "path") -> str:
        """Return a request's path, made absolute."""
        return resolve(self._config["home"], request.path(name))

    def read(self, request: Request) -> tuple[Header, bytes]:
        """Handle `file_read`: return one piece of a file."""
        path = self.resolve(request)
        offset = request.integer("offset", 0)
        length = request.integer("length", MAX_EVENT_BODY_BYTES, high=MAX_EVENT_BODY_BYTES)
        fd = open_regular(path, os.O_RDONLY)
        try:
            found = os.fstat(fd)
            data = _read_exactly(fd, length, offset)
        finally:
            os.close(fd)
        # Files of /proc claim to be empty; there only a short read is the end.
        eof = len(data) < length or 0 < found.st_size <= offset + len(data)
        # From the inode a client that reads in pieces learns that another file has taken the name.
        return {"size": found.st_size, "eof": eof, "inode": found.st_ino}, data

    def write(self, request: Request, source: int = -1) -> tuple[Header, bytes]:
        """Handle `file_write`: replace a file at once, or append to it.

        With `source`, a descriptor, a replaced file's content is that file's, not the body.
        """
        path = self.resolve(request)
        mode = request.optional_integer("mode", 0, _PERMISSION_BITS)
        texts = self._texts(request)
        if request.flag("parents"):
            _make_folders(os.path.dirname(path))
        if request.flag("append"):
            return {"size": _append(path, request.body, mode)}, b""
        place = os.path.realpath(path)

        def on_written(fd: int) -> None:
            if texts:
                self.opened_metadata().keep(fd, place, texts)

        size = _replace(place, request.body if source < 0 else source, mode, on_written)
        # From the number of keys a host learns that this init keeps them.
        return {"size": size, "kept": len(texts)}, b""

    def opened_metadata(self) -> FileMetadata:
        """Return the metadata of files, to which some may be added."""
        if self.metadata is None:
            from cellwall.guest.files.metadata import FileMetadata  # most sandboxes have none

            self.metadata = FileMetadata()
        return self.metadata

    def _texts(self, request: Request) -> Texts:
        given = request.mapping("metadata")
        if not given:
            return {}
        from cellwall.guest.files.metadata import checked  # as above

        if request.flag("append"):
            raise Refusal("invalid", "write: an append changes no metadata")
        return checked(given)

    def stat(self, request: Request) -> tuple[Header, bytes]:
        """Handle `file_stat`: return one entry."""
        return {}, json.dumps(describe(self.resolve(request), self.metadata)).encode()

    def list(self, request: Request) -> tuple[Header, bytes]:
        """Handle `file_list`: return the entries below a directory, as many as fit."""
        path = self.resolve(request)
        depth = request.integer("depth", 1, 1, _MOST_DEPTH)
        limit = request.integer("limit", 1000, 1, _MOST_ENTRIES)
        texts: list[str] = []
        size = 2
        is_truncated = False
        for entry in _walk(path, depth, limit, self.metadata):
            text = json.dumps(entry)
            if len(texts) == limit or size + len(text) + 1 > MAX_EVENT_BODY_BYTES:
                is_truncated = True
                break
            size += len(text) + 1
            texts.append(text)
        return {"truncated": is_truncated}, f"[{','.join(texts)}]".encode()

    def mkdir(self, request: Request) -> tuple[Header, bytes]:
        """Handle `file_mkdir`: make a directory; with `parents` it may exist."""
        path = self.resolve(request)
        if request.flag("parents"):
            _make_folders(path)
        else:
            os.mkdir(path)
        return {}, b""

    def move(self, request: Request) -> tuple[Header, bytes]:
        """Handle `file_move`: rename, replacing a file at the target."""
        source, target = self.resolve(request), self.resolve(request, "target")
        os.rename(source, target)
        if self.metadata is not None:
            self.metadata.note_move(source, target)
        return {}, b""

    def remove(self, request: Request) -> tuple[Header, bytes]:
        """Handle `file_remove` of a file, a link or an empty directory."""
        path = self.resolve(request)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        else:
            os.unlink(path)
        return {}, b""


def _make_folders(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError as error:
        message = f"make directory {path!r}: {error.filename!r} is not a directory"
        raise Refusal("not_directory", message) from None


def _read_exactly(fd: int, length: int, offset: int) -> bytes:
    pieces = []
    while length:
        piece = os.pread(fd, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _copy_all(fd: int, source: int) -> int:
    """Copy a file from its beginning, inside the kernel; return its size."""
    size = 0
    while count := os.sendfile(fd, source, size, _MOST_SENT_BYTES):
        size += count
    return size


def _append(path: str, data: bytes, mode: int | None) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    fd = open_regular(path, flags, 0o666 if mode is None else mode)
    try:
        before = os.fstat(fd).st_size
        try:
            _write_all(fd, data)
        except OSError as error:
            # Half an append would be worse than none: the caller is going to try again.
            os.ftruncate(fd, before)
            raise refusal_from(error, f"append to {path!r}") from None
        return before + len(data)
    finally:
        os.close(fd)


def _replace(
    path: str, content: bytes | int, mode: int | None, on_written: Callable[[int], None]
) -> int:
    """Write a new file beside the old one and rename it: no process ever sees half of it.

    `content` is the file's, or a descriptor of one that has it. Returns the size.
    """
    final_mode = _mode_of_target(path) if mode is None else mode
    folder, name = os.path.split(path)
    if not name:
        raise Refusal("is_directory", f"write {path!r}: is a directory")
    draft = os.path.join(folder, f".cw-{os.urandom(8).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _OPEN_FLAGS, 0o600)
    try:
        try:
            if isinstance(content, int):
                size = _copy_all(fd, content)
            else:
                _write_all(fd, content)
                size = len(content)
            os.fchmod(fd, final_mode)
            on_written(fd)
        finally:
            os.close(fd)
        os.rename(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    return size


def _mode_of_target(path: str) -> int:
    """Return the mode to write with; refuse a target that a file must not replace."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return 0o644
    if stat.S_ISDIR(kind):
        raise Refusal("is_directory", f"write {path!r}: is a directory")
    if not stat.S_ISREG(kind):
        raise Refusal("invalid", f"write {path!r}: is not a regular file")
    return stat.S_IMODE(kind) & _PERMISSION_BITS


def _walk(top: str, depth: int, limit: int, metadata: FileMetadata | None) -> Iterator[Header]:
    """Yield entries below a directory, each before its children, names in order."""
    pending: list[tuple[str, int]] = []

    def enter(folder: str, level: int) -> None:
        with os.scandir(folder) as entries:
            # One more than wanted, so that the caller notices that there are more.
            names = sorted(entry.name for entry in itertools.islice(entries, limit + 1))
        pending.extend((os.path.join(folder, name), level) for name in reversed(names))

    enter(top, 1)
    while pending:
        path, level = pending.pop()
        try:
            entry = describe(path, metadata)
        except OSError:
            continue  # it vanished, or its path is too long to be named
        yield entry
        if entry["type"] == "directory" and level < depth:
            try:
                enter(path, level + 1)
            except OSError:
                continue  # init may not read it; the entry itself is listed
