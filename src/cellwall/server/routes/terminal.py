"""A terminal in a sandbox over a WebSocket: a real pty, a command like any other.

The invariant: output waits for the browser (the sandbox's channel is paused meanwhile), and the
command gets a hang-up when the WebSocket is gone.
"""

from __future__ import annotations

import asyncio
import json
import signal as signals
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cellwall.model.errors import CellwallError, UsageError
from cellwall.server.call import ClientGone
from cellwall.server.endpoint import Answer, Endpoint, query_of, sandbox
from cellwall.server.routes.commands import signal_number, started
from cellwall.server.schemas import CommandBody, TerminalQuery, Window
from cellwall.server.sockets import BAD_MESSAGE, Socket, wanted_subprotocol

if TYPE_CHECKING:
    from cellwall.engine.commands import Command
    from cellwall.server.call import Call
    from cellwall.server.sandboxes import CommandRecord

_SHELL = ["/bin/bash", "-l"]


async def terminal(call: Call) -> None:
    """`WS /sandboxes/{id}/terminal`."""
    query = query_of(call, TerminalQuery)
    owner = sandbox(call)
    body = CommandBody(
        argv=_SHELL if query.command is None else ["/bin/bash", "-c", query.command],
        command=None,
        cwd=query.cwd,
        env={"TERM": "xterm-256color"},
        terminal=Window(rows=query.rows, cols=query.cols),
        background=True,
    )
    record = await started(call, owner, body)
    socket = Socket(call)
    try:
        await socket.accept(wanted_subprotocol(call))
        async with asyncio.timeout(call.settings.socket_s):
            await _talk(call, socket, record)
    except TimeoutError:
        await socket.close(1001, "its whole life is over")
    finally:
        if record.command is not None and not record.ended.done():
            await record.command.kill(signals.SIGHUP)


async def _talk(call: Call, socket: Socket, record: CommandRecord) -> None:
    await socket.send_json(
        {
            "type": "started",
            "command_id": record.id,
            **(record.terminal.model_dump() if record.terminal else {}),
        }
    )
    listening = call.state.tasks.spawn(_listen(socket, record))
    try:
        await _send_output(call, socket, record, listening)
        if listening.done():
            listening.result()
    except UsageError as error:
        await socket.close(BAD_MESSAGE, error.message)
    finally:
        listening.cancel()


async def _send_output(
    call: Call, socket: Socket, record: CommandRecord, listening: asyncio.Task[None]
) -> None:
    reader = record.spool.reader(0)
    try:
        while not listening.done():
            for line in reader.take():
                await _send_event(socket, json.loads(line.text))
            reader.passed()
            if reader.is_over:
                await socket.close()
                return
            await asyncio.wait((reader.arrival(), listening), return_when=asyncio.FIRST_COMPLETED)
    finally:
        reader.close()


async def _send_event(socket: Socket, event: dict[str, Any]) -> None:
    if event["type"] == "end":
        await socket.send_json(
            {"type": "end", "verdict": event["verdict"], "outcome": event["outcome"]}
        )
    elif "text" in event:
        await socket.send(str(event["text"]).encode())


async def _listen(socket: Socket, record: CommandRecord) -> None:
    """Take what the client says until it goes; `UsageError` on nonsense."""
    assert record.command is not None  # noqa: S101 - `started` sets it
    try:
        while True:
            message = await socket.receive()
            if isinstance(message, bytes):
                await record.command.send_stdin(message)
            else:
                await _obey(record.command, record, message)
    except (ClientGone, CellwallError) as error:
        if isinstance(error, UsageError):
            raise


async def _obey(command: Command, record: CommandRecord, message: str) -> None:
    try:
        value = json.loads(message)
        kind = value["type"]
        if kind == "input":
            await command.send_stdin(str(value["text"]))
        elif kind == "resize":
            window = Window(rows=value["rows"], cols=value["cols"])
            await command.resize(window.rows, window.cols)
            record.terminal = window
        elif kind == "signal":
            await command.kill(signal_number(value["signal"]))
        else:
            raise UsageError("terminal: an unknown kind of message")
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
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
