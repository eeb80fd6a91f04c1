"""TLS over one socket, in memory: what was said in it is read and written as plain bytes.

OpenSSL works on two buffers, so that this process's event loop never waits in it. Bytes are counted
as they come over the socket, TLS's own included. One task may read while another one writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_PIECE = 65_536
"""Most bytes read at once."""


@dataclass(frozen=True, slots=True)
class End:
    """Which end of TLS a stream is."""

    context: ssl.SSLContext
    server_name: str | None = None
    """Name of the server to verify; None: this is the server."""
    session: ssl.SSLSession | None = None
    """Session with that server, verified before, that may go on; it costs less than a new one."""


class TlsStream:
    """One end of TLS."""

    def __init__(
        self,
        held: socket.socket,
        count: Callable[[int], Awaitable[None]],
        end: End,
        first: bytes = b"",
    ) -> None:
        """The caller closes the socket; `first` was read from it already, and counted."""
        self.socket = held
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(first)
        self._tls = end.context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=end.server_name is None,
            server_hostname=end.server_name,
            session=end.session,
        )
        self._writing = asyncio.Lock()
        """Held while what OpenSSL has written goes out, so that it stays in order."""

    @property
    def session(self) -> ssl.SSLSession | None:
        """Session to go on with; a server gives it after the handshake, or not at all."""
        return self._tls.session

    async def handshake(self) -> None:
        """Agree on keys. Raises ssl.SSLError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # the alert says why
                raise
            else:
                await self._flush()
                return

    async def receive(self) -> bytes:
        """Return what came next; empty at the end. Raises ssl.SSLError, OSError."""
        while True:
            try:
                data = self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            else:
                return data

    async def send(self, data: bytes) -> None:
        """Write all of `data`. Raises ssl.SSLError, OSError."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        await self._flush()

    async def end(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()  # writes its notice first, and does not wait for the other's
        with contextlib.suppress(OSError):
            await self._flush()
            self.socket.shutdown(socket.SHUT_WR)

    async def _fill(self) -> None:
        data = await self._loop.sock_recv(self.socket, _PIECE)
        if not data:
            self._incoming.write_eof()
            return
        await self._count(len(data))
        self._incoming.write(data)

    async def _flush(self) -> None:
        async with self._writing:
            data = self._outgoing.read()
            if data:
                await self._loop.sock_sendall(self.socket, data)
