"""Ports: connections from the host to servers that listen on the sandbox's own loopback.

`init/main.py` owns the table. Init connects, because it is in the sandbox's network namespace and
the host is not; the bytes on a connection pass unread. Nothing leads out: there is only loopback.

A connection is a `Stream` whose two directions can end one before the other; the end of both, or a
reset, ends the connection. Grants bound the bytes that it holds here, and the number of connections
is bounded, too.
"""

from __future__ import annotations

# The C module under `socket`: the Python class over it makes enum members of every constant.
import _socket
import errno
import json
import os
import struct
from collections.abc import Callable

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.channel.frames import Header
from cellwall.guest.channel.loop import WRITE, Loop
from cellwall.guest.channel.requests import Request
from cellwall.guest.channel.streams import MOST_GRANTED_BYTES, Stream

MOST_CONNECTIONS = 128
_LOOPBACK = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))
_KIND = _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_TABLES = (("/proc/self/net/tcp", _socket.AF_INET), ("/proc/self/net/tcp6", _socket.AF_INET6))
_MOST_TABLE_BYTES = 256 * 1024  # listening sockets come first
_MOST_LISTED = 1000
_LISTENING = "0A"  # TCP_LISTEN of net/tcp_states.h


class Connection:
    """One connection, from the attempt to its end."""

    def __init__(
        self, loop: Loop, channel: Channel, request: Request, on_over: Callable[[], None]
    ) -> None:
        """Nothing is opened before `begin`; `on_over` is called once, at the end."""
        self.id = request.id
        self.port = request.integer("port", low=1, high=65535)
        self._window_bytes = request.integer("window", low=0, high=MOST_GRANTED_BYTES)
        self._loop = loop
        self._channel = channel
        self._on_over = on_over
        self._left_to_try = list(_LOOPBACK)
        self._first_failure: Refusal | None = None
        self._socket: _socket.socket | None = None
        self.feed: Stream | None = None
        self._has_output = True
        self._takes_input = True
        self._is_closing = False

    # -- connecting --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Try the next address; an answer follows in every case."""
        family, host = self._left_to_try.pop(0)
        try:
            self._socket = _socket.socket(family, _KIND)
            code = self._socket.connect_ex((host, self.port))
        except OSError as error:  # no descriptor left, or no such address family here
            self._on_failure(error)
            return
        if code in (0, errno.EINPROGRESS):
            self._loop.watch(self._socket.fileno(), WRITE, self._on_answer)
        else:
            self._on_failure(OSError(code, os.strerror(code)))

    def _on_answer(self, _events: int) -> None:
        sock = self._sock()
        self._loop.forget(sock.fileno())
        code = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if code == errno.ECONNRESET:  # accepted, and broken off before this check
            self._finish(is_reset=True)
            return
        if code:
            self._on_failure(OSError(code, os.strerror(code)))
            return
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        stream = self.feed = Stream(self._loop, self._channel, sock.fileno(), self.id, "data")
        stream.on_end, stream.on_deaf = self._on_end, lambda: self._finish(is_reset=True)
        stream.on_flushed = self._on_flushed
        self._channel.send({"ev": "connected", "id": self.id})
        stream.invite()
        stream.begin_reading(self._window_bytes)

    def _on_failure(self, error: OSError) -> None:
        self._close_socket()
        refusal = self._first_failure = self._first_failure or refusal_from(
            error, f"connect to port {self.port}"
        )
        if self._left_to_try:
            self.begin()
            return
        self._on_over()
        self._channel.send(
            {"ev": "fail", "id": self.id, "code": refusal.code, "message": refusal.message}
        )

    # -- from the host -----------------------------------------------------------------------------

    def end_input(self) -> None:
        """Tell the server that the input ends, once it has what was written."""
        self._takes_input = False
        if self.feed is not None and self.feed.is_flushed:
            self._on_flushed()

    def close(self) -> None:
        """Close once the server has what was written; its further output is not read."""
        self._is_closing = True
        if self.feed is None:
            self._finish(is_reset=True)
            return
        self.feed.stop_reading()
        self.end_input()

    def signal(self, _number: int) -> None:
        """Reset the connection at once."""
        self._finish(is_reset=True)

    def grant(self, count: int) -> None:
        """Let the connection send `count` bytes more."""
        if self.feed is not None:
            self.feed.grant(count)

    def resize(self, rows: int, columns: int) -> None:
        """Do nothing: a connection has no terminal."""

    # -- from the server ---------------------------------------------------------------------------

    def _on_end(self, error: OSError | None) -> None:
        if error is not None:
            self._finish(is_reset=True)
            return
        self._has_output = False
        self._channel.send({"ev": "end", "id": self.id})
        self._finish_if_over()

    def _on_flushed(self) -> None:
        if self._takes_input:
            return
        if self._is_closing:
            self._finish(is_reset=False)
            return
        try:
            self._sock().shutdown(_socket.SHUT_WR)
        except OSError:
            self._finish(is_reset=True)
            return
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if not self._has_output and not self._takes_input and self._is_flushed():
            self._finish(is_reset=False)

    def _is_flushed(self) -> bool:
        return self.feed is None or self.feed.is_flushed

    def _finish(self, is_reset: bool) -> None:
        if self._socket is None:
            return
        if self.feed is not None:
            self.feed.stop()
        else:
            self._loop.forget(self._socket.fileno())
        if is_reset:
            self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _RESET_ON_CLOSE)
        self._close_socket()
        self._on_over()
        self._channel.send({"ev": "closed", "id": self.id, "reset": is_reset})

    def _sock(self) -> _socket.socket:
        assert self._socket is not None  # noqa: S101  for the type checker only
        return self._socket

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Ports:
    """All connections of this sandbox, and the ports on which its processes listen."""

    def __init__(self, loop: Loop, channel: Channel) -> None:
        self._loop = loop
        self._channel = channel
        self._connections: dict[int, Connection] = {}

    def connect(self, request: Request) -> None:
        """Connect to a port; `connected` follows, or a refusal."""
        if len(self._connections) >= MOST_CONNECTIONS:
            raise Refusal("busy", f"connect: {MOST_CONNECTIONS} connections are open; close one")
        number = request.id

        def forget() -> None:
            del self._connections[number]

        connection = Connection(self._loop, self._channel, request, forget)
        self._connections[number] = connection
        connection.begin()

    def job(self, number: int) -> Connection | None:
        """Return the connection of this request."""
        return self._connections.get(number)

    def reset_all(self) -> None:
        """Reset every connection: the host that they lead to is gone."""
        for connection in list(self._connections.values()):
            connection.signal(0)

    def listing(self, _request: Request) -> tuple[Header, bytes]:
        """List every TCP port on which a process listens, as the kernel reports it."""
        found: set[tuple[int, str]] = set()
        for path, family in _TABLES:
            found.update(_listening(path, family))
        entries = [{"port": port, "address": host} for port, host in sorted(found)]
        return {}, json.dumps(entries[:_MOST_LISTED]).encode()


def _listening(path: str, family: int) -> list[tuple[int, str]]:
    found = []
    for line in _table(path).splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENING:
            host, _, port = fields[1].partition(":")
            found.append((int(port, 16), _address(host, family)))
    return found


def _table(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""  # no IPv6 here, or no /proc
    pieces, size = [], 0
    try:
        while size < _MOST_TABLE_BYTES:
            piece = os.read(fd, _MOST_TABLE_BYTES - size)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
    finally:
        os.close(fd)
    # Without the last line, which may be cut in half, if the bound was reached.
    text = b"".join(pieces).decode("ascii", "replace")
    return text if size < _MOST_TABLE_BYTES else text.rpartition("\n")[0]


def _address(text: str, family: int) -> str:
    # Words of 32 bits in the machine's byte order, which is little-endian on all supported
    # machines.
    words = [text[at : at + 8] for at in range(0, len(text), 8)]
    return _socket.inet_ntop(family, b"".join(bytes.fromhex(word)[::-1] for word in words))
