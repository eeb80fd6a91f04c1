"""Route of a terminal in a sandbox over a WebSocket: a real pty, a command like any other.

The invariant: output waits for the browser inside the sandbox, not in the server, and the command
gets a hang-up when the WebSocket is gone, also while it reads none of its input.
"""

from __future__ import annotations

import asyncio
import json
import signal as signals
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.server.core.disconnects import cancel_on_disconnect
from cellwall.server.core.request import ClientGone
from cellwall.server.core.websockets import BAD_MESSAGE, Socket, wanted_subprotocol
from cellwall.server.executions.sandboxes import CommandRecord
from cellwall.server.http.endpoint import Answer, Endpoint, query_of, sandbox
from cellwall.server.routes.commands import follow, signal_number
from cellwall.server.schemas.requests import TerminalQuery, Window

if TYPE_CHECKING:
    from cellwall.engine.parts.terminals import Terminal
    from cellwall.server.core.request import Request

_SHELL = "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"
"""A line for the shell of a template, or of an image, which need not have bash."""


async def terminal(request: Request) -> None:
    """`WS /sandboxes/{id}/terminal`."""
    query = query_of(request, TerminalQuery)
    owner = sandbox(request)
    size, line = (query.rows, query.cols), query.command or _SHELL
    made = await owner.sandbox.commands.start(line, pty=size, cwd=query.cwd, user=query.user)
    argv = ["/bin/bash", "-l"] if query.command is None else ["/bin/bash", "-c", query.command]
    record = CommandRecord(request.owner, request.request_id, request.settings.spool_bytes, argv)
    record.terminal = Window(rows=query.rows, cols=query.cols)
    follow(request, owner, record, made)
    socket = Socket(request)
    try:
        await socket.accept(wanted_subprotocol(request))
        async with asyncio.timeout(request.settings.socket_s):
            await cancel_on_disconnect(request, _Session(socket, record, made).talk())
    except TimeoutError:
        await socket.close(1001, "its whole life is over")
    finally:
        if made.is_running:
            await made.kill(signals.SIGHUP)
        await made.close()


class _Session:
    """One terminal and its client."""

    def __init__(self, socket: Socket, record: CommandRecord, made: Terminal) -> None:
        self._socket = socket
        self._record = record
        self._terminal = made

    async def talk(self) -> None:
        """Pass data both ways until either side ends. Raises `ClientGone`."""
        window = self._record.terminal
        size = {} if window is None else window.model_dump()
        await self._socket.send_json({"type": "started", "command_id": self._record.id, **size})
        # Not in the server's task group: their errors are the client's, and end here.
        speaking = asyncio.ensure_future(self._speak())
        listening = asyncio.ensure_future(self._listen())
        try:
            done, _ = await asyncio.wait((speaking, listening), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except UsageError as error:
            await self._socket.close(BAD_MESSAGE, error.message)
        finally:
            speaking.cancel()
            listening.cancel()
            await asyncio.gather(speaking, listening, return_exceptions=True)

    async def _speak(self) -> None:
        try:
            async for data in self._terminal:
                await self._socket.send(data)
            outcome = (await self._terminal.wait()).outcome.as_json()
            await self._socket.send_json(
                {"type": "end", "verdict": outcome["verdict"], "outcome": outcome}
            )
            await self._socket.close()
        except ClientGone:
            pass

    async def _listen(self) -> None:
        """Take the client's messages until it disconnects; `UsageError` on an invalid one."""
        try:
            while True:
                message = await self._socket.receive()
                if isinstance(message, bytes):
                    await self._terminal.write(message)
                else:
                    await self._obey(message)
        except ClientGone:
            pass

    async def _obey(self, message: str) -> None:
        try:
            value = json.loads(message)
            kind = value["type"]
            if kind == "input":
                await self._terminal.write(str(value["text"]))
            elif kind == "resize":
                window = Window(rows=value["rows"], cols=value["cols"])
                await self._terminal.resize(window.rows, window.cols)
                self._record.terminal = window
            elif kind == "signal":
                await self._terminal.kill(signal_number(value["signal"]))
            else:
                raise UsageError("terminal: an unknown kind of message")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError("terminal: a message that cannot be read") from None


ENDPOINTS = (
    Endpoint(
        "WS",
        "/sandboxes/{sandbox_id}/terminal",
        terminal,
        "A terminal",
        {101: Answer("It is open.")},
        query=TerminalQuery,
        tags=("commands",),
    ),
)
