"""Route of a terminal in a sandbox over a WebSocket: a real pty, a command like any other.

The invariant: output waits for the browser inside the sandbox, not in the server, and the command
gets a hang-up when the WebSocket is gone, also while it reads none of its input; with `detach_s` it
gets that later, and another WebSocket may take the terminal until then.
"""

from __future__ import annotations

import asyncio
import json
import signal as signals
from typing import TYPE_CHECKING

from cellwall.engine.parts.commands import no_terminal
from cellwall.model.errors import Conflict, UsageError
from cellwall.model.ids import node_of
from cellwall.server.commands.following import follow
from cellwall.server.commands.terminal_seat import Client, Seat
from cellwall.server.core.disconnects import cancel_on_disconnect
from cellwall.server.core.request import ClientGone
from cellwall.server.core.websockets import BAD_MESSAGE, Socket, wanted_subprotocol
from cellwall.server.executions.sandboxes import CommandRecord
from cellwall.server.http.endpoint import Answer, Endpoint, command, query_of, sandbox
from cellwall.server.routes.commands import signal_number
from cellwall.server.schemas.requests import AttachQuery, TerminalQuery, Window

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_SHELL = "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"
"""A line for the shell of a template, or of an image, which need not have bash."""
REPLACED = 4001
"""Close code for a client whose terminal another one has attached to."""


async def terminal(request: Request) -> None:
    """`WS /sandboxes/{id}/terminal`."""
    query = query_of(request, TerminalQuery)
    owner = sandbox(request)
    size, line = (query.rows, query.cols), query.command or _SHELL
    made = await owner.sandbox.commands.start(line, pty=size, cwd=query.cwd, user=query.user)
    argv = ["/bin/bash", "-l"] if query.command is None else ["/bin/bash", "-c", query.command]
    spool_bytes, node = request.settings.spool_bytes, node_of(owner.id)
    record = CommandRecord(request.owner, request.request_id, spool_bytes, argv, node)
    record.terminal = Window(rows=query.rows, cols=query.cols)
    record.detach_s = min(query.detach_s, request.settings.detach_s)
    record.seat = Seat(request.state, owner, record, made)
    follow(request.state, owner, record, made, keeps=True)
    client = Client()
    await record.seat.take(client)
    await _serve(request, record, record.seat, client, "started")


async def attach(request: Request) -> None:
    """`WS /sandboxes/{id}/terminal/{command_id}`: the client before, if there is one, is closed."""
    query = query_of(request, AttachQuery)
    record = command(request)
    if record.terminal is None:
        raise no_terminal(record.id)
    if record.seat is None:
        raise Conflict(f"command {record.id}: it has ended", remedy="open another terminal")
    await sandbox(request).sandbox.live.enter()
    if query.rows is not None and query.cols is not None:
        record.terminal = Window(rows=query.rows, cols=query.cols)
    await _serve(request, record, record.seat, Client(), "attached")


async def _serve(
    request: Request, record: CommandRecord, seat: Seat, client: Client, word: str
) -> None:
    """Have this client at the terminal until either ends, or another client comes."""
    socket = Socket(request)
    session = _Session(socket, record, seat)
    try:
        await socket.accept(wanted_subprotocol(request))
        if word == "attached":
            await seat.take(client)
        async with asyncio.timeout(request.settings.socket_s):
            await cancel_on_disconnect(request, session.talk(word, client.replaced))
    except TimeoutError:
        await socket.close(1001, "its whole life is over")
    finally:
        await seat.leave(client)
    if client.replaced.is_set():
        await socket.close(REPLACED, "another client has attached")


class _Session:
    """One terminal and its client."""

    def __init__(self, socket: Socket, record: CommandRecord, seat: Seat) -> None:
        self._socket = socket
        self._record = record
        self._seat = seat
        self._terminal = seat.terminal

    async def talk(self, word: str, replaced: asyncio.Event) -> None:
        """Pass data both ways until either side ends. Raises `ClientGone`."""
        await self._greet(word)
        # Not in the server's task group: their errors are the client's, and end here.
        tasks = [
            asyncio.ensure_future(each) for each in (self._speak(), self._listen(), replaced.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except UsageError as error:
            await self._socket.close(BAD_MESSAGE, error.message)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, word: str) -> None:
        window = self._record.terminal or Window(rows=24, cols=80)
        waits = {"detach_s": self._record.detach_s}
        hello = {"type": word, "command_id": self._record.id, **window.model_dump(), **waits}
        await self._socket.send_json(hello)
        if word == "attached":
            await self._terminal.resize(window.rows, window.cols)
            # The kernel says nothing if the size is the same, and programs are to draw again.
            await self._terminal.kill(signals.SIGWINCH)

    async def _speak(self) -> None:
        try:
            await self._pass_on()
            outcome = (await self._terminal.wait()).outcome.as_json()
            await self._socket.send_json(
                {"type": "end", "verdict": outcome["verdict"], "outcome": outcome}
            )
            await self._socket.close()
        except ClientGone:
            pass

    async def _pass_on(self) -> None:
        """Send output until the end; what was not sent stays for the next client."""
        seat = self._seat
        while True:
            seat.unsent = seat.unsent or await self._terminal.read()
            if not seat.unsent:
                return
            await self._socket.send(seat.unsent)
            seat.unsent = b""

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


_ATTACHED = "It is attached; the client that had it is closed with 4001."
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
    Endpoint(
        "WS",
        "/sandboxes/{sandbox_id}/terminal/{command_id}",
        attach,
        "A terminal that runs",
        {101: Answer(_ATTACHED)},
        query=AttachQuery,
        tags=("commands",),
    ),
)
