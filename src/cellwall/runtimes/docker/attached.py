"""Attached socket: a container's attached stdio as the one socket of a guest channel.

Only `GuestChannel` uses it. The Docker engine puts an eight-byte header before every piece of
output (its API's attach stream); sent bytes go to stdin unchanged. The container's stderr is not
part of the channel: its end is kept to report why a guest did not start.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

_HEADER = struct.Struct(">BxxxI")
_STDOUT = 1
_KEPT_BYTES = 4096


class AttachedSocket:
    """Object with a socket's interface; see the module."""

    def __init__(self, sock: socket.socket) -> None:
        """Own `sock` from now on."""
        self._sock = sock
        self._head = b""
        self._left = 0
        self._kind = _STDOUT
        self._said = bytearray()

    @property
    def said(self) -> str:
        """Last bytes of the container's stderr, as text."""
        return self._said.decode("utf-8", "replace").strip()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """Do what `socket.setblocking` does."""
        self._sock.setblocking(flag)

    def send(self, data: bytes | memoryview) -> int:
        """Send to stdin as much as the kernel takes."""
        return self._sock.send(data)

    def sendmsg(self, buffers: Iterable[bytes | memoryview]) -> int:
        """Send several pieces to stdin."""
        return self._sock.sendmsg(buffers)

    def recv_into(self, room: memoryview) -> int:
        """Put bytes of stdout into `room`; 0 at the end. BlockingIOError when there are none now.

        The bytes fit: at most `len(room)` are received, and removing headers only shortens them. It
        reads once, even if that was all stderr: a flood of stderr must not block the loop.
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
        """Close it: the container's stdin ends, and with it the guest."""
        self._sock.close()

    def detach(self) -> int:
        """Release the descriptor without ending anything."""
        return self._sock.detach()
