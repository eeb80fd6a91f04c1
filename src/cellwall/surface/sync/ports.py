"""The ports of a synchronous sandbox; the asynchronous `ports` say what each call does.

A connection looks like a socket as far as a conversation needs one: `recv`, `sendall`, `shutdown`.
Programs that want a real one connect to a `forward`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cellwall.surface.shared.closing import Closing
from cellwall.surface.sync.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellwall.model.files import ListeningPort
    from cellwall.surface.shared.forwards import Connection, Forward
    from cellwall.surface.sync.loop_thread import LoopThread
    from cellwall.surface.sync.protocols import AnySandbox


class SyncConnection(Closing, Part):
    """One connection to a server inside."""

    def __init__(
        self, thread: LoopThread[Any], sandbox: AnySandbox, connection: Connection
    ) -> None:
        """`SyncPorts.connect` makes this object."""
        super().__init__(thread, sandbox)
        self._connection = connection

    def recv(self, most_bytes: int = 65_536) -> bytes:
        """Return at least one received byte; `b""` after the server's last."""
        return self._do(lambda: self._connection.read(most_bytes))

    def __iter__(self) -> Iterator[bytes]:
        """Yield received bytes until the server ends its output."""
        while data := self.recv():
            yield data

    def sendall(self, data: bytes) -> None:
        """Send `data`; wait while the server takes none."""
        self._do(lambda: self._connection.write(data))

    def shutdown(self) -> None:
        """End the sending direction; receiving goes on."""
        self._do(self._connection.write_eof)

    def close(self) -> None:
        """Close the connection: sent bytes still arrive, bytes not yet received are lost."""
        self._do(self._connection.aclose)

    def abort(self) -> None:
        """Break the connection off; the server sees a reset."""

        async def work() -> None:
            self._connection.abort()

        self._do(work)


class SyncPorts(Part):
    """The ports of one sandbox."""

    def connect(self, port: int, *, timeout: float = 10.0) -> SyncConnection:
        """Connect to a TCP server that listens on loopback inside."""
        connection = self._do(lambda: self._inner.ports.connect(port, timeout=timeout))
        return SyncConnection(self._thread, self._inner, connection)

    def list(self) -> list[ListeningPort]:
        """Return the TCP ports on which processes inside listen, as the sandbox reports them."""
        return self._do(self._inner.ports.list)

    @contextmanager
    def forward(self, port: int, local_port: int = 0) -> Iterator[Forward]:
        """Listen on this machine's loopback; clients that connect there reach `port` inside.

        `as` gives an object with `port` and `address`. Every process of this machine can connect.
        """
        forward = self._do(lambda: _opened(self._inner, port, local_port))
        try:
            yield forward
        finally:
            self._do(forward.aclose)


async def _opened(sandbox: AnySandbox, port: int, local_port: int) -> Forward:
    return await sandbox.ports.forward(port, local_port)
