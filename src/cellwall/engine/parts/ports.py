"""Ports of a sandbox: connections from here to TCP servers that listen on its own loopback.

Not a network: init connects, inside, and only to loopback; the bytes are frames of the guest
channel (design/0004). What comes back was written by hostile code. The invariants: an unread
connection costs one window and stops its server, not its neighbours; connections under way,
closing ones included, are bounded.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CapacityError, PortError, SandboxBroken, UsageError
from cellwall.model.files import ListeningPort
from cellwall.runtimes.channel.replies import CONNECTION, ChannelLost, GuestRefused
from cellwall.runtimes.channel.streams import WINDOW_BYTES, ByteStream

if TYPE_CHECKING:
    from types import TracebackType

    from cellwall.engine.attempts.claimed_sandbox import Live
    from cellwall.surface.shared.forwards import Forward
    from cellwall.surface.shared.tasks import Tasks

MOST_CONNECTIONS = 128
"""At once and per sandbox; init has the same bound."""
_CONNECT_S = 10.0
_LINGER_S = 5.0
"""How long a server may take to read what was written before a close."""


class Connection:
    """One connection: bytes out by `read` or `async for`, bytes in by `write`."""

    def __init__(self, live: Live, port: int, on_over: Callable[[Connection], None]) -> None:
        """Made by `Ports.connect`; `on_over` is called once, when the inside has let go of it."""
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
        """Return when the server has accepted. Raises PortError, CapacityError."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._opened
        except GuestRefused as refusal:
            raise _port_error(refusal, self.port) from None
        except ChannelLost as error:
            raise self._lost(error) from None
        except TimeoutError:
            self.abort()
            message = f"connect to port {self.port}: no answer within {timeout_s:g} s"
            raise PortError(message, reason="timeout", remedy="see whether it accepts") from None
        except BaseException:
            self.abort()
            raise

    # -- frames ----------------------------------------------------------------------------

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Take one frame; more than was granted is a `FrameError`."""
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
        elif self._is_connected:  # whatever that means
            self._end(self._reset())
        else:
            self._end(GuestRefused(str(header["code"])[:40], str(header["message"])[:2000]))

    def on_lost(self, error: ChannelLost) -> None:
        """The sandbox is gone."""
        self._end(error)

    def _settle(self, error: Exception | None) -> None:
        if self._opened.done():
            return
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)
            self._opened.exception()  # nobody may be waiting any more

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
        """Return what has come, at least one byte; `b""` after the server's last.

        Raises PortError (`reset`), SandboxUnavailable.
        """
        self._check_open()
        try:
            return await self._stream.read(most_bytes)
        except ChannelLost as error:
            raise self._lost(error) from None

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what comes until the server has said its last."""
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def write(self, data: bytes) -> None:
        """Send `data`; waits while the server takes none. Raises PortError, SandboxUnavailable."""
        self._check_open()
        self._live.touch()
        try:
            is_taken = await self._stream.write(data)
        except ChannelLost as error:
            raise self._lost(error) from None
        if not is_taken:
            self._live.check_alive()
            self._check_open()
            raise self._reset()

    async def write_eof(self) -> None:
        """Say that no more will be written; reading goes on."""
        self._check_open()
        if not self._is_over:
            self._live.channel.send({"op": "stdin_close", "id": self._stream.number})

    async def aclose(self) -> None:
        """Close it: what was written still arrives, what was not read is lost. Idempotent."""
        if self._give_up():
            self._live.channel.send({"op": "close", "id": self._stream.number})
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._kill)

    def abort(self) -> None:
        """Break it off; the server sees a reset. Idempotent."""
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

    def _lost(self, error: ChannelLost) -> Exception:
        self._live.check_alive()
        return error

    async def __aenter__(self) -> Connection:
        """Use it as a context manager that closes it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; after an error, at once."""
        if error is None:
            await self.aclose()
        else:
            self.abort()


class Ports:
    """The ports of one sandbox."""

    def __init__(self, live: Live, tasks: Tasks) -> None:
        """Belongs to one `AsyncSandbox`."""
        self._live = live
        self._tasks = tasks
        self._connections: set[Connection] = set()
        self._forwards: weakref.WeakSet[Forward] = weakref.WeakSet()
        live.channel.on_end(self._stop_listening)

    async def connect(
        self,
        port: int,
        *,
        timeout: float = _CONNECT_S,  # noqa: ASYNC109 - of the connect, as for sockets
    ) -> Connection:
        """Connect to a TCP server that listens on loopback inside.

        `timeout` in seconds. Raises PortError (`refused`, `timeout`), CapacityError.
        """
        check_port(port, lowest=1)
        self._live.check_alive()
        self._live.touch()
        if len(self._connections) >= MOST_CONNECTIONS:
            raise _too_many()
        connection = Connection(self._live, port, self._connections.discard)
        self._connections.add(connection)
        await connection.wait_opened(timeout)
        return connection

    async def list(self) -> list[ListeningPort]:
        """Return the TCP ports that are listened on inside, as the inside says."""
        self._live.check_alive()
        self._live.touch()
        try:
            reply = await self._live.channel.request("port_list")
            entries: object = self._live.channel.take_apart(reply.body)
            if not isinstance(entries, list):
                raise ValueError("not a list")
            return [ListeningPort.parse(entry) for entry in entries]
        except (ValueError, GuestRefused) as error:
            raise SandboxBroken(f"port_list: {error}", remedy="close the sandbox") from None

    def forward(self, port: int, local_port: int = 0) -> Forward:
        """Return a port of this machine's loopback that leads to `port` inside; enter it.

        Every process of this machine can connect to it. 0: the kernel picks a free one.
        """
        from cellwall.surface.shared.forwards import Forward

        check_port(port, lowest=1)
        check_port(local_port, lowest=0)
        self._live.check_alive()
        made = Forward(self._tasks, lambda: self.connect(port), local_port)
        self._forwards.add(made)
        return made

    def _stop_listening(self) -> None:
        for forward in list(self._forwards):
            forward.stop_listening()


def check_port(port: int, *, lowest: int) -> int:
    """Return `port` if it is the number of one."""
    if type(port) is not int or not lowest <= port <= 65_535:
        raise UsageError(f"port: {port!r} is not a port", remedy=f"give {lowest} to 65535")
    return port


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
