"""One connection of a client: requests are parsed, and each is given to an exchange.

Made by the listener. Answers go out in the order of the requests. The invariant: bytes after a
request wait until its answer is whole, and a bounded number of them is held; a client that has sent
no whole head costs one descriptor and a few KiB, for seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, cast

import httptools

from cellwall.cluster.gateway.wire.heads import RequestHead, length_of
from cellwall.server.core.errors import HttpError
from cellwall.server.http.addresses import Addresses
from cellwall.server.http.guards import read_headers
from cellwall.wire.answer import one_line

_HEADER_BYTES = 64 * 1024
_URL_BYTES = 16 * 1024
_HIGH_BYTES = 256 * 1024
_MOST_NEXT = 64
"""Requests that may come together."""
_LINGER_S, _LINGER_BYTES = 1.0, 8 << 20
"""Seconds and bytes of a body that are dropped after its request was refused."""
_WAITING_BYTES = 64 * 1024
"""Bytes of further requests that are held while one is answered."""


def _refusal(status: bytes, code: str, message: str, remedy: str) -> bytes:
    """Return a whole answer, after which the connection ends."""
    error = {"code": code, "message": message, "remedy": remedy, "request_id": ""}
    body = one_line({"error": error}).encode()
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\n" % status
    more = b"retry-after: 1\r\n" if status.startswith(b"503") else b""
    return head + more + b"content-length: %d\r\n\r\n%s" % (len(body), body)


_REFUSED = _refusal(
    b"400 Bad Request",
    "usage",
    "request: not proper HTTP/1.1, or too long headers",
    "use an HTTP client",
)
_FULL = _refusal(
    b"503 Service Unavailable",
    "capacity",
    "connections: the gateway has as many as it takes",
    "try again, or let the operator raise most_connections",
)


class TooMuch(Exception):
    """Headers or target above the cap, or a request that this is no proxy for."""


class Served(Protocol):
    """What answers one request."""

    def on_body(self, data: bytes) -> None:
        """Take a piece of the request's body, or of what follows a switch of protocols."""

    def on_whole(self) -> None:
        """Take the end of the request."""

    def on_room(self) -> None:
        """Hear that the client takes data again."""

    def on_full(self) -> None:
        """Hear that the client takes no more data for the moment."""

    def on_gone(self) -> None:
        """Take the end of the client's connection."""


Begin = Callable[["ClientLink", RequestHead, HttpError | None], Served]
"""What begins the way of a request."""


@dataclass(slots=True)
class _Parsed:
    """A request as far as it was parsed."""

    head: RequestHead
    fault: HttpError | None
    keeps_alive: bool
    has_chunks: bool
    """Whether the client understands a body in chunks."""
    is_whole: bool
    pieces: list[bytes] = field(default_factory=list)
    """What has come of its body before its turn."""


class ClientLink(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_begin", "_current", "_deadline_s", "_dropped_bytes", "_has_begun", "_head_bytes",
        "_headers", "_is_head_whole", "_is_held", "_is_tunnel", "_living", "_loop", "_next",
        "_parser", "_served", "_target", "_timer", "_transport", "_waiting", "ended", "is_closing",
        "peer",
    )  # fmt: skip

    header_s: ClassVar[float] = 10.0
    keep_alive_s: ClassVar[float] = 75.0
    most: ClassVar[int] = 4096
    """Open connections of all clients."""
    addresses: ClassVar[Addresses] = Addresses(1024, ())

    def __init__(
        self,
        begin: Begin,
        living: set[ClientLink],
    ) -> None:
        """`begin` gets each request's head, and the refusal if its headers are not acceptable."""
        self._begin = begin
        self._living = living
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._served: Served | None = None
        self._current: _Parsed | None = None
        """The request that is served."""
        self._next: deque[_Parsed] = deque()
        """Requests that came together with it."""
        self._has_begun = False
        """Whether a byte of the current answer was sent."""
        self._is_tunnel = False
        self._waiting = bytearray()
        self._is_held = False
        self._dropped_bytes = -1
        """Bytes that were dropped after the last answer; below 0: none are."""
        self._timer: asyncio.TimerHandle | None = None
        """Wakes at the deadline, or before it: it is set again only when it has come."""
        self._deadline_s = 0.0
        """When the client has to have sent something, on the loop's clock; 0: at no time."""
        self.peer = ""
        """The client's address, without the port; empty for a unix socket."""
        self.is_closing = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection has ended."""
        self._fresh_parser()

    def _fresh_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._is_head_whole = False

    # -- answering -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a piece of the answer."""
        if not self._transport.is_closing():
            self._has_begun = True
            self._transport.write(data)

    @property
    def is_kept(self) -> bool:
        """Whether the connection takes another request after this one."""
        current = self._current
        if current is None or self.is_closing:
            return False
        return current.is_whole and current.keeps_alive and not current.head.upgrade

    @property
    def head(self) -> RequestHead | None:
        """The head of the request that is served; None: none is."""
        return None if self._current is None else self._current.head

    @property
    def page(self) -> bytes:
        """Origin of the listed page that sent the request that is served; empty: of none."""
        return b"" if self._current is None else self._current.head.page

    @property
    def has_chunks(self) -> bool:
        """Whether the client understands a body in chunks."""
        return self._current is not None and self._current.has_chunks

    def done(self) -> None:
        """Note that the answer is whole: the next request's turn has come."""
        is_kept, is_whole = self.is_kept, self._current is None or self._current.is_whole
        self._served = self._current = None
        self._has_begun = False
        if not is_whole and not self._transport.is_closing():
            self._linger()
        elif not is_kept:
            self.close()
        elif self._next:
            self._loop.call_soon(self._serve_next)
        else:
            self._time(self.keep_alive_s)
            if self._waiting or self._is_held:
                self._loop.call_soon(self._take_waiting)

    def _linger(self) -> None:
        """Drop the rest of a body that nothing wants, until its client has taken the answer.

        A connection that is closed with bytes unread is reset, and the answer is lost with it.
        """
        self.is_closing = True
        self._dropped_bytes = 0
        self._time(_LINGER_S)
        self._transport.resume_reading()

    def _drop(self, data: bytes) -> None:
        self._dropped_bytes += len(data)
        if self._dropped_bytes > _LINGER_BYTES:
            self.close()

    def _serve_next(self) -> None:
        """Begin a request that came together with the one before."""
        if self.is_closing:
            return
        following = self._next.popleft()
        self._serve(following)
        pieces, following.pieces = following.pieces, []
        for piece in pieces:
            if self._served is not None:
                self._served.on_body(piece)
        if following.is_whole and self._served is not None:
            self._served.on_whole()
        self._take_waiting()

    def _take_waiting(self) -> None:
        """Parse what has come meanwhile, if its turn has come."""
        if self._is_held:
            self._is_held = False
            self._transport.resume_reading()
        if self._waiting and not self.is_closing:
            data = bytes(self._waiting)
            self._waiting.clear()
            self.data_received(data)

    def switch(self) -> None:
        """Pass everything on unparsed from now on."""
        self._is_tunnel = True
        if self._waiting and self._served is not None:
            self._served.on_body(bytes(self._waiting))
            self._waiting.clear()

    def close(self) -> None:
        """Close once everything is sent."""
        self.is_closing = True
        self._transport.close()

    def end_when_idle(self) -> None:
        """Take no further request."""
        self.is_closing = True
        if self._served is None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection: the client has to see that the answer is not whole."""
        self.is_closing = True
        self._transport.abort()

    def hold(self) -> None:
        """Read no more of the body for the moment: the node is slow."""
        self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # -- of asyncio ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self._living.add(self)
        if self.addresses.is_too_many(self.peer):
            self.abort()
        elif len(self._living) > self.most:
            self.write(_FULL)
            self.close()
        else:
            self._time(self.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange under way."""
        self.is_closing = True
        self._living.discard(self)
        self.addresses.forget(self.peer)
        self.ended.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        served, self._served = self._served, None
        self._next.clear()
        if served is not None:
            served.on_gone()

    def pause_writing(self) -> None:
        """Have the node's answer wait."""
        if self._served is not None:
            self._served.on_full()

    def resume_writing(self) -> None:
        """Have it go on."""
        if self._served is not None:
            self._served.on_room()

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self._dropped_bytes >= 0:
            self._drop(data)
            return
        if self._is_tunnel:
            if self._served is not None:
                self._served.on_body(data)
            return
        # What waits comes first: its turn may have come, and `_take_waiting` not yet.
        if self._waiting or self._next or (self._current is not None and self._current.is_whole):
            self._keep_waiting(data)
            return
        if self._served is None and not self._head_bytes:
            self._time(self.header_s)
        self._parse(data)

    def _keep_waiting(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) > _WAITING_BYTES and not self._is_held:
            self._is_held = True
            self._transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse()

    def _upgraded(self, rest: bytes) -> None:
        """Go on after a head with an upgrade: a WebSocket's is done, any other is ignored.

        SECURITY: the parser ends a message with an upgrade at its head, whatever its length says.
        An upgrade that is ignored is parsed once more, without it, and so is its body; one that is
        done has no body.
        """
        if self._current is not None:  # a WebSocket's head, which is served
            if rest:
                self._keep_waiting(rest)
            return
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s\r\n" % (method, self._target, version)]
        lines += [b"%s: %s\r\n" % each for each in self._headers if each[0] != b"upgrade"]
        self._fresh_parser()
        self._parse(b"".join([*lines, b"\r\n", rest]))

    def _refuse(self) -> None:
        self._no_time()
        if self._has_begun:
            self.abort()  # its body is not what its head said
        else:
            self.write(_REFUSED)
            self.close()

    def _time(self, seconds: float) -> None:
        """Close the connection in so many seconds, unless something comes before."""
        self._deadline_s = deadline_s = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return  # which is a request's usual way: it costs no timer
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline_s, self._on_time)

    def _no_time(self) -> None:
        self._deadline_s = 0.0

    def _on_time(self) -> None:
        self._timer = None
        left_s = self._deadline_s - self._loop.time()
        if not self._deadline_s:
            return
        if left_s > 0:
            self._timer = self._loop.call_at(self._deadline_s, self._on_time)
        else:
            self.close()

    # -- of the parser ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        if len(self._next) >= _MOST_NEXT:
            raise TooMuch
        self._target, self._headers = b"", []
        self._head_bytes, self._is_head_whole = 0, False

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url
        self._head_bytes += len(url)
        if len(self._target) > _URL_BYTES:
            raise TooMuch

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; a field after the body is a trailer, and is left out."""
        self._head_bytes += len(name) + len(value) + 32
        if self._head_bytes > _HEADER_BYTES:
            raise TooMuch
        if not self._is_head_whole:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Give the request to its exchange."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            raise TooMuch
        named, fault = read_headers(self._headers)
        upgrade = b""
        if self._parser.should_upgrade():
            upgrade = named.get("upgrade", "").lower().encode("latin-1")
            has_body = "transfer-encoding" in named or named.get("content-length", "0") != "0"
            if self._current is not None:
                raise TooMuch  # a switch that came together with another request
            if upgrade != b"websocket":
                return  # `_upgraded` parses the head once more
            if has_body or method != b"GET":
                raise TooMuch
        self._is_head_whole = True
        length = 0 if fault else self._length(named)
        headers = self._headers
        found = _Parsed(
            RequestHead(method, self._target, headers, upgrade, length, dict(headers)),
            fault,
            self._parser.should_keep_alive(),
            self._parser.get_http_version() == "1.1",
            is_whole=bool(upgrade),
        )
        if self._current is not None:
            self._next.append(found)
        else:
            self._no_time()
            self._serve(found)

    def _serve(self, found: _Parsed) -> None:
        self._current = found
        self._served = self._begin(self, found.head, found.fault)

    def _length(self, named: dict[str, str]) -> int | None:
        if "transfer-encoding" in named:
            return None
        return length_of(self._headers) or 0

    def on_body(self, data: bytes) -> None:
        """Pass a piece of the body on, or keep it until its request's turn."""
        if self._next:
            self._next[-1].pieces.append(data)
        elif self._served is not None:
            self._served.on_body(data)

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        if self._parser.should_upgrade():
            return
        if self._next:
            self._next[-1].is_whole = True
        elif self._current is not None:
            self._current.is_whole = True
            if self._served is not None:
                self._served.on_whole()
