"""Stream: what a guest channel needs of its transport, such as a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Stream(Protocol):
    """The part of a socket's interface that a channel uses; `socket.socket` implements it."""

    def fileno(self) -> int:
        """Do what `socket.fileno` does."""

    def setblocking(self, flag: bool, /) -> None:
        """Do what `socket.setblocking` does."""

    def recv_into(self, room: memoryview, /) -> int:
        """Do what `socket.recv_into` does."""

    def send(self, data: bytes | memoryview, /) -> int:
        """Do what `socket.send` does."""

    def sendmsg(self, buffers: Iterable[bytes | memoryview], /) -> int:
        """Do what `socket.sendmsg` does."""

    def close(self) -> None:
        """Do what `socket.close` does."""

    def detach(self) -> int:
        """Do what `socket.detach` does."""
