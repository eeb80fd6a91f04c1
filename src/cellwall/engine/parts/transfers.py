"""Byte transfers of any size into and out of a sandbox, one piece at a time.

Used by `files`, which reads and writes small whole files itself. Everything goes through the guest.
The invariant: whatever the guest or the caller does, at most one piece is in the engine's memory,
and an uploaded file appears under its name only when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.model.errors import Conflict
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.runtimes.channel.replies import Reply

PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a file, and what the guest reported about the file at that moment."""

    data: bytes
    size: int
    """Size in bytes of the whole file; 0 also for files of /proc that are not empty."""
    is_end: bool
    inode: int | None = None
    """Inode of the file read; another file may take its name between two pieces."""


async def read_piece(
    live: ClaimedSandbox, path: str, offset: int, length: int = PIECE_BYTES
) -> Piece:
    """Read up to `length` bytes from `offset`."""
    length = min(length, PIECE_BYTES)
    reply = await live.channel.request("file_read", path=path, offset=offset, length=length)
    size, inode = reply.header.get("size"), reply.header.get("inode")
    return Piece(
        # Drop what the guest sent beyond the requested length.
        reply.body[:length],
        size if type(size) is int and size >= 0 else 0,
        bool(reply.header.get("eof")) or not reply.body,
        inode if type(inode) is int else None,
    )


async def read_stream(
    live: ClaimedSandbox, path: str, offset: int, length: int, inode: int | None = None
) -> AsyncIterator[bytes]:
    """Yield exactly `length` bytes from `offset` of one file, the one with `inode` if given.

    Raises `GuestRefused` if the file has become shorter or another file has taken its name.
    """
    end = offset + length
    while offset < end:
        piece = await read_piece(live, path, offset, end - offset)
        if not piece.data:
            raise GuestRefused("invalid", f"{path}: it became shorter while it was read")
        if inode not in {None, piece.inode}:
            raise GuestRefused("invalid", f"{path}: it was replaced while it was read")
        inode = piece.inode
        offset += len(piece.data)
        yield piece.data


async def write_stream(
    live: ClaimedSandbox,
    path: str,
    pieces: AsyncIterable[bytes],
    mode: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write a file from `pieces` and create its parents; return its size.

    Content longer than one piece is collected under a random name beside the target and renamed at
    the end, so that a reader never sees a mix of two uploads.
    """
    joined = rejoined(pieces)
    first = await anext(joined, b"")
    if len(first) < PIECE_BYTES:
        await _write(live, path, first, mode, metadata)
        return len(first)
    folder, slash, _ = path.rpartition("/")
    draft = f"{folder}{slash}.cellwall-upload-{os.urandom(8).hex()}"
    size = 0
    try:
        await _write(live, draft, first, mode, metadata)
        size = len(first)
        async for piece in joined:
            await _append(live, draft, piece)
            size += len(piece)
        await live.channel.request("file_move", path=draft, target=path)
    except BaseException:
        if live.is_alive:
            # Not awaited: this task may have been cancelled by its caller.
            live.channel.tell("file_remove", path=draft, recursive=False)
        raise
    return size


async def append_stream(live: ClaimedSandbox, path: str, pieces: AsyncIterable[bytes]) -> int:
    """Append `pieces` to a file, creating it if necessary; return the number of bytes appended."""
    size = 0
    async for piece in rejoined(pieces):
        await _append(live, path, piece)
        size += len(piece)
    return size


async def _write(
    live: ClaimedSandbox,
    path: str,
    data: bytes,
    mode: int | None,
    metadata: Mapping[str, str] | None,
) -> None:
    given = {"metadata": metadata} if metadata else {}
    reply = await live.channel.request(
        "file_write", data, path=path, append=False, parents=True, mode=mode, **given
    )
    check_kept(reply, metadata)
    live.touch()


def check_kept(reply: Reply, metadata: Mapping[str, str] | None) -> None:
    """Raise Conflict if a guest has written a file and not kept the metadata for it."""
    if metadata and reply.header.get("kept") != len(metadata):
        raise Conflict(
            "file_write: the file was written, but this sandbox keeps no metadata of files",
            remedy="it was begun by an older version of cellwall; start another",
        )


async def _append(live: ClaimedSandbox, path: str, data: bytes) -> None:
    await live.channel.request("file_write", data, path=path, append=True, parents=True, mode=None)
    live.touch()


async def put_tree(
    live: ClaimedSandbox, path: str, pieces: AsyncIterable[bytes]
) -> tuple[int, int]:
    """Unpack a tar stream below `path` in the sandbox; return the numbers of files and bytes."""
    channel = live.channel
    number, reply = channel.open_transfer("tree_put", {"path": path})
    try:
        async for piece in rejoined(pieces):
            if reply.done():
                break
            channel.send({"op": "chunk", "id": number}, piece)
            await channel.wait_writable()
            live.touch()
        channel.send({"op": "chunk_end", "id": number})
        header = (await reply).header
    except BaseException:
        channel.send({"op": "signal", "id": number, "signal": 9})
        with contextlib.suppress(BaseException):
            reply.exception()  # no other code retrieves the exception
        raise
    finally:
        channel.forget(number)
    files, size = header.get("files"), header.get("bytes")
    return files if type(files) is int else 0, size if type(size) is int else 0


async def get_tree(
    live: ClaimedSandbox, op: str, fields: Mapping[str, str]
) -> AsyncGenerator[bytes, None]:
    """Yield the tar stream that the guest makes for `tree_get` or `root_get`.

    A consumer that stops early must close the generator (`contextlib.aclosing`): until then the
    channel delivers nothing else. Raises what the guest's channel does.
    """
    channel = live.channel
    steps: asyncio.Queue[bytes] = asyncio.Queue()
    pauses = 0

    def on_chunk(data: bytes) -> None:
        nonlocal pauses
        if not data:
            return  # the reply ends the stream; see below
        steps.put_nowait(data)
        pauses += 1
        channel.pause()  # one step at a time: a slow reader stops the guest, not the host

    number, reply = channel.open_transfer(op, dict(fields), on_chunk)
    reply.add_done_callback(lambda _: steps.put_nowait(b""))
    try:
        while step := await steps.get():
            yield step
            live.touch()
            pauses -= 1
            channel.resume()
        await reply
    finally:
        channel.forget(number)
        for _ in range(pauses):  # also for the step at which the consumer stopped
            channel.resume()
        channel.send({"op": "signal", "id": number, "signal": 9})


async def rejoined(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in pieces of `PIECE_BYTES`, the last one shorter."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
    if held:
        yield bytes(held)
