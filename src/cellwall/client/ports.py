"""Ports of a sandbox on a server: connections from the client to TCP servers inside.

The engine's `ports` describes each call; `relay` defines how bytes travel. The invariant: an unread
connection buffers one window here and stops its server inside.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import ipaddress
import struct
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cellwall.client import relay
from cellwall.client.terminals import Terminal, opened
from cellwall.model.errors import CapacityError, PortError, SandboxUnavailable
from cellwall.model.files import ListeningPort
from cellwall.surface.shared.arguments import check_port
from cellwall.surface.shared.closing import AsyncConnecting

if TYPE_CHECKING:
    from cellwall.client.live import RemoteSandboxHandle
    from cellwall.surface.shared.forwards import Forward

MOST_CONNECTIONS = 128
_CONNECT_S = 10.0
_START_S = 20.0
"""Seconds for the relay program inside to start, in addition to the connect itself."""
_LINGER_S = 5.0
_STEP_BYTES = 64 * 1024
_SIZE = (24, 80)
_LISTENING = "0A"  # TCP_LISTEN of net/tcp_states.h
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


class Connection(AsyncConnecting):
    """One connection: bytes out by `read` or `async for`, bytes in by `write`."""

    def __init__(self, port: int, terminal: Terminal) -> None:
        self.port = port
        self._terminal = terminal
        self._frames = relay.Frames()
        self._ready: list[tuple[bytes, bytes]] = []
        self._buffer = bytearray()
        self._end: PortError | None = None
        self._has_ended = False
        self._is_closed = False
        self._reading = asyncio.Lock()

    async def wait_opened(self, timeout_s: float) -> None:
        """Wait until the server inside has accepted. Raises PortError."""
        try:
            async with asyncio.timeout(timeout_s + _START_S):
                kind = (await self._next())[0]
        except TimeoutError:
            kind = b"T"
        if kind == b"T":
            message = f"connect to port {self.port}: no answer within {timeout_s:g} s"
            raise PortError(message, reason="timeout", remedy="see whether it accepts")
        if kind != b"C":
            raise PortError(
                f"connect to port {self.port}: nobody listens inside",
                reason="refused",
                remedy="start the server first; ports.list() shows who listens",
            )

    async def _next(self) -> tuple[bytes, bytes]:
        while not self._ready:
            data = await self._terminal.read(_STEP_BYTES)
            if not data:
                return b"X", b""
            self._ready = self._frames.feed(data)
        return self._ready.pop(0)

    async def read(self, most_bytes: int = 262_144) -> bytes:
        """Return the bytes received, at least one; `b""` at the end of the server's output.

        Raises PortError (`reset`).
        """
        self._check_open()
        async with self._reading:
            while not self._buffer and not self._has_ended:
                kind, data = await self._next()
                if self._is_closed:
                    break
                self._buffer += data
                self._has_ended = kind != b"D"
                self._end = self._reset() if kind == b"X" else None
            self._check_open()
            if not self._buffer and self._end is not None:
                raise self._end
            found = bytes(self._buffer[:most_bytes])
            del self._buffer[:most_bytes]
            return found

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield received bytes until the end of the server's output."""
        while data := await self.read():
            yield data

    async def write(self, data: bytes) -> None:
        """Send `data`; wait while the server reads none. Raises PortError."""
        self._check_open()
        for start in range(0, len(data), relay.DATA_BYTES):
            if not self._terminal.is_running:
                raise self._reset()
            step = bytes(data[start : start + relay.DATA_BYTES])
            await self._terminal.write(relay.frame(b"D", step))

    async def write_eof(self) -> None:
        """Close the sending direction; reading continues."""
        self._check_open()
        await self._terminal.write(relay.frame(b"E"))

    async def aclose(self) -> None:
        """Close: bytes already written still arrive, unread bytes are lost. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._terminal.write(relay.frame(b"E"))
        self._terminal.in_background(self._linger())

    async def _linger(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while await self._terminal.read():
                    pass
        await self._terminal.close()

    def abort(self) -> None:
        """Abort the connection; the server sees a reset. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._terminal.in_background(self._break_off())

    async def _break_off(self) -> None:
        await self._terminal.write(relay.frame(b"X"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while await self._terminal.read():
                    pass
        await self._terminal.close()

    def _reset(self) -> PortError:
        return PortError(f"port {self.port}: the server broke the connection off", reason="reset")

    def _check_open(self) -> None:
        if self._is_closed:
            raise PortError(f"port {self.port}: this connection was closed", reason="closed")

    @property
    def is_over(self) -> bool:
        """Whether nothing of the connection is left inside."""
        return not self._terminal.is_running


class Ports:
    """The ports of one sandbox."""

    def __init__(self, live: RemoteSandboxHandle) -> None:
        self._live = live
        self._connections: list[Connection] = []
        self._forwards: weakref.WeakSet[Forward] = weakref.WeakSet()

    async def connect(
        self,
        port: int,
        *,
        timeout: float = _CONNECT_S,  # noqa: ASYNC109 - of the connect, as for sockets
    ) -> Connection:
        """Connect to a TCP server that listens on the sandbox's loopback.

        `timeout` in seconds. Raises PortError (`refused`, `timeout`), CapacityError.
        """
        check_port(port, lowest=1)
        self._connections = [each for each in self._connections if not each.is_over]
        if len(self._connections) >= MOST_CONNECTIONS:
            raise CapacityError(
                f"connect: {MOST_CONNECTIONS} connections to this sandbox are open",
                retry_after_s=1,
                remedy="close one",
            )
        try:
            line = relay.command(port, timeout)
            terminal = await opened(self._live, line, _SIZE, (None, None), None, (None, None))
        except SandboxUnavailable:
            self._live.ended()
            self._stop_listening()
            raise
        connection = Connection(port, terminal)
        self._connections.append(connection)
        try:
            await connection.wait_opened(timeout)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def list(self) -> builtins.list[ListeningPort]:
        """Return the TCP ports with a listening server inside, as its /proc reports them."""
        from cellwall.client.files import Files
        from cellwall.model.errors import FileError

        files, found = Files(self._live), []
        for table in _TABLES:
            with contextlib.suppress(FileError):  # no IPv6 there
                found += listening(await files.read(table))
        return found

    def forward(self, port: int, local_port: int = 0) -> Forward:
        """Return a forwarder from a port of this host's loopback to `port` inside; enter it.

        Every process of this host can connect to the local port. With `local_port` 0 the kernel
        picks a free one.
        """
        from cellwall.surface.shared.forwards import Forward

        check_port(port, lowest=1)
        check_port(local_port, lowest=0)
        made = Forward(self._live.transport.tasks, lambda: self.connect(port), local_port)
        self._forwards.add(made)
        return made

    def _stop_listening(self) -> None:
        for forward in list(self._forwards):
            forward.stop_listening()


def listening(table: str) -> builtins.list[ListeningPort]:
    """Return the listening sockets in the text of a `/proc/net/tcp`; hostile lines are left out."""
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENING:
            with contextlib.suppress(ValueError, struct.error):
                found.append(_listener(fields[1]))
    return found


def _listener(local: str) -> ListeningPort:
    address, _, port = local.partition(":")
    words = struct.unpack(f"<{len(address) // 8}I", bytes.fromhex(address))
    packed = struct.pack(f">{len(words)}I", *words)
    return ListeningPort.parse(
        {"port": int(port, 16), "address": str(ipaddress.ip_address(packed))}
    )
