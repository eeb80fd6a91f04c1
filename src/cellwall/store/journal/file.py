"""A small file in front of SQLite: one write and one sync make a record durable.

The meaning of records is in `pending`; `writer` decides when they go into the database. The file
has its blocks from the beginning, so that a sync waits for nothing but the data; records go round
in it, each on blocks of its own, so that a torn write harms no other. The invariants: `append`
returns after the record survives a loss of power; `read` returns the records appended after a
number without a hole, or raises. A record is sealed with a key that only the database has: output
of programs lies in the file too, and must never pass for a record.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import os
import struct
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from cellwall.store.records.errors import StoreBroken
from cellwall.store.sqlite.loss_guard import sync_folder

BLOCK_BYTES = 4096
"""Bytes of a file system's block; also at least the unit in which any disk writes."""
BLOCKS = 2048
KEY_BYTES = 16
_MOST_BLOCKS = 16
"""Largest number of blocks of one record; SQLite writes a larger one at the same cost."""
_SLOW_S = 0.005
"""Average seconds per write above which the journal rests: a slower disk blocks the loop too
long."""
_REST_S = 1.0
"""Least seconds of a rest; it then lasts until the database's own thread finds the disk quick."""
_QUICK_COMMIT_S = 0.05
_WEIGHT = 1 / 8
"""Weight of the latest write in the average."""
_MAGIC = b"cwj1"
_SEAL_BYTES = 16
_HEAD = struct.Struct(f">4sIQ{_SEAL_BYTES}s")
"""Magic, length, number, seal (keyed BLAKE2b over length, number and content)."""


class Extent(NamedTuple):
    """The blocks of one record; positions and sizes are in blocks."""

    number: int
    at: int
    end: int
    taken: int
    """Blocks of the record, and those at the end of the file that it did not fit into."""
    record: bytes


class Journal:
    """One journal, open and locked; no other process has it."""

    def __init__(self, path: Path, handle: int, key: bytes) -> None:
        """Use `open`."""
        self._path = path
        self._handle = handle
        self._key = key
        self._next = 0
        self._used = 0
        self._held: deque[tuple[int, int]] = deque()
        """Number and blocks of each record that is still needed, oldest first."""
        self._is_resting = False
        self._rests_until = 0.0
        self._usual_s = 0.0

    @classmethod
    def open(cls, path: Path, key: bytes, *, is_new: bool) -> Journal | None:
        """Open the journal at `path`; None if another process has it.

        Raises `StoreBroken` if the file is missing, unless it `is_new`; `OSError`.
        """
        if is_new and not path.exists():
            _make(path)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise StoreBroken(
                f"open {path}: it is gone, and the database beside it was not closed, "
                "so what was written last is lost",
                remedy="put it back or restore a backup of the database",
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return cls(path, handle, key)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        os.close(self._handle)

    # -- writing ---------------------------------------------------------------------------

    def append(self, number: int, content: bytes) -> bool:
        """Make a record durable; False if there is no room for it now, and nothing was written.

        Blocks for as long as the disk takes; a slow disk makes the journal rest, see `commit_took`.
        Numbers rise by one. Raises `OSError`; the record may then be on disk or not.
        """
        began_s = time.monotonic()
        extent = self.reserve(number, content)
        if extent is None:
            return False
        self.write(extent)
        self._note(began_s, time.monotonic())
        self.keep(extent)
        return True

    def reserve(self, number: int, content: bytes) -> Extent | None:
        """Reserve room for a record, None if there is none now; `write` and `keep` must follow.

        No other room may be reserved before that.
        """
        blocks = -(-(_HEAD.size + len(content)) // BLOCK_BYTES)
        is_round = self._next + blocks > BLOCKS
        skipped = BLOCKS - self._next if is_round else 0
        is_full = self._used + skipped + blocks > BLOCKS
        if blocks > _MOST_BLOCKS or is_full or self._is_resting:
            return None
        seal = _seal(self._key, number, content)
        head = _HEAD.pack(_MAGIC, len(content), number, seal)
        at = 0 if is_round else self._next
        return Extent(number, at, at + blocks, skipped + blocks, head + content)

    def write(self, extent: Extent) -> None:
        """Make the record of `extent` durable; on any thread. Raises as `append`."""
        if os.pwrite(self._handle, extent.record, extent.at * BLOCK_BYTES) != len(extent.record):
            raise OSError(errno.EIO, f"{self._path}: a record was written in part")
        os.fdatasync(self._handle)

    def keep(self, extent: Extent) -> None:
        """Note that the record of `extent` was written."""
        self._next = extent.end
        self._used += extent.taken
        self._held.append((extent.number, extent.taken))

    def _note(self, began_s: float, ended_s: float) -> None:
        self._usual_s += _WEIGHT * (ended_s - began_s - self._usual_s)
        if self._usual_s > _SLOW_S:
            self._is_resting = True
            self._rests_until = ended_s + _REST_S
            self._usual_s = _SLOW_S / 2

    def commit_took(self, seconds: float) -> None:
        """Note the seconds that the database took for a commit on the same disk.

        This ends a rest: the loop must not be blocked to find out that a slow disk is quick again.
        """
        if seconds <= _QUICK_COMMIT_S and time.monotonic() >= self._rests_until:
            self._is_resting = False

    def release(self, number: int) -> None:
        """Free the blocks of the records up to `number`: the database has them."""
        while self._held and self._held[0][0] <= number:
            self._used -= self._held.popleft()[1]

    # -- reading ---------------------------------------------------------------------------

    def read(self, after: int) -> list[tuple[int, bytes]]:
        """Return number and content of every record after number `after`, in order.

        Raises `StoreBroken` if one is missing: only the last can have been torn, and its write was
        never confirmed to a caller.
        """
        data = os.pread(self._handle, BLOCKS * BLOCK_BYTES, 0)
        found = {}
        for at in range(0, len(data), BLOCK_BYTES):
            if data.startswith(_MAGIC, at) and (record := self._record(data, at, after)):
                found[record[0]] = record[1]
        numbers = sorted(found)
        if numbers != list(range(after + 1, after + 1 + len(numbers))):
            raise StoreBroken(
                f"open {self._path}: records are missing between {after} and {numbers[-1]}",
                remedy="restore a backup of the database; to go on without what it holds, "
                "remove it and start the server with the backup",
            )
        return [(number, found[number]) for number in numbers]

    def _record(self, data: bytes, at: int, after: int) -> tuple[int, bytes] | None:
        _, length, number, seal = _HEAD.unpack_from(data, at)
        if length > _MOST_BLOCKS * BLOCK_BYTES:
            return None
        begin = at + _HEAD.size
        content = data[begin : begin + length]
        if number <= after or len(content) != length:
            return None
        is_ours = hmac.compare_digest(seal, _seal(self._key, number, content))
        return (number, content) if is_ours else None


def is_held(path: Path) -> bool:
    """Report whether a process has the journal at `path` open: a running server."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _seal(key: bytes, number: int, content: bytes) -> bytes:
    words = struct.pack(">IQ", len(content), number)
    return hashlib.blake2b(words + content, key=key, digest_size=_SEAL_BYTES).digest()


def _make(path: Path) -> None:
    """Write every block once: a sync of blocks that were never written waits for the file system.

    Raises `OSError`; then there is no journal.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        block = bytes(BLOCK_BYTES * 64)
        for at in range(0, BLOCKS * BLOCK_BYTES, len(block)):
            os.pwrite(handle, block, at)
        os.fsync(handle)
        fresh.rename(path)
    finally:
        os.close(handle)
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)
