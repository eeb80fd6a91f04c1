"""One connection to a node: requests go out one after the other, their answers come back in pieces.

Made and kept by `links`, used by one exchange at a time. The invariant: a connection is used again
only if the request and its answer were both whole on it, so the next answer cannot be an earlier
request's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from cellwall.cluster.gateway.wire.heads import LAST_CHUNK, ResponseHead, chunk, length_of

if TYPE_CHECKING:
    from collections.abc import Callable

_HIGH_BYTES = 256 * 1024
"""Bytes on their way to a node above which its client is not read."""
_HEAD_BYTES = 256 * 1024
_READ = memoryview(bytearray(256 * 1024))
"""Where every connection reads: what comes is taken before the next one reads, and nothing keeps a
view of it. A buffer for each read would be made as large, and cut down to what came."""


class Sink(Protocol):
    """What takes the answer of one request."""

    def on_head(self, head: ResponseHead) -> None:
        """Take the head; it comes once."""

    def on_data(self, data: bytes) -> None:
        """Take a piece of the body, or of what follows a switch of protocols."""

    def on_end(self) -> None:
        """Take the end of the answer."""

    def on_lost(self) -> None:
        """Take the end of the connection before that of the answer."""

    def on_room(self) -> None:
        """Hear that the node takes data again."""


class _Idle:
    """The sink of a connection that nothing is asked on."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def on_head(self, head: ResponseHead) -> None:
        self._link.abort()  # an answer to nothing

    def on_data(self, data: bytes) -> None:
        self._link.abort()

    def on_end(self) -> None:
        self._link.abort()

    def on_lost(self) -> None:
        pass

    def on_room(self) -> None:
        pass


class NodeLink(asyncio.BufferedProtocol):
    """See the module; made by `create_connection`."""

    __slots__ = (
        "_has_no_body", "_head_bytes", "_headers", "_in_chunks", "_is_request_whole", "_is_tunnel",
        "_on_gone", "_parser", "_sink", "_stays_open", "_transport", "idle_since",
        "is_answer_whole", "is_full", "is_open",
    )  # fmt: skip

    def __init__(self, on_gone: Callable[[NodeLink], None]) -> None:
        """`on_gone` is called once, when the connection has ended."""
        self._on_gone = on_gone
        self._sink: Sink = _Idle(self)
        self._transport = cast(asyncio.Transport, None)
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._is_tunnel = False
        self._is_request_whole = True
        self.is_answer_whole = True
        """Whether nothing of an answer is still to come."""
        self._has_no_body = False
        self._in_chunks = False
        self._stays_open = False
        """Whether the node keeps the connection after this answer."""
        self.is_full = False
        """Whether the node takes no more data for the moment."""
        self.is_open = False
        self.idle_since = 0.0
        """When it was last in use, on the event loop's clock."""

    # -- asking ----------------------------------------------------------------------------

    def ask(self, sink: Sink, head: bytes, length: int | None, *, has_answer_body: bool) -> None:
        """Send the head of a request whose body has `length` bytes; None: it goes in chunks."""
        self._sink = sink
        self._parser = httptools.HttpResponseParser(self)
        self.is_answer_whole = False
        self._is_request_whole = length == 0
        self._in_chunks = length is None
        self._has_no_body = not has_answer_body
        self._transport.write(head)

    def send(self, data: bytes) -> None:
        """Send a piece of the body, or of what follows a switch of protocols."""
        self._transport.write(chunk(data) if self._in_chunks else data)

    def end(self) -> None:
        """Note that the body is whole."""
        if self._in_chunks:
            self._transport.write(LAST_CHUNK)
            self._in_chunks = False
        self._is_request_whole = True

    def hang_up(self) -> None:
        """Close the connection once what was sent has gone out."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def let_go(self) -> bool:
        """Give up the exchange; report whether the connection can have another."""
        self._sink = _Idle(self)
        is_reusable = (
            self.is_open
            and self._is_request_whole
            and self.is_answer_whole
            and not self._is_tunnel
            and self._stays_open
        )
        if is_reusable:
            self._transport.resume_reading()
            self.idle_since = asyncio.get_running_loop().time()
        else:
            self._transport.abort()
        return is_reusable

    def hold(self) -> None:
        """Read nothing more for the moment: its client is slow."""
        if self.is_open:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self.is_open:
            self._transport.resume_reading()

    # -- of asyncio ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that it is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange that has it."""
        self.is_open = False
        self._on_gone(self)
        self._sink.on_lost()

    def pause_writing(self) -> None:
        """Note that the node takes no more."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Note that it does."""
        self.is_full = False
        self._sink.on_room()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where the next piece is read."""
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        """Take a piece of an answer that came without TLS."""
        self.take(_READ[:nbytes])

    def take(self, data: memoryview) -> None:
        """Take a piece of an answer, of which no view is kept."""
        if self._is_tunnel:
            self._sink.on_data(bytes(data))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = bytes(data[upgrade.args[0] :])
            if rest:
                self._sink.on_data(rest)
        except httptools.HttpParserError:
            self.abort()

    def eof_received(self) -> bool:
        """Close: what is not framed ends here, and what is framed is not whole."""
        return False

    # -- of the parser ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self._headers = []
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; a trailer is left out."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _HEAD_BYTES:
            self.abort()
            return
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Pass the head on."""
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            return  # such an answer is on the way to another
        self._is_tunnel = status == 101
        self._stays_open = self._parser.should_keep_alive()
        headers, self._headers = self._headers, []  # a stream needs them no longer
        length = length_of(headers)
        has_no_body = self._has_no_body or status in (204, 304) or self._is_tunnel
        if has_no_body:
            length = length if self._has_no_body else 0
        self._sink.on_head(ResponseHead(status, headers, length))
        if self._has_no_body and not self._is_tunnel:
            # The parser waits for a body that an answer to HEAD never has.
            self._sink.on_end()

    def on_body(self, data: bytes) -> None:
        """Pass a piece of the body on."""
        self._sink.on_data(data)

    def on_message_complete(self) -> None:
        """Pass the end on, unless there is none: after a switch, or of an answer on the way."""
        status = self._parser.get_status_code()
        if self._is_tunnel or 100 <= status < 200:
            return
        self.is_answer_whole = True
        self._sink.on_end()
