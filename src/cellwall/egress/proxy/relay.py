"""The relay: bytes between two streams, in both directions, until both have ended.

Plain sockets are left to `pump`; TLS is read and written here. A side that reads slowly holds up
the other one and nothing else: at most one piece is under way in each direction.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from cellwall.egress.proxy import pump
from cellwall.egress.proxy.meter import Meter
from cellwall.egress.proxy.pump import PIECE

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
        pump.shut(self.socket)


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
    await pump.run((inner, outer, meter.note_sent), (outer, inner, meter.note_received))


async def both_of(*work: Coroutine[Any, Any, None]) -> None:
    """Do both until both have ended; the first error ends the other one and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
