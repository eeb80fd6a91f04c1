"""Terminals in a sandbox on a server: bytes over a WebSocket.

The engine's `terminals` describes each call. The invariant: an unread terminal stops its program
and never fills this process's memory; losing the connection hangs up, unless `detach_s` was given:
then it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.client.commands import Command
from cellwall.client.connection.transport import Ask
from cellwall.model.errors import CellwallError
from cellwall.model.execution import CommandResult
from cellwall.model.outcome import Outcome, Verdict
from cellwall.model.unicode import utf8
from cellwall.surface.shared.arguments import check_size
from cellwall.wire import asking
from cellwall.wire.reading import outcome_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from cellwall.client.connection.transport import Json
    from cellwall.client.live import RemoteSandboxHandle

WINDOW_BYTES = 256 * 1024
"""Maximum bytes that wait here for their reader."""
_STEP_BYTES = 64 * 1024
_MOST_CELLS = 1000
_REPLACED = 4001
"""Close code of a server whose terminal another client has attached to."""


class Terminal(Command):
    """A command on a terminal: bytes out by `read` or `async for`, bytes in by `write`."""

    def __init__(self, live: RemoteSandboxHandle, facts: Json, socket: ClientConnection) -> None:
        super().__init__(live, facts)
        self._socket = socket
        self._buffer = bytearray()
        self._has_ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self.is_replaced = False
        """Whether another client has attached to it, so that nothing more comes here."""
        self.is_detached = False
        """Whether `detach` was called."""
        self.attaches_again = False
        """Whether it goes on after a lost connection, though some output may be missing then."""
        self._limit: asyncio.TimerHandle | None = None
        self._limit_s: float | None = None
        self._is_supervised = True  # by the pump
        live.transport.tasks.spawn(self._pump())

    # -- what comes ------------------------------------------------------------------------

    async def _pump(self) -> None:
        try:
            outcome = await self._take_all()
            while outcome is None and await self._attach_again():
                outcome = await self._take_all()
            if outcome is None:
                self._stop_reading()
                outcome = outcome_of((await self._ended())["outcome"])
            self._settle(CommandResult("", "", self._judged(outcome)))
        except asyncio.CancelledError:
            self._result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            self._settle(error)
        finally:
            self._has_ended = True
            self._news.set()
            if self._limit is not None:
                self._limit.cancel()
            await self._socket.close()

    async def _take_all(self) -> Outcome | None:
        """Receive messages until the server's last; None if the connection was lost."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            async for message in self._socket:
                if isinstance(message, bytes):
                    await self._put(message)
                else:
                    return outcome_of(json.loads(message)["outcome"])
        return None

    async def _attach_again(self) -> bool:
        """Go on after a lost connection; False if the terminal has ended, or is not ours now."""
        self.is_replaced = self._socket.close_code == _REPLACED
        if self._has_ended or self.is_replaced or not self.attaches_again:
            return False
        with contextlib.suppress(CellwallError):
            # waits for a server that is being restarted
            facts = await self._live.json(Ask("GET", self._path()))
            if facts["status"] == "running":
                path = self._live.path(f"/terminal/{self.id}")
                self._socket = await self._live.transport.socket(path, {})
                await self._socket.recv()
                return True
        return False

    def _stop_reading(self) -> None:
        self._has_ended = True
        self._news.set()
        self._room.set()

    async def _put(self, data: bytes) -> None:
        while len(self._buffer) >= WINDOW_BYTES:
            self._room.clear()
            await self._room.wait()
        if not self._has_ended:
            self._buffer += data
            self._news.set()

    def _judged(self, outcome: Outcome) -> Outcome:
        if self._limit_s is None or outcome.verdict is not Verdict.SIGNALLED:
            return outcome
        note = f"wall time limit of {self._limit_s:g} s; the client killed it"
        return replace(outcome, verdict=Verdict.WALL_TIME, notes=(*outcome.notes, note))

    def limit(self, timeout_s: float) -> None:
        """Kill the command after that time; a lost connection hangs up earlier."""

        def strike() -> None:
            self._limit_s = timeout_s
            self._live.transport.tasks.spawn(self._strike())

        self._limit = asyncio.get_running_loop().call_later(timeout_s, strike)

    async def _strike(self) -> None:
        with contextlib.suppress(CellwallError):  # the command has ended already
            await self.kill()

    # -- for the owner ---------------------------------------------------------------------

    async def read(self, most_bytes: int = WINDOW_BYTES) -> bytes:
        """Return the output since the last read, at least one byte; `b""` after the end."""
        while not self._buffer and not self._has_ended:
            self._news.clear()
            await self._news.wait()
        data = bytes(self._buffer[:most_bytes])
        del self._buffer[:most_bytes]
        self._room.set()
        return data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the output until the command ends."""
        while data := await self.read():
            yield data

    async def write(self, data: str | bytes) -> None:
        """Type `data`; wait while the program reads no input. Ignored after the command's end."""
        raw = utf8(data, "stdin", escapes=True) if isinstance(data, str) else data
        for start in range(0, len(raw), _STEP_BYTES):
            await self._say(raw[start : start + _STEP_BYTES])

    async def send_stdin(self, data: str | bytes) -> None:
        """Do what `write` does."""
        await self.write(data)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size; the kernel tells the program by SIGWINCH."""
        await self._say(json.dumps({"type": "resize", **check_size((rows, cols), _MOST_CELLS)}))

    async def detach(self) -> None:
        """Leave the terminal running, for `commands.attach` within its `detach_s`."""
        self.is_detached = True
        self._stop_reading()
        await self._socket.close()

    async def close(self) -> None:
        """Hang up: kill the terminal's processes and discard unread output."""
        if self.is_running:
            with contextlib.suppress(CellwallError):
                await self.kill()
        self._buffer.clear()
        self._stop_reading()

    def in_background(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` on the terminal without a waiting caller."""
        self._live.transport.tasks.spawn(work)

    async def _say(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(message)


async def opened(
    live: RemoteSandboxHandle,
    command: str | Sequence[str],
    pty: tuple[int, int],
    place: tuple[str | None, str | None],
    env: Mapping[str, str] | None,
    times: tuple[float | None, float | None],
) -> Terminal:
    """Start a command on a terminal; `place` is its directory and its user.

    `times`: seconds after which it is killed, and seconds that it waits without a client. Raises
    UsageError, SandboxUnavailable.
    """
    size = check_size(pty, _MOST_CELLS)
    (cwd, user), (timeout_s, detach_s) = place, times
    params: dict[str, Any] = {
        **size,
        "cwd": cwd,
        "user": user,
        "command": shell_line(command, env or {}),
    }
    if detach_s is not None:  # an older server does not know it
        params["detach_s"] = detach_s
    terminal = await _joined(live, "/terminal", params)
    terminal.attaches_again = detach_s is not None
    if timeout_s is not None:
        terminal.limit(timeout_s)
    return terminal


async def attached(
    live: RemoteSandboxHandle, command_id: str, pty: tuple[int, int] | None
) -> Terminal:
    """Take a terminal that runs; the client that had it is closed. Raises Conflict, NotFound."""
    size = {} if pty is None else check_size(pty, _MOST_CELLS)
    terminal = await _joined(live, f"/terminal/{command_id}", {**size})
    terminal.attaches_again = True
    return terminal


async def _joined(live: RemoteSandboxHandle, path: str, params: dict[str, Any]) -> Terminal:
    socket = await live.transport.socket(live.path(path), params)
    try:
        said = json.loads(await socket.recv())
        facts = await live.json(Ask("GET", f"/commands/{said['command_id']}"))
    except BaseException:
        await socket.close()
        raise
    return Terminal(live, facts, socket)


def shell_line(command: str | Sequence[str], env: Mapping[str, str]) -> str:
    """Return the shell line inside that does what `command` means.

    Terminals over HTTP take a line and no environment, so both are written into the line.
    """
    asking.command(command)
    exports = "".join(f"export {shlex.quote(f'{name}={value}')}; " for name, value in env.items())
    if isinstance(command, str):
        return exports + command
    return f"{exports}exec {shlex.join(command)}"
