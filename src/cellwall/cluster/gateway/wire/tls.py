"""TLS of one connection to a node: between its socket and what speaks HTTP on it.

Made by `links`. All of TLS is OpenSSL's, as `ssl` has it over memory; here is when it is called.
The event loop's own keeps twice as much for each connection, and as much as was once on its way; a
gateway has thousands that say little. The invariants: no byte of a request goes out before the
node's certificate was checked; what was read is taken before another connection reads; a connection
that goes wrong ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from cellwall.cluster.gateway.wire.node_link import NodeLink

_READ = memoryview(bytearray(256 * 1024))
"""Where every connection reads what is encrypted."""
_PLAIN = memoryview(bytearray(320 * 1024))
"""Where what one of them has read is put together again; more than what is read at once."""
_PIECE_BYTES = 16 * 1024
"""About a record of TLS. OpenSSL keeps a buffer as large as the largest piece that it was given."""


class Tls(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and itself the transport of a `NodeLink`."""

    __slots__ = (
        "_has_ended", "_incoming", "_is_made", "_link", "_object", "_outgoing", "_transport",
        "opened",
    )  # fmt: skip

    def __init__(self, link: NodeLink, context: ssl.SSLContext, server_name: str) -> None:
        """`server_name`: what the node's certificate has to be for."""
        super().__init__()
        self._link = link
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._transport = cast(asyncio.Transport, None)
        self._is_made = self._has_ended = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the link may be used; it has the error if there can be none."""

    # -- the link's transport --------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data; nothing is sent on a connection that ends."""
        if self._transport.is_closing():
            return
        view = memoryview(data)
        try:
            while view:
                view = view[self._object.write(view[:_PIECE_BYTES]) :]
                self._flush()
        except ssl.SSLError:
            self.abort()

    def close(self) -> None:
        """Say the end, and close once everything is sent."""
        with contextlib.suppress(ssl.SSLError):  # the node has not said its end
            self._object.unwrap()
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Report whether it ends."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read nothing more for the moment."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how much may wait to be sent."""
        self._transport.set_write_buffer_limits(high, low)

    # -- the socket's protocol -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._shake_hands()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the link, or what waits for it."""
        if self._is_made:
            self._link.connection_lost(exc)
        else:
            self._fail(exc or ConnectionResetError("it ended the connection"))

    def pause_writing(self) -> None:
        """Have the link wait."""
        if self._is_made:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        """Have it go on."""
        if self._is_made:
            self._link.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next piece is read."""
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read, and give the link all that it says."""
        filled = 0
        try:
            for at in range(0, nbytes, _PIECE_BYTES):
                self._incoming.write(_READ[at : min(nbytes, at + _PIECE_BYTES)])
                if self._is_made or self._shake_hands():
                    filled = self._decrypt(filled)
            self._give(filled)
        except ssl.SSLError:
            self.abort()

    # -- TLS -------------------------------------------------------------------------------

    def _shake_hands(self) -> bool:
        """Go on with the handshake; report whether it is done."""
        if self._transport.is_closing():
            return False
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # it tells the node why
            self._fail(error)
            self._transport.close()
            return False
        self._flush()
        if self.opened.done():  # nothing waits for it any more
            self.abort()
            return False
        self._is_made = True
        self._link.connection_made(self)
        self.opened.set_result(None)
        return True

    def _fail(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)

    def _decrypt(self, filled: int) -> int:
        """Put what can be read behind what was; return how much there is. Raises ssl.SSLError."""
        while self._incoming.pending or self._object.pending():
            if filled == len(_PLAIN):
                self._link.take(_PLAIN)
                filled = 0
            try:
                size = self._object.read(len(_PLAIN) - filled, _PLAIN[filled:])
            except ssl.SSLWantReadError:  # a part of a record
                break
            if not size:
                self._has_ended = True
                break
            filled += cast(int, size)
        return filled

    def _give(self, filled: int) -> None:
        if filled:
            self._link.take(_PLAIN[:filled])
        if self._has_ended:
            self.close()
            return
        if self._is_made and not (self._link.is_answer_whole or self._transport.is_closing()):
            # A look that finds nothing: by it OpenSSL gives its buffer of a record back. After the
            # end of an answer that would cost more than it is worth.
            with contextlib.suppress(ssl.SSLWantReadError):
                if self._object.read(1):  # a byte that would be missing
                    self.abort()
        self._flush()  # what TLS itself has to say

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())
