"""Messages from the context of a sandbox of one program: its connections, and each whole frame.

Runs in the engine process; used by `channel`. The other end is `guest/channel/init_link.py`. The
meaning of a frame is not decided here.

SECURITY: a connection is read only if the kernel says that the context opened it (SO_PEERCRED), and
everything on it counts as said by caller code. At most two connections are read at a time, which
bounds the memory for incomplete frames to two. They are read in turns, each of which is accounted
for (`Hearing`), and a program that has said more than any well-behaved one does is cut off.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cellwall.guest.channel.frames import LENGTHS, MAX_EVENT_BODY_BYTES, parse_header
from cellwall.guest.channel.frames import FrameError as GuestFrameError
from cellwall.guest.channel.loop import READ
from cellwall.runtimes.channel.loop_share import TURN_S, Hearing, timed

if TYPE_CHECKING:
    from cellwall.runtimes.jail.single_program.lazy_loop import LateLoop

_MOST_CONNECTIONS = 2
_MOST_HEADER_BYTES = 4 * 1024
"""Most bytes of a header. A well-behaved context sends less: what it shows is in bodies."""
_MOST_BYTES = 16 * 1024 * 1024
"""Most bytes of one program: displays of 8 MiB, a value, an error, and as much again. A program
that sends more is cut off."""
_LEAST_BYTES = 512
"""Minimum number of bytes that a frame counts for."""
_READ_BYTES = 64 * 1024
_DRAIN_S = 0.005
"""Seconds of the loop's time for reading what was said before an end. If the end can wait, the rest
is read first."""
_PEER = struct.Struct("3i")

OnFrame = Callable[[dict[str, Any], bytes], None]


def _ignore(_header: dict[str, Any], _body: bytes) -> None:
    """Ignore a frame: the channel is closed."""


def _nothing() -> None:
    """Do nothing: the channel is closed."""


class Turn:
    """One uninterrupted stretch of reading from all connections."""

    def __init__(self, most_s: float = TURN_S) -> None:
        """Begin the turn now; it lasts at most `most_s` seconds."""
        self._began = time.thread_time()
        self._apart_s = Hearing.apart_s
        self._until = time.perf_counter() + most_s
        self.frames = 0
        self.nbytes = 0

    @property
    def is_over(self) -> bool:
        """Whether other work is to have the loop."""
        return time.perf_counter() >= self._until

    @property
    def spent_s(self) -> float:
        """Seconds of CPU time spent in this turn."""
        return time.thread_time() - self._began

    @property
    def apart_s(self) -> float:
        """Seconds of that time that large JSON took."""
        return Hearing.apart_s - self._apart_s


class ContextConnection:
    """One connection of the context."""

    def __init__(self, sock: socket.socket) -> None:
        """Own an accepted connection."""
        sock.setblocking(False)
        self._socket = sock
        self._buffer = bytearray()
        self.is_behind = False
        """Whether there may be more than was read."""

    def fileno(self) -> int:
        """The connection's descriptor."""
        return self._socket.fileno()

    def read(self, turn: Turn, on_frame: OnFrame) -> bool:
        """Read what is there, until the turn is over; return False at the end of the connection.

        Raises `GuestFrameError`.
        """
        self.is_behind = False
        while True:
            while frame := self._take():
                turn.frames += 1
                on_frame(*frame)
                if turn.is_over:
                    self.is_behind = True
                    return True
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False  # the engine may have closed it, too
            if not data:
                return False
            turn.nbytes += len(data)
            self._buffer += data

    def _take(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next frame, if all of it is here."""
        buffer = self._buffer
        if len(buffer) < LENGTHS.size:
            return None
        head, body = LENGTHS.unpack_from(buffer)
        if head > _MOST_HEADER_BYTES or body > MAX_EVENT_BODY_BYTES:
            raise GuestFrameError(f"a frame of {head}+{body} bytes is above the cap")
        start = LENGTHS.size + head
        if len(buffer) < start + body:
            return None
        # As lenient as init: metadata that is not valid JSON does not spoil the rest of a display.
        header = timed(parse_header, bytes(buffer[LENGTHS.size : start]))
        content = bytes(buffer[start : start + body])
        del buffer[: start + body]
        return header, content

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def detach(self) -> int:
        """Return the descriptor without closing it; the caller owns it."""
        return self._socket.detach()


class ContextListener:
    """The listener to which a context connects, and its connections."""

    def __init__(
        self,
        loop: LateLoop,
        listener: socket.socket,
        on_frame: OnFrame,
        on_broken: Callable[[], None],
    ) -> None:
        """Own a listener that does not block; nothing is read before `watch` or `drain`."""
        self._loop = loop
        self._listener = listener
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._connections: list[ContextConnection] = []
        self._left_bytes = _MOST_BYTES
        self.context_pid = 0
        """The host's pid of the one process whose connections are read."""

    def watch(self) -> None:
        """Read from the context from now on."""
        self._loop.watch(self._listener.fileno(), READ, self._on_call)

    def drain(self) -> bool:
        """Read from the connections made so far; return False if more is left to read."""
        turn = Turn(_DRAIN_S)
        while True:
            for connection in tuple(self._connections):
                self._hear(connection, turn)
            if turn.is_over or not self._accept(turn):
                break
        self._end_turn(turn)
        return not turn.is_over

    def close(self) -> None:
        """Close all connections and the listener."""
        for connection in tuple(self._connections):
            self._drop(connection)
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        # Both are methods of the object that owns this one. As a reference cycle all of it would
        # wait for the garbage collector.
        self._on_frame, self._on_broken = _ignore, _nothing

    def abandon(self) -> None:
        """Close the descriptors in a forked child, and leave the loop alone."""
        for fd in (
            *(connection.detach() for connection in self._connections),
            self._listener.detach(),
        ):
            if fd >= 0:  # otherwise it was cut off
                os.close(fd)
        self._connections.clear()

    def _on_call(self, _events: int) -> None:
        turn = Turn()
        self._accept(turn)
        self._end_turn(turn)

    def _accept(self, turn: Turn) -> bool:
        for earlier in tuple(self._connections):
            self._hear(earlier, turn)  # what was said before must not be read after
        if turn.is_over:
            return False
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return False  # no connection waits, or no descriptor is left, which passes
        turn.frames += 1
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[0] != self.context_pid:
            sock.close()
            return True
        while len(self._connections) >= _MOST_CONNECTIONS:
            self._drop(self._connections[0])
        connection = ContextConnection(sock)
        self._connections.append(connection)
        self._loop.watch(connection.fileno(), READ, lambda _events: self._on_readable(connection))
        self._hear(connection, turn)  # data is there already, as a rule
        return True

    def _on_readable(self, connection: ContextConnection) -> None:
        turn = Turn()
        self._hear(connection, turn)
        self._end_turn(turn)

    def _hear(self, connection: ContextConnection, turn: Turn) -> None:
        if connection not in self._connections:
            return
        try:
            is_open = connection.read(turn, self._said)
        except GuestFrameError:
            self._drop(connection)
            self._on_broken()
            return
        if not is_open:
            self._drop(connection)
        elif connection.is_behind:
            self._loop.come_back(connection.fileno())

    def _said(self, header: dict[str, Any], body: bytes) -> None:
        self._left_bytes -= max(_LEAST_BYTES, len(body))
        if self._left_bytes < 0:
            self.close()  # nothing that the context says could count any more
        else:
            self._on_frame(header, body)

    def _end_turn(self, turn: Turn) -> None:
        if turn.frames or turn.nbytes:
            self._loop.spend(turn.spent_s, turn.frames, turn.nbytes, turn.apart_s)

    def _drop(self, connection: ContextConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._loop.forget(connection.fileno())
            connection.close()
