"""The relay: bytes between two sockets, in both directions, until both have ended.

Small amounts are read and written; a long stream is moved by the kernel through a pipe (splice(2)),
and never comes into this process's memory. A side that reads slowly holds up the other one and
nothing else: at most one piece is under way in each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from cellwall.egress.proxy.meter import Meter

PIECE = 65_536
"""Most bytes read at once."""
_SPLICED_AFTER = 512 * 1024
"""Bytes after which a direction goes over to splice(2); a pipe costs more than short answers."""
_PIPE_BYTES = 1 << 20
_SPLICE_FLAGS = 0x01 | 0x02  # SPLICE_F_MOVE, SPLICE_F_NONBLOCK

Count = Callable[[int], Awaitable[None]]


class Stream(Protocol):
    """One end of a connection: a socket, or TLS over one."""

    socket: socket.socket
    """The socket below; its owner closes it."""

    async def receive(self) -> bytes:
        """Return what came next, which is counted; empty at the end. Raises OSError."""

    async def send(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError."""

    async def end(self) -> None:
        """Say that nothing more comes."""


class PlainStream:
    """A socket as it is."""

    def __init__(self, held: socket.socket, count: Count) -> None:
        """`count` counts what is read."""
        self.socket = held
        self._count = count
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> bytes:
        """Return what came next; empty at the end."""
        data = await self._loop.sock_recv(self.socket, PIECE)
        await self._count(len(data))
        return data

    async def send(self, data: bytes) -> None:
        """Write all of `data`."""
        await self._loop.sock_sendall(self.socket, data)

    async def end(self) -> None:
        """Say that nothing more comes."""
        _end(self.socket)


async def relay_streams(inner: Stream, outer: Stream, meter: Meter) -> None:
    """Do what `relay` does; by the kernel where neither side is TLS."""
    if isinstance(inner, PlainStream) and isinstance(outer, PlainStream):
        await relay(inner.socket, outer.socket, meter)
    else:
        await both_of(_pump_stream(inner, outer), _pump_stream(outer, inner))


async def _pump_stream(source: Stream, target: Stream) -> None:
    while data := await source.receive():
        await target.send(data)
    await target.end()


async def relay(inner: socket.socket, outer: socket.socket, meter: Meter) -> None:
    """Move bytes until both sides have ended. Raises OSError or what `meter` raises.

    Both sockets are non-blocking; the caller closes them. The end of one direction is passed on,
    and the other one goes on.
    """
    await both_of(pump(inner, outer, meter.count_sent), pump(outer, inner, meter.count_received))


async def both_of(*work: Coroutine[Any, Any, None]) -> None:
    """Do both until both have ended; the first error ends the other one and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(source: socket.socket, target: socket.socket, count: Count) -> None:
    """Move bytes one way until `source` ends, then end `target`'s side."""
    loop = asyncio.get_running_loop()
    moved = 0
    while moved < _SPLICED_AFTER or (pipe := _pipe()) is None:
        data = await loop.sock_recv(source, PIECE)
        if not data:
            _end(target)
            return
        moved += len(data)
        await count(len(data))
        await loop.sock_sendall(target, data)
    await _splice(source, target, count, pipe)
    _end(target)


def _end(target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has gone
        target.shutdown(socket.SHUT_WR)


def _pipe() -> tuple[int, int] | None:
    """Return both ends of a new pipe; None if this process has no descriptors left."""
    try:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # the pages of this user's pipes are used up
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing


async def _splice(
    source: socket.socket, target: socket.socket, count: Count, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    size = _PIPE_BYTES
    try:
        while got := await _moved(source, source.fileno(), writing, size, is_reading=True):
            await count(got)
            while got:
                got -= await _moved(target, reading, target.fileno(), got, is_reading=False)
    finally:
        os.close(reading)
        os.close(writing)


async def _moved(waited: socket.socket, src: int, dst: int, size: int, *, is_reading: bool) -> int:
    """Splice up to `size` bytes, waiting for the socket; 0 at the end of the source."""
    while True:
        try:
            return os.splice(src, dst, size, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            await ready(waited, is_reading=is_reading)


async def ready(waited: socket.socket, *, is_reading: bool) -> None:
    """Wait until a socket can be read, or written."""
    loop = asyncio.get_running_loop()
    is_ready = loop.create_future()
    number = waited.fileno()

    def tell() -> None:
        if not is_ready.done():
            is_ready.set_result(None)

    add, remove = (
        (loop.add_reader, loop.remove_reader)
        if is_reading
        else (loop.add_writer, loop.remove_writer)
    )
    add(number, tell)
    try:
        await is_ready
    finally:
        remove(number)
