"""Ports of a sandbox: connections from the engine to TCP servers on the sandbox's own loopback.

This is not a network: the guest's init connects, inside, and only to loopback; the bytes are frames
of the guest channel (design/0004). Received bytes were written by hostile code. The invariants: an
unread connection buffers at most one window and stops its own server, not other connections; the
number of connections, including those being closed, is bounded.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CapacityError, PortError, SandboxBroken
from cellwall.model.files import ListeningPort
from cellwall.runtimes.channel.replies import CONNECTION, ChannelLost, GuestRefused
from cellwall.runtimes.channel.streams import WINDOW_BYTES, ByteStream
from cellwall.surface.shared.arguments import check_port
from cellwall.surface.shared.closing import AsyncConnecting

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.surface.shared.forwards import Forward
    from cellwall.surface.shared.tasks import Tasks

MOST_CONNECTIONS = 128
"""Maximum number of concurrent connections per sandbox; init has the same bound."""
_CONNECT_S = 10.0
_LINGER_S = 5.0
"""Seconds that a server has to read what was written before a close."""


class Connection(AsyncConnecting):
    """One connection: bytes out by `read` or `async for`, bytes in by `write`."""

    def __init__(
        self, live: ClaimedSandbox, port: int, on_over: Callable[[Connection], None]
    ) -> None:
        """Open the connection. `on_over` is called once, when the guest has released it."""
        self.port = port
        self._live = live
        self._on_over = on_over
        self._stream = ByteStream(live.channel)
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._is_connected = False
        self._is_over = False
        self._is_closed = False
        self._linger: asyncio.TimerHandle | None = None
        fields = {"port": port, "window": WINDOW_BYTES}
        self._stream.number = live.channel.open("port_connect", self, CONNECTION, fields)

    async def wait_opened(self, timeout_s: float) -> None:
        """Wait until the server has accepted. Raises PortError, CapacityError."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._opened
        except GuestRefused as refusal:
            raise _port_error(refusal, self.port) from None
        except ChannelLost:
            raise self._lost() from None
        except TimeoutError:
            self.abort()
            message = f"connect to port {self.port}: no answer within {timeout_s:g} s"
            raise PortError(message, reason="timeout", remedy="see whether it accepts") from None
        except BaseException:
            self.abort()
            raise

    # -- frames ----------------------------------------------------------------------------

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Handle one frame. Data beyond the granted window is a `FrameError`."""
        if kind == "data":
            self._live.touch()
            self._stream.feed(body)
        elif kind == "credit":
            self._stream.credit(int(header["bytes"]))
        elif kind == "end":
            self._stream.end()
        elif kind == "connected":
            self._is_connected = True
            self._settle(None)
        elif kind == "closed":
            self._end(self._reset() if header["reset"] else None)
        elif self._is_connected:  # any other kind after the connect
            self._end(self._reset())
        else:
            self._end(GuestRefused(str(header["code"])[:40], str(header["message"])[:2000]))

    def on_lost(self, error: ChannelLost) -> None:
        """End the connection because the sandbox has ended."""
        self._end(error)

    def _settle(self, error: Exception | None) -> None:
        if self._opened.done():
            return
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)
            self._opened.exception()  # possibly no task waits any more

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._settle(error or self._reset())
        self._stream.end(error)
        self._stream.end_input()
        if self._linger is not None:
            self._linger.cancel()
        self._on_over(self)

    def _reset(self) -> PortError:
        return PortError(f"port {self.port}: the server broke the connection off", reason="reset")

    # -- for the owner ---------------------------------------------------------------------

    async def read(self, most_bytes: int = WINDOW_BYTES) -> bytes:
        """Return the bytes received, at least one; `b""` at the end of the server's output.

        Raises PortError (`reset`), SandboxUnavailable.
        """
        self._check_open()
        try:
            return await self._stream.read(most_bytes)
        except ChannelLost:
            raise self._lost() from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield received bytes until the end of the server's output."""
        while data := await self.read():
            yield data

    async def write(self, data: bytes) -> None:
        """Send `data`; wait while the server reads none. Raises PortError, SandboxUnavailable."""
        self._check_open()
        self._live.knock()
        try:
            is_taken = await self._stream.write(data)
        except ChannelLost:
            raise self._lost() from None
        if not is_taken:
            self._live.check_alive()
            self._check_open()
            raise self._reset()

    async def write_eof(self) -> None:
        """Close the sending direction; reading continues."""
        self._check_open()
        if not self._is_over:
            self._live.knock()
            self._live.channel.send({"op": "stdin_close", "id": self._stream.number})

    async def aclose(self) -> None:
        """Close: bytes already written still arrive, unread bytes are lost. Idempotent."""
        if self._give_up():
            self._live.channel.send({"op": "close", "id": self._stream.number})
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._kill)

    def abort(self) -> None:
        """Abort the connection; the server sees a reset. Idempotent."""
        if self._give_up():
            self._kill()

    def _give_up(self) -> bool:
        if self._is_closed:
            return False
        self._is_closed = True
        self._stream.discard()
        self._stream.end_input()
        return not self._is_over

    def _kill(self) -> None:
        self._live.channel.send({"op": "signal", "id": self._stream.number, "signal": 9})

    def _check_open(self) -> None:
        if self._is_closed:
            raise PortError(f"port {self.port}: this connection was closed", reason="closed")

    def _lost(self) -> Exception:
        self._live.check_alive()
        return self._reset()  # it was hibernated, and this left behind


class Ports:
    """The ports of one sandbox."""

    def __init__(self, live: ClaimedSandbox, tasks: Tasks) -> None:
        self._live = live
        self._tasks = tasks
        self._connections: set[Connection] = set()
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
        await self._live.enter()
        if len(self._connections) >= MOST_CONNECTIONS:
            raise _too_many()
        connection = Connection(self._live, port, self._connections.discard)
        self._connections.add(connection)
        await connection.wait_opened(timeout)
        return connection

    async def list(self) -> list[ListeningPort]:
        """Return the TCP ports with a listening server inside, as reported by the guest."""
        await self._live.enter()
        try:
            reply = await self._live.channel.request("port_list")
            entries: object = self._live.channel.take_apart(reply.body)
            if not isinstance(entries, list):
                raise ValueError("not a list")
            return [ListeningPort.parse(entry) for entry in entries]
        except (ValueError, GuestRefused) as error:
            raise SandboxBroken(f"port_list: {error}", remedy="close the sandbox") from None

    def forward(self, port: int, local_port: int = 0) -> Forward:
        """Return a forwarder from a port of the host's loopback to `port` inside; enter it.

        Every process of the host can connect to the local port. With `local_port` 0 the kernel
        picks a free one.
        """
        from cellwall.surface.shared.forwards import Forward

        check_port(port, lowest=1)
        check_port(local_port, lowest=0)
        self._live.check_alive()
        made = Forward(self._tasks, lambda: self.connect(port), local_port)
        self._forwards.add(made)
        return made

    def stop_listening(self) -> None:
        """Have no local port lead to it any more, because it has ended."""
        for forward in list(self._forwards):
            forward.stop_listening()


def _too_many() -> CapacityError:
    return CapacityError(
        f"connect: {MOST_CONNECTIONS} connections to this sandbox are open",
        retry_after_s=1,
        remedy="close one",
    )


def _port_error(refusal: GuestRefused, port: int) -> Exception:
    if refusal.reason == "refused":
        return PortError(
            f"connect to port {port}: nobody listens inside",
            reason="refused",
            remedy="start the server first; ports.list() shows who listens",
        )
    if refusal.reason == "busy":
        return _too_many()
    message = f"connect to port {port}: the guest failed with {refusal.reason}: {refusal}"
    return SandboxBroken(message, remedy="please file a bug")
