"""A container's attached stdio as the one socket that a guest channel wants.

The engine puts an eight-byte header before every piece of output (its API's attach stream); what
we send goes to stdin as it is. Only `GuestChannel` uses it. What the container writes to stderr is
no part of the channel: the last of it is kept to say why a guest did not start.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

_HEADER = struct.Struct(">BxxxI")
_STDOUT = 1
_KEPT_BYTES = 4096


class AttachedSocket:
    """Looks like a socket; see the module."""

    def __init__(self, sock: socket.socket) -> None:
        """Own `sock` from now on."""
        self._sock = sock
        self._head = b""
        self._left = 0
        self._kind = _STDOUT
        self._said = bytearray()

    @property
    def said(self) -> str:
        """The last that came on stderr."""
        return self._said.decode("utf-8", "replace").strip()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """As of a socket."""
        self._sock.setblocking(flag)

    def send(self, data: bytes | memoryview) -> int:
        """Send to stdin what the kernel takes."""
        return self._sock.send(data)

    def sendmsg(self, buffers: Iterable[bytes | memoryview]) -> int:
        """The same for several pieces."""
        return self._sock.sendmsg(buffers)

    def recv_into(self, room: memoryview) -> int:
        """Put bytes of stdout into `room`; 0 at the end. BlockingIOError when there are none now.

        They fit: what is received is at most as long, and headers only make it shorter. One read
        at a time, whatever was in it: a flood of the other kind must not keep the loop here.
        """
        size = 0
        data = self._sock.recv(len(room))
        if not data:
            return 0
        for piece in self._payload(data):
            room[size : size + len(piece)] = piece
            size += len(piece)
        if not size:
            raise BlockingIOError
        return size

    def _payload(self, data: bytes) -> Iterable[bytes]:
        if self._head:
            data, self._head = self._head + data, b""
        position = 0
        while position < len(data):
            if not self._left:
                if len(data) - position < _HEADER.size:
                    self._head = data[position:]
                    return
                self._kind, self._left = _HEADER.unpack_from(data, position)
                position += _HEADER.size
            piece = data[position : position + self._left]
            position += len(piece)
            self._left -= len(piece)
            if self._kind == _STDOUT:
                yield piece
            else:
                self._said += piece
                del self._said[:-_KEPT_BYTES]

    def close(self) -> None:
        """End it: the container's stdin ends, and with it the guest."""
        self._sock.close()

    def detach(self) -> int:
        """Give the descriptor up without ending anything."""
        return self._sock.detach()
