"""The form in which a tree travels between engine and guest: records, and a file's fingerprint.

`tree_scan` writes it, `tree_restore` and the engine's `history` read it. Paths are bytes, relative
to the top. The invariant: a fingerprint depends on a file's content only, not on how its holes lie
or on the pieces that it came in.
"""

from __future__ import annotations

import hashlib
import struct

ENTRY = struct.Struct(">2sIqQQQIII32sII")
"""`E` and the kind, mode, mtime_ns, size, device, inode, links, uid, gid, fingerprint, the lengths
of path and target, which follow."""

PIECE = struct.Struct(">2sQI")
"""`D-`, offset and length of the bytes of a file that follow."""

END = struct.Struct(">2s")
"""`Z-`, or `Z!` after a file that changed while it was read: the end of a file's content."""

CONTENT, FILE, UNSTEADY = b"F", b"f", b"u"
"""A file whose content follows; one of which the fingerprint says all; the same, which changed
while it was read."""
FOLDER, LINK, FIFO, SOCKET, DEVICE = b"d", b"l", b"p", b"s", b"c"
REMOVE, HARD_LINK, DRESS = b"x", b"h", b"m"
"""What only a restoration has: remove a path, make another name of a file, set what is known of a
path but its content."""

BLOCK_BYTES = 4096
"""Blocks of this size that hold only zeros are left out, wherever the file system has holes."""
STEP_BYTES = 256 * 1024
MOST_PATH_BYTES = 65_535
NO_FINGERPRINT = bytes(32)
_ZEROS = bytes(BLOCK_BYTES)
_RUN = struct.Struct(">QQ")


class Fingerprint:
    """The digest of a file that comes in pieces, in order, without its blocks of zeros."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._data = hashlib.sha256()
        self._shape = hashlib.sha256()
        self._start = self._end = 0

    def add(self, offset: int, data: bytes) -> None:
        """Add bytes that lie at `offset`."""
        if offset != self._end:
            self._shape.update(_RUN.pack(self._start, self._end))
            self._start = offset
        self._data.update(data)
        self._end = offset + len(data)

    def finish(self, size: int) -> bytes:
        """Return the digest of a file of `size` bytes."""
        self._shape.update(_RUN.pack(self._start, self._end) + size.to_bytes(8, "big"))
        return hashlib.sha256(self._data.digest() + self._shape.digest()).digest()


def without_zeros(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """Return the runs of `data`, which begins at a block's border, between blocks of zeros."""
    if _ZEROS not in data and len(data) % BLOCK_BYTES == 0:
        return [(offset, data)]
    found = []
    start = None
    for position in range(0, len(data), BLOCK_BYTES):
        is_empty = _ZEROS.startswith(data[position : position + BLOCK_BYTES])
        if is_empty and start is not None:
            found.append((offset + start, data[start:position]))
            start = None
        elif not is_empty and start is None:
            start = position
    if start is not None:
        found.append((offset + start, data[start:]))
    return found


def entry(kind: bytes, path: bytes, fields: tuple[int, ...], more: tuple[bytes, bytes]) -> bytes:
    """Return a record: `fields` are mode to gid as `ENTRY` has them, `more` digest and target."""
    digest, target = more
    return ENTRY.pack(b"E" + kind, *fields, digest, len(path), len(target)) + path + target
