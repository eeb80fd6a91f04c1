"""Sealed files: content that goes to a guest as a descriptor of a memfd, which the kernel copies.

A body of a megabyte is copied five times on its way and takes 3 ms, most of them page faults; a
memfd takes a third of that. The invariant: such a file goes only to a guest that could still hold
its first program (`most_held_bytes`), so nothing of a caller's, of a package's or of an image's has
run there: a guest that kept such files would keep memory that does not count for its sandbox. And
no process can change it (F_SEAL_WRITE, memfd_create(2)), because several sandboxes get the same
one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from typing import TYPE_CHECKING

from cellwall.runtimes.channel import descriptors
from cellwall.runtimes.channel.replies import REPLY, Reply, Single

if TYPE_CHECKING:
    from cellwall.runtimes.channel.channel import GuestChannel

LEAST_BYTES = 256 * 1024
"""Least bytes of a content for which a file is worth its calls."""
_NAME = "cellwall-sealed"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class SealedFile:
    """A sealed memfd with the content of one file: no process can write to it or resize it.

    `close` closes its descriptor, or else the end of the last reference to this object does.
    """

    def __init__(self, content: bytes | memoryview) -> None:
        """Copy `content`. Raises OSError if there is no memory or no descriptor for it."""
        self.fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._size = len(content)
        left = memoryview(content)
        while left:
            left = left[os.write(self.fd, left) :]
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._size

    def __bytes__(self) -> bytes:
        """Return a copy. Raises OSError."""
        pieces, size = [], 0
        while piece := os.pread(self.fd, self._size - size, size):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the descriptor; what was sent to a guest stays there. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the file, if it was made."""
        if hasattr(self, "fd"):
            self.close()


Content = bytes | SealedFile
"""Content of a file that a guest is to write. Both have a length, and `bytes` of both is it."""


async def write_file(channel: GuestChannel, content: Content, **fields: object) -> None:
    """Have a guest write a file; by a descriptor if the content is large and the guest may get one.

    `fields` are those of `file_write`. Raises GuestRefused, ChannelLost.
    """
    if channel.most_held_bytes < 0 or len(content) < LEAST_BYTES:
        if not isinstance(content, bytes):
            content = await asyncio.to_thread(bytes, content)
        await channel.request("file_write", content, **fields)
    elif isinstance(content, bytes):
        await _write_once(channel, content, fields)
    else:
        await _request_with_file(channel, "file_write", content, fields)


async def _write_once(channel: GuestChannel, content: bytes, fields: dict[str, object]) -> None:
    """Make a sealed file for this request only."""
    file = await asyncio.to_thread(_file_or_none, content)
    if file is None:
        await channel.request("file_write", content, **fields)
        return
    try:
        await _request_with_file(channel, "file_write", file, fields)
    finally:
        # An error of the channel refers to this frame and the channel to the error, so that the
        # garbage collector would close the file, some time later.
        file.close()


def _file_or_none(content: bytes) -> SealedFile | None:
    try:
        return SealedFile(content)
    except OSError:  # no memory, or no descriptor: the channel carries it, slower
        return None


async def _request_with_file(
    channel: GuestChannel, op: str, content: SealedFile, fields: dict[str, object]
) -> Reply:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    await descriptors.prepare(channel, op, channel.request)
    listener = Single(future, None)
    number = channel.open_with_files(op, [content.fd], listener, REPLY, fields, b"")
    try:
        return await future
    finally:
        channel.forget(number)
