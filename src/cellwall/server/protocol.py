"""uvicorn's connection with what it does not limit: headers, their time, connections per address.

Not HTTP itself (httptools parses, uvicorn serves). One object per connection. The invariant: a
client that has not shown a key costs one descriptor and a few KiB, for seconds.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_HEADER_BYTES = 64 * 1024
_URL_BYTES = 16 * 1024
_GATHERED_BYTES = 64 * 1024
"""What is larger is not copied once more to save a system call."""
_BODY = (
    b'{"error":{"code":"usage","message":"request: not proper HTTP/1.1, or too long headers",'
    b'"remedy":"use an HTTP client","request_id":""}}'
)
_REFUSED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class TooMuch(Exception):
    """Headers or address above the cap."""


class Gathering:
    """A connection as one answer sees it: the head goes out with the body that follows at once.

    Apart they are two system calls, two segments, and a client that wakes up for nothing.
    """

    __slots__ = ("_held", "_is_first", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing was written yet."""
        self._transport = transport
        self._loop = loop
        self._held = b""
        self._is_first = True

    def write(self, data: bytes) -> None:
        """Send `data`; the first piece waits for the second, or for the next turn of the loop."""
        if self._is_first:
            self._is_first = False
            self._held = data
            self._loop.call_soon(self.flush)
        elif self._held and len(data) <= _GATHERED_BYTES:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        else:
            self.flush()
            self._transport.write(data)

    def flush(self) -> None:
        """Send what is held back."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Close the connection behind what was written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Report whether the connection is being closed."""
        return self._transport.is_closing()


class Connection(HttpToolsProtocol):
    """One client connection."""

    header_s: ClassVar[float] = 10.0
    most_per_address: ClassVar[int] = 1024
    per_address: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, send small answers at once, and start the clock of its first request."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._slow: asyncio.TimerHandle | None = None
        self._address = self.client[0] if self.client else ""
        if self._address:
            self.per_address[self._address] += 1
            if self.per_address[self._address] > self.most_per_address:
                transport.abort()
                return
            sock = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_clock()
        self.forget(self._address)
        super().connection_lost(exc)

    @classmethod
    def forget(cls, address: str) -> None:
        """One connection of `address` is gone."""
        if address:
            cls.per_address[address] -= 1
            if cls.per_address[address] <= 0:
                del cls.per_address[address]

    def _start_clock(self) -> None:
        if self._slow is None:
            self._slow = self.loop.call_later(self.header_s, self._on_slow)

    def _stop_clock(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _on_slow(self) -> None:
        self._slow = None
        self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_bytes = 0
        self._start_clock()

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._head_bytes += len(url)
        if self._head_bytes > _URL_BYTES:
            raise TooMuch
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._head_bytes += len(name) + len(value) + 32
        if self._head_bytes > _HEADER_BYTES:
            raise TooMuch
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are whole; hand the application a way to cut the connection."""
        self._stop_clock()
        extensions: dict[str, Any] = {"cellwall.transport": self.transport}
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle.transport is self.transport:
            cycle.transport = cast(asyncio.Transport, Gathering(self.transport, self.loop))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or too much of it, in our envelope."""
        self.transport.write(_REFUSED)
        self.transport.close()


class SocketConnection(WebSocketsSansIOProtocol):
    """The same connection after its upgrade; still counted, still to be cut if need be."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        Connection.forget(self.client[0] if self.client else "")
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        """Hand the application a way to cut the connection."""
        extensions: dict[str, Any] = {**(self.scope.get("extensions") or {})}
        extensions["cellwall.transport"] = self.transport
        self.scope["extensions"] = extensions
        await super().run_asgi()
