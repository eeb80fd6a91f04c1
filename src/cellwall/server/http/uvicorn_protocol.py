"""uvicorn's connection with further limits: headers, their time, connections per address.

httptools parses HTTP, uvicorn serves it. There is one object per connection. The invariant: a
client that has not shown a key costs one descriptor and a few KiB, for seconds.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from cellwall.model.errors import CapacityError
from cellwall.server.core.errors import envelope, headers_of
from cellwall.server.http.addresses import Addresses
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


_HEADER_BYTES = 64 * 1024
_URL_BYTES = 16 * 1024
_KEPT_FREE = 8
"""Divisor: this part of the connections is kept free of unused ones."""
_GATHERED_BYTES = 64 * 1024
"""Largest piece, in bytes, that is joined to the head; a larger one is not copied to save a
call."""
_BODY = (
    b'{"error":{"code":"usage","message":"request: not proper HTTP/1.1, or too long headers",'
    b'"remedy":"use an HTTP client","request_id":""}}'
)
_REFUSED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class TooMuch(Exception):
    """Headers or URL above the cap."""


class Tunnel(Exception):
    """A `CONNECT` request: this is no proxy, and where such a request ends is ambiguous."""


async def full(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Answer 503 for the application while there are too many connections."""
    error = CapacityError(
        "connections: the server has as many as it takes",
        retry_after_s=1,
        remedy="try again, or let the operator raise most_connections",
    )
    data = one_line(envelope(error, "")).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(data)),
        "connection": "close",
        **headers_of(error),
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 503, "headers": raw})
    body = b"" if scope["type"] == "http" and scope["method"] == "HEAD" else data
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Gathering:
    """The connection as one answer sees it: the head is sent together with the body's first piece.

    Sent apart they are two system calls, two segments, and one needless wake-up of the client.
    """

    __slots__ = ("_held", "_is_first", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
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
        """Send the held-back piece."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Close the connection after the pending data."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Report whether the connection is being closed."""
        return self._transport.is_closing()


class Connection(HttpToolsProtocol):
    """One client connection."""

    header_s: ClassVar[float] = 10.0
    most: ClassVar[int] = 4096
    """Maximum of open connections; uvicorn answers 503 above it."""
    addresses: ClassVar[Addresses] = Addresses(1024, ())
    idle: ClassVar[dict[Connection, None]] = {}
    """Connections that wait for another request; those that wait longest come first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, disable Nagle's delay, and start the timer of its first request."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._is_head_whole = False
        self._slow: asyncio.TimerHandle | None = None
        self._address = self.client[0] if self.client else ""
        self._make_room()
        if self._address:
            if self.addresses.is_too_many(self._address):
                transport.abort()
                return
            sock = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Uncount the connection."""
        self._stop_clock()
        self.idle.pop(self, None)
        self.addresses.forget(self._address)
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Close the connection that was unused for longest while little room is left.

        A client that only keeps connections open must not keep others out; a connection in use
        stays.
        """
        if self.idle and len(self.connections) > self.most - self.most // _KEPT_FREE:
            longest = next(iter(self.idle))
            del self.idle[longest]
            longest.transport.close()

    def on_response_complete(self) -> None:
        """Note a finished answer: the connection is idle if no other request waits."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self.idle[self] = None

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

    def data_received(self, data: bytes) -> None:
        """Take received data as uvicorn does, but go on after an upgrade that is not served."""
        self._unset_keepalive_if_required()
        self.idle.pop(self, None)
        rest = memoryview(data)
        try:
            while rest:
                rest = self._parsed(rest)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")

    def _parsed(self, data: memoryview) -> memoryview:
        """Parse `data`; return the rest of it after an upgrade that is not served."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._parse_again()
                return data[upgrade.args[0] :]
        return memoryview(b"")

    def _parse_again(self) -> None:
        """Parse the head once more, without its `Upgrade`, which a server is free to ignore.

        SECURITY: the parser ends a message with an upgrade at its head, whatever its length says:
        its body would be the next request, one that no proxy in front has seen. The parser cannot
        be told otherwise, so a new one gets the head without the upgrade. The first parser was
        strict: no name or value it gave has a line end in it.
        """
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self._version())]
        head += [b"%s: %s\r\n" % each for each in self.headers if each[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"".join([*head, b"\r\n"]))

    def _version(self) -> bytes:
        version: str = self.parser.get_http_version()
        return version.encode()

    def on_message_begin(self) -> None:
        """Reset the counters for a new request."""
        super().on_message_begin()
        self._head_bytes = 0
        self._is_head_whole = False
        self._start_clock()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._head_bytes += len(url)
        if self._head_bytes > _URL_BYTES:
            raise TooMuch
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; a field after the body is a trailer, and is ignored.

        SECURITY: a proxy that checks headers in front has not seen the trailer.
        """
        self._head_bytes += len(name) + len(value) + 32
        if self._head_bytes > _HEADER_BYTES:
            raise TooMuch
        if not self._is_head_whole:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note that the headers are whole; give the application a way to cut the connection."""
        if self.parser.should_upgrade() and not self._should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise Tunnel
            return  # `_parse_again` calls this method once more
        self._is_head_whole = True
        self._stop_clock()
        extensions: dict[str, Any] = {"cellwall.transport": self.transport}
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle.transport is self.transport:
            cycle.transport = cast(asyncio.Transport, Gathering(self.transport, self.loop))

    def on_message_complete(self) -> None:
        """Note the end of the body; with an upgrade there is none yet, or never."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        super()._start_asgi_task(cycle, full if app is service_unavailable else app)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP or too large, with the error envelope."""
        self.transport.write(_REFUSED)
        self.transport.close()


class SocketConnection(WebSocketsSansIOProtocol):
    """The same connection after its upgrade; it is still counted and can still be cut."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Uncount the connection."""
        Connection.addresses.forget(self.client[0] if self.client else "")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take received data; the first is the whole head, passed on by `Connection`.

        The library has caps of its own and takes no body. It does not answer a head that it refuses
        and leaves the connection open, so the refusal is sent here.
        """
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(_REFUSED)
            self.transport.close()

    async def run_asgi(self) -> None:
        """Give the application a way to cut the connection."""
        extensions: dict[str, Any] = {**(self.scope.get("extensions") or {})}
        extensions["cellwall.transport"] = self.transport
        self.scope["extensions"] = extensions
        await super().run_asgi()
