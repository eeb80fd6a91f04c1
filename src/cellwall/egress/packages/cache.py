"""Files by their content, in a directory that only this process writes.

    sha256/ab/ab12…     a whole file, checked against the digest that is its name
    parts/<random>      one that is being written, locked by its writer
    pins                what a file had when a registry without digests first gave it (`pins`)

Not the checking (`downloads`). The invariant: a file gets its name only when it is whole, checked
and on disk, so that a crash leaves parts and never a wrong file; and no name in a path comes from a
caller or a registry but digests, which are matched here again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections import OrderedDict
from dataclasses import dataclass
from typing import Self

from cellwall.egress.packages.listings.listing import STRONG, Digest
from cellwall.model.errors import UsageError

_HEX = re.compile(r"[0-9a-f]+")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_USED_S = 60.0
"""Seconds within which a second use is not written down."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A whole file, open; the holder closes it."""

    fd: int
    length: int

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        """Close it at the end of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is being written; `Cache.keep` or `Cache.drop` ends it."""

    fd: int
    name: str


class Cache:
    """The directory. Its methods take as long as the disk does; `keep` is called on a thread."""

    def __init__(self, directory: str, *, most_bytes: int) -> None:
        """Open or make the directory; `most_bytes` is the sum of whole files after an eviction.

        Files under way come on top. `UsageError` if another user may write there.
        """
        self._directory = directory
        self._most_bytes = most_bytes
        self._sizes: OrderedDict[Digest, int] = OrderedDict()
        self._size = 0
        _make(directory)
        _make(os.path.join(directory, "parts"))
        self._remove_parts()
        self._find_files()

    @property
    def pins_path(self) -> str:
        """Path of the file of `pins`."""
        return os.path.join(self._directory, "pins")

    @property
    def size(self) -> int:
        """Sum of the whole files in bytes."""
        return self._size

    def open(self, digest: Digest) -> CachedFile | None:
        """Return the file with this content, open; None if it is not here."""
        try:
            fd = os.open(self._path(digest), _READ)
        except FileNotFoundError:
            self._forget(digest)
            return None
        found = os.fstat(fd)
        # SECURITY: a directory entry that is no file of ours is never given out.
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(fd)
            return None
        self._use(digest, found, fd)
        return CachedFile(fd, found.st_size)

    def _use(self, digest: Digest, found: os.stat_result, fd: int) -> None:
        import time

        self._sizes.setdefault(digest, 0)
        self._size += found.st_size - self._sizes[digest]
        self._sizes[digest] = found.st_size
        self._sizes.move_to_end(digest)
        if time.time() - found.st_mtime > _USED_S:
            os.utime(fd)

    def part(self) -> Part:
        """Return a new file to write to."""
        name = secrets.token_hex(16)
        fd = os.open(os.path.join(self._directory, "parts", name), _WRITE, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return Part(fd, name)

    def keep(self, part: Part, digest: Digest) -> None:
        """Give a written and checked part its name; the part stays open. `OSError`."""
        fd = os.open(os.path.join(self._directory, "parts", part.name), _READ)
        try:  # of its own, because this runs on a thread, and the part may be closed meanwhile
            os.fsync(fd)
        finally:
            os.close(fd)
        path = self._path(digest)
        _make(os.path.dirname(os.path.dirname(path)))
        _make(os.path.dirname(path))
        os.rename(os.path.join(self._directory, "parts", part.name), path)

    def count(self, digest: Digest) -> None:
        """Count a file that was kept, and evict those that were not used for longest."""
        with self.open(digest) or contextlib.nullcontext():
            while self._size > self._most_bytes and len(self._sizes) > 1:
                self._evict(next(iter(self._sizes)))

    def drop(self, part: Part) -> None:
        """Remove a part that was not kept; it stays open."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._directory, "parts", part.name))

    def _evict(self, digest: Digest) -> None:
        self._forget(digest)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(digest))

    def _forget(self, digest: Digest) -> None:
        self._size -= self._sizes.pop(digest, 0)

    def _path(self, digest: Digest) -> str:
        # SECURITY: the only place where a path is made of what came from outside.
        is_fit = len(digest.hex) == STRONG.get(digest.algorithm) and _HEX.fullmatch(digest.hex)
        if not is_fit:
            raise ValueError("no digest that names a file")
        return os.path.join(self._directory, digest.algorithm, digest.hex[:2], digest.hex)

    def _remove_parts(self) -> None:
        """Remove what ended writers left; another process may be writing here as well."""
        with os.scandir(os.path.join(self._directory, "parts")) as parts:
            for entry in parts:
                with contextlib.suppress(OSError):
                    fd = os.open(entry.path, _READ)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.unlink(entry.path)
                    finally:
                        os.close(fd)

    def _find_files(self) -> None:
        found = []
        for algorithm in STRONG:
            for folder, _, names in os.walk(os.path.join(self._directory, algorithm)):
                for name in names:
                    with contextlib.suppress(OSError):
                        status = os.lstat(os.path.join(folder, name))
                        found.append((status.st_mtime, Digest(algorithm, name), status.st_size))
        for _, digest, size in sorted(found, key=lambda each: each[0]):
            with contextlib.suppress(ValueError):
                self._path(digest)
                self._sizes[digest] = size
                self._size += size


def _make(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & 0o022:
        raise UsageError(
            f"package cache {path}: it is not a directory that only this process's user may write",
            remedy="name a directory of that user's with mode 0700, or one that does not exist yet",
        )
