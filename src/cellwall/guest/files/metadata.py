"""Metadata of files: short texts that a caller gives a file when it is written.

Init keeps them, because no process inside may write extended attributes (design/0049), and they
behave like those: they belong to an inode. A file that is renamed keeps its texts, one that is
written over in place as well, and another file under the same name has none. The time of birth
counts too, because an inode's number may be used again. Where a file system does not tell it, files
have metadata only if it is one that never uses a number again: those in memory, not volumes.

A file's end is not told to init. Texts of files that no longer are where they were last seen are
dropped as soon as their room is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import stat
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cellwall.guest.channel.errors import Refusal

MOST_FILES = 4096
MOST_BYTES = 1 << 20
"""Bytes of the texts of all files."""
MOST_LIST_BYTES = 32 << 20
"""Bytes of a list of files and their texts: each file's path may have 4 KiB beside the texts."""

_MOST_OF_ONE = 4096
_MOST_KEY = 246
_KEY_COST = len("user.e2b.")
"""Bytes that each key counts for beside its own, as if it were an extended attribute's name."""

_IN_MEMORY = ("/", "/home/user", "/tmp")  # noqa: S108  the sandbox's own
"""Places of the sandbox's own files: no volume may lie there (`model/volume.py`)."""

Texts = Mapping[str, str]

_STATX = {"x86_64": 332, "aarch64": 291}.get(os.uname().machine)
_SYSCALL: Any = ctypes.CDLL(None, use_errno=True).syscall
_AT_FDCWD = -100
_NO_FOLLOW, _EMPTY_PATH = 0x100, 0x1000
_WANTED, _BTIME = 0x0901, 0x0800
"""Type, inode and time of birth; and the last alone."""
_FIELDS = struct.Struct("=I24xH2xQ40xqI44xII112x")
"""Of struct statx: mask, mode, inode, time of birth, device."""


class Identity(NamedTuple):
    """What tells a file from every other, also from those that came before it."""

    device: int
    inode: int
    born_ns: int
    """Time of birth; 0 where the file system does not tell it."""


class _Kept:
    """The texts of one file."""

    def __init__(self, identity: Identity, path: str, texts: Texts, size: int) -> None:
        self.identity = identity
        self.path = path
        self.texts = texts
        self.size = size


def checked(texts: Mapping[str, Any]) -> Texts:
    """Return texts that a file may have: printable ASCII, a page of them. Raises Refusal."""
    for key, value in texts.items():
        if not 0 < len(key) <= _MOST_KEY or not _is_plain(key):
            raise Refusal("invalid", f"metadata: {key[:80]!r} is no key")
        if not isinstance(value, str) or not _is_plain(value):
            raise Refusal("invalid", f"metadata: the value of {key[:80]!r} is not printable ASCII")
    if _size(texts) > _MOST_OF_ONE:
        raise Refusal("invalid", f"metadata: more than {_MOST_OF_ONE} bytes")
    return texts


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _size(texts: Texts) -> int:
    return sum(_KEY_COST + len(key) + len(value) for key, value in texts.items())


class FileMetadata:
    """The texts of all files of one sandbox."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._bytes = 0
        self._standing: list[tuple[str, Texts]] = []

    def keep(self, file: int | str, path: str, texts: Texts) -> None:
        """Keep the texts of a file, open or by path, that is at `path` from now on.

        Raises Refusal, and OSError.
        """
        _, identity = identify(file)
        if not identity.born_ns and identity.device not in _devices_in_memory():
            message = f"write {path!r}: no metadata can be kept on this volume; write without"
            raise Refusal("invalid", message)
        self._drop(identity)
        size = _size(texts)
        if not self._fits(size):
            self._drop_gone()
        if not self._fits(size):
            message = (
                f"write {path!r}: the metadata of {len(self._kept)} files is kept, and "
                f"{MOST_FILES} files or {MOST_BYTES} bytes are the most; remove files that have "
                "some, or write this one without"
            )
            raise Refusal("no_space", message)
        self._kept[identity[:2]] = _Kept(identity, path, texts, size)
        self._bytes += size

    def of(self, name: str, status: os.stat_result, path: str) -> Texts | None:
        """Return the texts of the file that `name` leads to, and note that it is at `path`."""
        kept = self._kept.get((status.st_dev, status.st_ino))
        if kept is None:
            return None
        if not _is_at(kept.identity, name):
            self._drop(kept.identity)
            return None
        kept.path = path
        return kept.texts

    def note_move(self, source: str, target: str) -> None:
        """Follow files whose path, or a directory of whose path, was renamed."""
        for kept in self._kept.values():
            rest = _below(source, kept.path)
            if rest is not None:
                kept.path = target + rest

    def leaving(self, source: str, target: str) -> list[tuple[str, Texts]]:
        """Return texts by the paths that files have after a move from `source` to `target`."""
        found = []
        for kept in self._kept.values():
            rest = _below(source, kept.path)
            if rest is not None and _is_at(kept.identity, kept.path):
                found.append((target + rest, kept.texts))
        return found

    def arrive(self, files: Iterable[tuple[str, Texts]]) -> None:
        """Keep the texts of copied files, those that are there. Raises Refusal."""
        for path, texts in files:
            try:
                mode, _ = identify(path)
                if stat.S_ISREG(mode):
                    self.keep(path, path, checked(texts))
            except OSError:
                continue  # it was removed, or was left out of the copy

    def stand_by(self) -> None:
        """Note where the files are, before the sandbox may go on with copies of them."""
        self._standing = self.leaving("", "")

    def wake(self, *, is_elsewhere: bool) -> None:
        """Go on; elsewhere every file has another inode, and the path of before."""
        if is_elsewhere:
            self._kept.clear()
            self._bytes = 0
            self.arrive(self._standing)
        self._standing = []

    def _fits(self, size: int) -> bool:
        return len(self._kept) < MOST_FILES and self._bytes + size <= MOST_BYTES

    def _drop(self, identity: Identity) -> None:
        kept = self._kept.pop(identity[:2], None)
        if kept is not None:
            self._bytes -= kept.size

    def _drop_gone(self) -> None:
        for kept in list(self._kept.values()):
            if not _is_at(kept.identity, kept.path):
                self._drop(kept.identity)


def _devices_in_memory() -> set[int]:
    found = set()
    for place in _IN_MEMORY:
        with contextlib.suppress(OSError):  # an image may have no such directory
            found.add(os.stat(place).st_dev)
    return found


def _below(top: str, path: str) -> str | None:
    """Return what follows `top` in a path that is `top` or is below it."""
    if path == top:
        return ""
    return path[len(top) :] if path.startswith(f"{top}/") else None


def _is_at(identity: Identity, path: str) -> bool:
    try:
        return identify(path)[1] == identity
    except OSError:
        return False


def identify(file: int | str) -> tuple[int, Identity]:
    """Return type and identity of a descriptor or path, links not followed. Raises OSError."""
    if _STATX is None:
        raise OSError(errno.ENOSYS, "statx on this machine")
    found = ctypes.create_string_buffer(_FIELDS.size)
    folder, name, flags = (
        (file, b"", _EMPTY_PATH)
        if isinstance(file, int)
        else (_AT_FDCWD, os.fsencode(file), _NO_FOLLOW)
    )
    result = _SYSCALL(
        ctypes.c_long(_STATX),
        ctypes.c_int(folder),
        ctypes.c_char_p(name),
        ctypes.c_int(flags),
        ctypes.c_uint(_WANTED),
        found,
    )
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mask, mode, inode, seconds, nanoseconds, major, minor = _FIELDS.unpack(found.raw)
    born_ns = seconds * 1_000_000_000 + nanoseconds if mask & _BTIME else 0
    return mode, Identity(os.makedev(major, minor), inode, born_ns)


# -- lists, on the way between two sandboxes -------------------------------------------------------


def written(files: Iterable[tuple[str, Texts]]) -> bytes:
    """Return a list of files with their texts as bytes."""
    return json.dumps([[path, dict(texts)] for path, texts in files]).encode()


def read(data: bytes) -> list[tuple[str, Texts]]:
    """Return what `written` has made bytes of. Raises Refusal."""
    try:
        found = [(str(path), checked(dict(texts))) for path, texts in json.loads(data)]
    except (ValueError, TypeError):
        raise Refusal("invalid", "metadata of files: not a list of them") from None
    return found[:MOST_FILES]
