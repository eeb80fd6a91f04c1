"""A context's side of its connection to init: connect, send, receive, hang up.

Used by context processes only (`context/main.py` and other languages' kernels). It is not the
channel to the host, which a context never sees, and it decides nothing: init judges every frame.

A link must be closed while caller code runs, so that a program sees exactly descriptors 0, 1, 2.
Init may trust nothing that comes from here, because caller code shares this process.
"""

from __future__ import annotations

# The C module under `socket`: the Python class over it makes enum members of every constant, and a
# fork pays for each page that it writes to.
import _socket
import os
import struct

from cellwall.guest.channel import enclosed
from cellwall.guest.channel.frames import (
    LENGTHS,
    MAX_REQUEST_BODY_BYTES,
    MAX_REQUEST_HEADER_BYTES,
    FrameError,
    Header,
    encode,
    parse_header,
)

EXIT_UNSERVED = 75
"""Exit code of a context that got no work; never 0, which would say that it did some."""
_SCM_CREDENTIALS = 2
MSG_CMSG_CLOEXEC = 0x40000000
MOST_FILES = 4
_ROOM_FOR_FILES = _socket.CMSG_SPACE(MOST_FILES * 4)
_LENGTHS_BYTES, _lengths_of = LENGTHS.size, LENGTHS.unpack


class LinkClosed(ConnectionError):
    """Init hung up: the context has no init to work for and has to exit."""


class Link:
    """One context's link to init; at most one connection is open at any time."""

    def __init__(self, address: str, first_fd: int = -1, *, is_named: bool = False) -> None:
        """`address` is init's abstract socket; `first_fd` a connection that is already open.

        `is_named`: send credentials with each new connection, for a kernel that does not report the
        peer.
        """
        self._address = address
        self._is_named = is_named
        self._socket: _socket.socket | None = None
        if first_fd >= 0:
            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, first_fd)

    @property
    def origin(self) -> tuple[str, bool]:
        """Return init's address, and whether connections are named."""
        return self._address, self._is_named

    def another(self) -> Link:
        """Return a second link to the same init, for a thread that waits for an answer."""
        return Link(self._address, is_named=self._is_named)

    @property
    def is_open(self) -> bool:
        """Whether the link holds a descriptor."""
        return self._socket is not None

    def fileno(self) -> int:
        """Return the open connection's descriptor, or -1."""
        return -1 if self._socket is None else self._socket.fileno()

    def connect(self) -> None:
        """Open the connection unless it is open. Raises OSError, e.g. with no descriptor left."""
        if self._socket is not None:
            return
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            sock.connect(self._address)
        except BaseException:
            sock.close()
            raise
        self._socket = sock

    def close(self) -> None:
        """Close the connection; what was sent stays sent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send one frame and open the connection if need be. The connection stays open."""
        self.say(encode(header, body))

    def say(self, frame: bytes) -> None:
        """Send a frame that is already encoded."""
        is_new = self._socket is None
        self.connect()
        assert self._socket is not None  # noqa: S101  for the type checker only
        if is_new and self._is_named:
            frame = frame[self._socket.sendmsg([frame], [_credentials()]) :]
        self._socket.sendall(frame)

    def receive(self) -> tuple[Header, bytes]:
        """Wait for one request."""
        header_length, body_length = _lengths_of(self._read(_LENGTHS_BYTES))
        if header_length > MAX_REQUEST_HEADER_BYTES or body_length > MAX_REQUEST_BODY_BYTES:
            raise FrameError(f"request from init: {header_length} + {body_length} bytes")
        view = memoryview(self._read(header_length + body_length))
        return parse_header(view[:header_length]), bytes(view[header_length:])

    def receive_work(self) -> tuple[Header, bytes, int]:
        """Wait for one request; return its header, its body and its input descriptor (-1: none).

        If the input cannot be had, init knows it, and the returned request is another `idle`.
        Raises OSError if there is no descriptor for input that came with the request.
        """
        header, body = self.receive()
        if header.get("stdin") == "enclosed":
            return (header, *enclosed.take_stdin(header, body))
        if header.get("stdin") != "stream":
            return header, body, -1
        reading = self.take_input()
        return (header if reading >= 0 else {"op": "idle"}), body, reading

    def take_input(self) -> int:
        """Have init open the other end of a new pipe; return this end, or -1 if init does not.

        SECURITY: no descriptor is sent over a socket (SCM_RIGHTS): the kernel counts those in
        flight per host user, and another sandbox of that user could use them all up.
        """
        try:
            reading, writing = os.pipe()
        except OSError as error:
            self.send({"ev": "input", "errno": error.errno})
            self.receive()
            return -1
        try:
            self.send({"ev": "input", "fd": writing})
            header, _ = self.receive()
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        if header.get("op") != "input":
            os.close(reading)
            return -1
        return reading

    def receive_files(self) -> list[int]:
        """Receive the descriptors that init sends behind a request that says so."""
        if self._socket is None:
            raise LinkClosed("link: receive before connect")
        byte, ancillary, _flags, _from = self._socket.recvmsg(1, _ROOM_FOR_FILES, MSG_CMSG_CLOEXEC)
        if not byte:
            raise LinkClosed("link: init hung up")
        return descriptors_in(ancillary)

    def forget(self) -> None:
        """Forget a connection whose descriptor is not this process's."""
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def move(self, address: str, descriptor: int, *, is_named: bool) -> None:
        """Be the link to another init, over a connection that is open; this one's is gone."""
        self.forget()
        self._address, self._is_named = address, is_named
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, descriptor)

    def wait_to_go_on(self) -> None:
        """Close the link and return once the host lets the held program begin; else exit."""
        header: Header = {}
        try:
            header, _body = self.receive()
        finally:
            self.close()
            if header.get("op") != "go":
                os._exit(1)

    def _read(self, size: int) -> bytearray:
        if self._socket is None:
            raise LinkClosed("link: receive before connect")
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise LinkClosed("link: init hung up")
            view = view[got:]
        return data


def descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors of a message, unix(7)."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            found += struct.unpack(f"{len(data) // 4}i", data)
    return found


def _credentials() -> tuple[int, int, bytes]:
    """Return this process's credentials (SCM_CREDENTIALS, unix(7)); others are refused."""
    return (
        _socket.SOL_SOCKET,
        _SCM_CREDENTIALS,
        struct.pack("3i", os.getpid(), os.getuid(), os.getgid()),
    )
