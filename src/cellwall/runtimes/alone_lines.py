"""What the context of a sandbox of one program says: who calls, and each whole frame.

Used by `alone_channel`; the other end is `guest/link.py`. Not what a frame means.

SECURITY: a connection is heard only when the kernel says that the context opened it (SO_PEERCRED),
and whatever it says counts as said by caller code. Two connections at once are read, so that what
is held here of frames that never end is two of them.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from cellwall.guest.frames import (
    LENGTHS,
    MAX_EVENT_BODY_BYTES,
    MAX_EVENT_HEADER_BYTES,
    parse_header,
)
from cellwall.guest.frames import FrameError as GuestFrameError
from cellwall.guest.loop import READ
from cellwall.runtimes.late_loop import LateLoop

_MOST_LINES = 2
_MOST_ROUNDS = 128
"""Connections, or pieces of one, that are taken in at once."""
_READ_BYTES = 64 * 1024
_PEER = struct.Struct("3i")

OnFrame = Callable[[dict[str, Any], bytes], None]


def _ignore(_header: dict[str, Any], _body: bytes) -> None:
    """Nobody listens any more."""


def _nothing() -> None:
    """Nobody is to be told."""


class Line:
    """One connection of the context."""

    def __init__(self, sock: socket.socket) -> None:
        """Own an accepted connection."""
        sock.setblocking(False)
        self._socket = sock
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._socket.fileno()

    def read(self, on_frame: OnFrame) -> bool:
        """Take in what is there; False at its end. Raises `GuestFrameError`."""
        for _ in range(_MOST_ROUNDS):
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._buffer += data
            self._take(on_frame)
        return True

    def _take(self, on_frame: OnFrame) -> None:
        buffer = self._buffer
        while len(buffer) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(buffer)
            if head > MAX_EVENT_HEADER_BYTES or body > MAX_EVENT_BODY_BYTES:
                raise GuestFrameError(f"a frame of {head}+{body} bytes is above the cap")
            start = LENGTHS.size + head
            if len(buffer) < start + body:
                return
            # Lenient as init: metadata that no JSON can carry costs a display nothing else.
            header = parse_header(bytes(buffer[LENGTHS.size : start]))
            content = bytes(buffer[start : start + body])
            del buffer[: start + body]
            on_frame(header, content)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def detach(self) -> int:
        """Give the descriptor up, unclosed."""
        return self._socket.detach()


class Lines:
    """The listener that a context calls, and its connections."""

    def __init__(
        self,
        loop: LateLoop,
        listener: socket.socket,
        on_frame: OnFrame,
        on_broken: Callable[[], None],
    ) -> None:
        """Own a listener that does not block; nobody is heard before `watch` or `drain`."""
        self._loop = loop
        self._listener = listener
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._lines: list[Line] = []
        self.context_pid = 0
        """The one process that is heard; the host's number."""

    def watch(self) -> None:
        """Hear the context from now on."""
        self._loop.watch(self._listener.fileno(), READ, self._on_call)

    def drain(self) -> None:
        """Hear whoever called already."""
        for _ in range(_MOST_ROUNDS):
            if not self._accept():
                break
        for line in tuple(self._lines):
            self._hear(line)

    def close(self) -> None:
        """Hang up and hear nobody."""
        for line in tuple(self._lines):
            self._drop(line)
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        # They are methods of who has us: in a circle, all of it would wait for the collector.
        self._on_frame, self._on_broken = _ignore, _nothing

    def abandon(self) -> None:
        """In a forked child: close the descriptors, tell no loop."""
        for fd in (*(line.detach() for line in self._lines), self._listener.detach()):
            os.close(fd)
        self._lines.clear()

    def _on_call(self, _events: int) -> None:
        self._accept()

    def _accept(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return False  # nobody there, or no descriptor left, which passes
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[0] != self.context_pid:
            connection.close()
            return True
        for earlier in tuple(self._lines):
            self._hear(earlier)  # what was said before must not be heard after
        while len(self._lines) >= _MOST_LINES:
            self._drop(self._lines[0])
        line = Line(connection)
        self._lines.append(line)
        self._loop.watch(line.fileno(), READ, lambda _events: self._hear(line))
        self._hear(line)  # it is there already, as a rule
        return True

    def _hear(self, line: Line) -> None:
        if line not in self._lines:
            return
        try:
            is_open = line.read(self._on_frame)
        except GuestFrameError:
            self._drop(line)
            self._on_broken()
            return
        if not is_open:
            self._drop(line)

    def _drop(self, line: Line) -> None:
        if line in self._lines:
            self._lines.remove(line)
            self._loop.forget(line.fileno())
            line.close()
