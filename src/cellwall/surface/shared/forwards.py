"""A port of the host's loopback that leads to a port inside a sandbox.

Made by `ports.forward`. Any process of this machine can connect to it; a caller that has to ask for
a key puts a door before `ports.connect` instead. The invariant: bytes wait in windows on both
sides, so neither a slow client nor a slow server makes this process's memory grow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.model.errors import CapacityError, CellwallError, PortError, SandboxUnavailable
from cellwall.surface.shared.closing import AsyncClosing

if TYPE_CHECKING:
    from cellwall.surface.shared.tasks import Tasks

HOST = "127.0.0.1"
_STEP_BYTES = 64 * 1024
_BROKEN_OFF = (PortError, SandboxUnavailable, OSError)


class Connection(Protocol):
    """The operations that a forward needs of a connection to the inside."""

    async def read(self, most_bytes: int = ..., /) -> bytes:
        """Return at least one received byte; `b""` after the last."""

    async def write(self, data: bytes, /) -> None:
        """Send data; wait while the server takes none."""

    async def write_eof(self) -> None:
        """End the sending direction."""

    async def aclose(self) -> None:
        """Close the connection; written bytes still arrive."""

    def abort(self) -> None:
        """Break the connection off."""


class Forward(AsyncClosing):
    """A forwarded port: await it or enter it; it listens until it is closed or its sandbox ends."""

    def __init__(
        self, tasks: Tasks, connect: Callable[[], Awaitable[Connection]], local_port: int
    ) -> None:
        """Nothing listens until the forward is awaited or entered."""
        self._tasks = tasks
        self._connect = connect
        self.port = local_port
        """Port of this machine's loopback; 0 until it listens, if any port will do."""
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def _open(self) -> Forward:
        try:
            server = await asyncio.start_server(self._on_client, HOST, self.port, limit=_STEP_BYTES)
        except OSError as error:
            raise CapacityError(
                f"listen on {HOST}:{self.port}: {error.strerror}",
                retry_after_s=1,
                remedy="choose another port, or 0 for any",
            ) from None
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Return the address to which clients connect."""
        return HOST, self.port

    # -- clients ---------------------------------------------------------------------------

    def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._tasks.spawn(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = await self._connect()
        except (CellwallError, asyncio.CancelledError):
            writer.transport.abort()  # as a machine does on whose port no process listens
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_carry_in(reader, connection))
                both.create_task(_carry_out(connection, writer))
            await connection.aclose()
            writer.close()
        except* _BROKEN_OFF:
            pass
        finally:
            # After a good end these have nothing left to do.
            connection.abort()
            if not writer.is_closing():
                writer.transport.abort()

    # -- end -------------------------------------------------------------------------------

    def stop_listening(self) -> None:
        """Accept no further client; idempotent."""
        if self._server is not None:
            self._server.close()

    async def aclose(self) -> None:
        """Stop listening and break off open connections; idempotent."""
        self.stop_listening()
        for task in self._serving:
            task.cancel()
        while self._serving:
            await asyncio.wait(self._serving)

    def __await__(self) -> Generator[Any, None, Forward]:
        """Listen; the owner closes the forward."""
        return self._open().__await__()

    async def __aenter__(self) -> Forward:
        """Listen."""
        return await self._open()


async def _carry_in(reader: asyncio.StreamReader, connection: Connection) -> None:
    while data := await reader.read(_STEP_BYTES):
        await connection.write(data)
    await connection.write_eof()


async def _carry_out(connection: Connection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read(_STEP_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):  # the client left first
        writer.write_eof()
