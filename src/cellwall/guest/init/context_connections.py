"""Init's side of a context's connections: accept them, read frames from them, and answer.

`contexts.py` uses this module; `init_link.py` is the other end. It checks the framing and the
caller's pid, not what a frame means.

SECURITY: a connection is read only when the kernel says that a context opened it (SO_PEERCRED, or
SCM_CREDENTIALS where a kernel such as gVisor's answers the former with init's own pid). Every frame
on it counts as sent by caller code, because caller code can send it.
"""

from __future__ import annotations

# The C module under `socket`: the Python class over it makes enum members of every constant, and a
# fork pays for each page that it writes to.
import _socket
import errno
import os
import stat
import struct
from collections.abc import Callable

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.frames import Decoder, FrameError, Header, encode
from cellwall.guest.channel.loop import READ, WRITE, Loop
from cellwall.guest.init.context_spawn import listener

_READ_BYTES = 64 * 1024
_PEER = struct.Struct("3i")
_SCM_CREDENTIALS = 2
"""Type of a credentials message, unix(7); not every build of `socket` has a name for it."""
_MOST_ROUNDS = 128
_MOST_UNKNOWN = 16
"""Maximum number of connections whose pid is not yet known; the oldest gives way."""
_ROOM = _socket.CMSG_SPACE(_PEER.size)


class ContextConnection:
    """One accepted connection of a context."""

    def __init__(
        self, loop: Loop, channel: Channel, sock: _socket.socket, first: bytes = b""
    ) -> None:
        """Own an accepted connection; the owner sets the callbacks `on_frame` and `on_broken`.

        `first` holds bytes that were already read from the connection; `drain` processes them, too.
        """
        sock.setblocking(False)
        self._loop = loop
        self._channel = channel
        self._socket = sock
        self._decoder = Decoder()
        self._queue = bytearray()
        self._first = first
        self._events = READ
        self._is_watched = True
        self._is_last = False
        self.is_open = True
        self.error: OSError | None = None
        """The error because of which something could not be sent."""
        self.on_frame: Callable[[ContextConnection, Header, bytes], None] | None = None
        self.on_broken: Callable[[], None] | None = None
        self.on_closed: Callable[[], None] | None = None
        """Called once, whichever side closed the connection."""
        loop.watch(sock.fileno(), READ, self._on_ready)

    @property
    def is_sent(self) -> bool:
        """Whether the kernel has taken everything that was to be sent."""
        return self.error is None and not self._queue

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send a frame to the context. A slow or ended context is no error; see `is_sent`."""
        frame = encode(header, body)
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._give_up(error)
            return
        self._queue += memoryview(frame)[sent:]
        self._update()

    def send_raw(self, data: bytes) -> None:
        """Send bytes that are no frame."""
        self._queue += data
        self._write()

    def send_files(self, files: list[int]) -> None:
        """Send descriptors behind a frame that was sent whole. Raises OSError.

        The kernel counts those that were not received yet, for each user: another sandbox of the
        same one may have used them up (ETOOMANYREFS).
        """
        rights = struct.pack(f"{len(files)}i", *files)
        self._socket.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])

    def _give_up(self, error: OSError) -> None:
        self.error = error
        self.close()

    def close_once_sent(self) -> None:
        """Close the connection once everything is sent, before the context does.

        If the context closed it first, that would wake init in the middle of the context's work, on
        the CPU on which the context works.
        """
        self._is_last = True
        if not self._queue:
            self.close()

    def hear(self) -> None:
        """Process at most one read of what is there: an endless sender must not starve others."""
        self._read()

    def drain(self) -> None:
        """Process what was already sent, without waiting for more."""
        for _ in range(_MOST_ROUNDS):
            if not self._read():
                break

    def close(self) -> None:
        """Close the connection."""
        if self.is_open:
            self.is_open = False
            self._pause()
            self._socket.close()
            if self.on_closed is not None:
                self.on_closed()

    def _on_ready(self, events: int) -> None:
        if events & WRITE:
            self._write()
        if events & ~WRITE and self.is_open:
            if self._channel.is_full:
                self._pause()
                self._channel.wait_for_room(self._resume)
                return
            self._read()

    def _pause(self) -> None:
        self._is_watched = False
        self._loop.forget(self._socket.fileno())

    def _resume(self) -> None:
        if self.is_open and not self._is_watched:
            self._is_watched = True
            self._loop.watch(self._socket.fileno(), self._events, self._on_ready)

    def _read(self) -> bool:
        if not self.is_open:
            return False
        data, self._first = self._first, b""
        try:
            data = data or self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        try:
            for header, body in self._decoder.feed(data):
                if self.on_frame is not None:
                    self.on_frame(self, header, body)
        except FrameError:
            self.close()
            if self.on_broken is not None:
                self.on_broken()
            return False
        return True

    def _write(self) -> None:
        try:
            with memoryview(self._queue) as view:
                sent = self._socket.send(view)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._give_up(error)
            return
        del self._queue[:sent]
        if self._is_last and not self._queue:
            self.close()
            return
        self._update()

    def _update(self) -> None:
        events = READ | (WRITE if self._queue else 0)
        if events != self._events:
            self._events = events
            if self._is_watched:
                self._loop.change(self._socket.fileno(), events)


class ContextListener:
    """The listening socket to which every context of this init connects."""

    def __init__(
        self, loop: Loop, channel: Channel, on_connection: Callable[[int, ContextConnection], None]
    ) -> None:
        """`on_connection` receives each connection with the pid of the process that opened it."""
        self._loop = loop
        self._channel = channel
        self._on_connection = on_connection
        self._unknown: list[_socket.socket] = []
        self.address = ""
        self.are_named = False
        """Whether callers send their credentials (SCM_CREDENTIALS); SO_PEERCRED is no use then."""

    def open(self, made: tuple[_socket.socket, str] | None = None) -> None:
        """Bind and listen before the first fork, because contexts inherit `address`.

        `made` is a socket of `context_spawn.listener` whose address a context already knows.
        """
        self._socket, self.address = listener() if made is None else made
        # The Python class builds its `accept` on this method; the type stubs do not know it.
        self._accept_fd: Callable[[], tuple[int, object]] = self._socket._accept  # type: ignore[attr-defined]

    def watch(self) -> None:
        """Accept connections from now on."""
        self._loop.watch(self._socket.fileno(), READ, self._on_ready)

    def fileno(self) -> int:
        """Return the listening descriptor."""
        return self._socket.fileno()

    def connection(self, fd: int) -> ContextConnection:
        """Take ownership of `fd`, init's end of a socket pair."""
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        return ContextConnection(self._loop, self._channel, sock)

    def drain(self) -> None:
        """Accept all connections that are waiting."""
        for _ in range(_MOST_ROUNDS):
            if not self._accept():
                break

    def _on_ready(self, _events: int) -> None:
        self._accept()

    def _accept(self) -> bool:
        try:
            fd, _address = self._accept_fd()
        except OSError:
            # No connection is waiting, or no descriptor is left: the latter passes when one is
            # closed.
            return False
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        if self.are_named:
            self._await_name(sock)
            return True
        pid = _PEER.unpack(sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER.size))[0]
        self._on_connection(pid, ContextConnection(self._loop, self._channel, sock))
        return True

    def _await_name(self, sock: _socket.socket) -> None:
        """Wait for the first bytes: the kernel has checked the credentials that come with them."""
        sock.setblocking(False)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        self._unknown.append(sock)
        self._loop.watch(sock.fileno(), READ, lambda _events: self._hear_name(sock))
        self._hear_name(sock)  # as a rule the bytes are already there
        if len(self._unknown) > _MOST_UNKNOWN:
            self._let_go(self._unknown[0]).close()

    def _hear_name(self, sock: _socket.socket) -> None:
        try:
            data, ancillary, _flags, _from = sock.recvmsg(_READ_BYTES, _ROOM)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        self._let_go(sock)
        pid = _named(ancillary)
        if not data or pid is None:
            sock.close()
            return
        # Its messages are asked for nothing else: the kernel would drop any descriptors in them.
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 0)
        self._on_connection(pid, ContextConnection(self._loop, self._channel, sock, data))

    def _let_go(self, sock: _socket.socket) -> _socket.socket:
        self._unknown.remove(sock)
        self._loop.forget(sock.fileno())
        return sock


def _named(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Return the sender's pid as the kernel reports it."""
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _SCM_CREDENTIALS) and len(data) == _PEER.size:
            return int(_PEER.unpack(data)[0])
    return None


def open_input(pid: int, number: int) -> int:
    """Open init's end of a pipe that a context has made as descriptor `number`. Raises OSError.

    SECURITY: caller code may have put any file of its own there. It is opened with the rights that
    the context has itself, without side effects and without waiting, and only a pipe is kept. So no
    write by init can block.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(f"/proc/{pid}/fd/{number}", flags)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "the context's input is no pipe")
    return fd
