"""The guard file beside a database, so that a lost one is never taken for a new or a whole one.

SQLite makes an empty database where there is none, and reads one without its write-ahead log as if
nothing had been in it. The guard file remembers that a database was made, and whether it was
closed: while it is open its log must be there. The same file is the lock for opening and closing,
so that two processes agree on which was last.

What this cannot see: a log whose end was cut off looks like a loss of power before a commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cellwall.store.records.errors import StoreBroken, StoreBusy

Mark = Literal["", "closed", "closing", "open"]
_MARKS: tuple[Mark, ...] = ("closed", "closing", "open")

_LOCK_S = 10.0
_POLL_S = 0.02
_MAGIC = b"SQLite format 3\0"
_LOG_MAGICS = {b"\x37\x7f\x06\x82": "little", b"\x37\x7f\x06\x83": "big"}


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of the database at `path`, locked by this process."""

    path: Path
    handle: int

    @property
    def log(self) -> Path:
        """The write-ahead log."""
        return self.path.with_name(self.path.name + "-wal")

    def mark(self) -> Mark:
        """Return the mark noted last; an empty one if no database was ever made here."""
        text = os.pread(self.handle, 16, 0).decode("ascii", "replace").strip()
        return next((mark for mark in _MARKS if mark == text), "")

    def note(self, mark: Mark) -> None:
        """Write the mark, durably."""
        if self.mark() != mark:
            os.pwrite(self.handle, f"{mark:<7}\n".encode(), 0)
            os.fsync(self.handle)

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Note after the block, which closes the connections, whether these were the last.

        SQLite removes the log when the last connection has folded it in. While that may be under
        way the log proves nothing, and the mark says so: a crash here must not look like a loss.
        """
        was_open = self.mark() == "open"
        if was_open:
            self.note("closing")
        yield
        if was_open:
            self.note("open" if self.log.exists() else "closed")

    def check(self) -> bool:
        """Report whether there is a database; raise `StoreBroken` if it is lost or damaged.

        Looks at names, sizes and headers; the content is checked when the database is opened.
        """
        if not self.path.exists():
            if self.mark() or self.log.exists():
                raise self._lost(f"{self.path.name} is gone, and there was one")
            return False
        with self.path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise self._lost(f"{self.path.name} is cut short or overwritten")
        if self.mark() == "open" and not _is_log(self.log):
            raise self._lost(
                f"it was not closed, and its log {self.log.name} is missing or damaged, "
                "so what was written last is lost"
            )
        return True

    def _lost(self, what: str) -> StoreBroken:
        return StoreBroken(
            f"open {self.path}: {what}",
            remedy=f"put the missing file back or restore a backup; to go on without what is "
            f"lost, remove {_name_of(self.path)}, and {self.path.name}* to start empty",
        )


def journal_of(path: Path) -> Path:
    """Return the path of the journal of the database at `path`."""
    return path.with_name(path.name + "-ahead")


def _name_of(path: Path) -> str:
    return path.name + ".guard"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Guard]:
    """Lock the guard of the database at `path`; make it if it is not there.

    Raises `StoreBusy` if another process is opening or closing the database for too long.
    """
    guard = path.with_name(_name_of(path))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(guard, flags, 0o600)
    try:
        until = time.monotonic() + _LOCK_S
        while not _try_lock(handle):
            if time.monotonic() > until:
                raise StoreBusy(
                    f"open {path}: another process has been opening it for {_LOCK_S:g} s",
                    retry_after_s=_LOCK_S,
                    remedy=f"see who it is with: fuser {guard}",
                )
            time.sleep(_POLL_S)
        yield Guard(path, handle)
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_log(path: Path) -> bool:
    """Report whether a file begins like a write-ahead log.

    See https://sqlite.org/fileformat2.html#walformat.
    """
    try:
        with path.open("rb") as file:
            header = file.read(32)
    except FileNotFoundError:
        return False
    order = _LOG_MAGICS.get(header[:4])
    if order is None or len(header) < 32:
        return False
    words = [int.from_bytes(header[at : at + 4], "big") for at in range(0, 32, 4)]
    first = second = 0
    for at in range(0, 24, 8):
        one = int.from_bytes(header[at : at + 4], "little" if order == "little" else "big")
        two = int.from_bytes(header[at + 4 : at + 8], "little" if order == "little" else "big")
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return words[6:] == [first, second]
