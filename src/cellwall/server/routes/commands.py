"""Routes of commands: started, listed, fed, signalled, read again after a lost connection.

Terminals over WebSockets are in `terminal`, which starts commands too.
"""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import UsageError
from cellwall.model.ids import node_of
from cellwall.server.commands.following import follow
from cellwall.server.core.request import ClientGone
from cellwall.server.executions.idempotency import gone
from cellwall.server.executions.sandboxes import CommandRecord
from cellwall.server.http.endpoint import (
    Answer,
    Endpoint,
    body_of,
    command,
    query_of,
    sandbox,
    wait_ended,
)
from cellwall.server.routes.execute import leaving, raise_failure
from cellwall.server.schemas import decode, responses
from cellwall.server.schemas.requests import (
    AfterQuery,
    CommandBody,
    SignalBody,
    StdinQuery,
    WaitQuery,
)
from cellwall.server.streaming.streams import MEDIA, chosen, resume_from, send_spool

if TYPE_CHECKING:
    from cellwall.engine.parts.commands import Command
    from cellwall.server.core.request import Request
    from cellwall.server.executions.sandboxes import SandboxRecord


_SHOWN_CHARS = 100_000


async def index(request: Request) -> None:
    """`GET /sandboxes/{id}/commands`."""
    commands = sandbox(request).commands.values()
    await request.answer({"commands": [_without_output(record) for record in commands]})


def _without_output(record: CommandRecord) -> dict[str, Any]:
    return {**record.as_json(), "stdout": None, "stderr": None}


async def start(request: Request) -> None:
    """`POST /sandboxes/{id}/commands`."""
    form = chosen(request, ("ndjson", "json", "sse"))
    body = await body_of(request, CommandBody, request.settings.body_bytes)
    async with request.state.replays.using(request, "command") as use:
        is_replay = use is not None and use.thing_id is not None
        if use is not None and use.thing_id is not None:
            record = _again(sandbox(request), use.thing_id)
        else:
            record = await started(request, sandbox(request), body)
            if use is not None:
                use.made(record.id)
    headers = {"x-command-id": record.id}
    if is_replay:
        headers["idempotent-replay"] = "true"
    if body.background:
        await request.answer(record.as_json(), 201, headers)
        return
    try:
        if form == "json":
            await request.wait(record.ended)
            raise_failure(record)
            await request.answer(record.as_json(), headers=headers)
        else:
            await send_spool(request, record.spool, form, 0, headers)
    except ClientGone:
        if leaving(request, body.on_disconnect, "detach") == "cancel" and not is_replay:
            record.cancel()
        raise


def _again(owner: SandboxRecord, command_id: str) -> CommandRecord:
    """Return the command that an earlier request with the same key started."""
    if command_id not in owner.commands:
        raise gone()
    return owner.commands[command_id]


async def started(request: Request, owner: SandboxRecord, body: CommandBody) -> CommandRecord:
    """Start a command and return its record; `NotFound` if there is no such program."""
    timeout, _ = decode.clipped_seconds(body.timeout, request.settings.most.life_s)
    if timeout is None and not body.background:
        timeout = owner.sandbox.limits.wall_s
    stdin = decode.stdin(body)
    asked_for = body.command or body.argv or []
    shown = ["/bin/bash", "-c", _short(body.command)] if body.command else body.argv or []
    spool_bytes, node = request.settings.spool_bytes, node_of(owner.id)
    record = CommandRecord(request.owner, request.request_id, spool_bytes, shown, node)
    made = await owner.sandbox.commands.start(
        asked_for,
        cwd=body.cwd,
        env=body.env,
        user=body.user,
        timeout=timeout,
        merge_stderr=body.merge_stderr,
        on_event=record.spool.append,
    )
    follow(request.state, owner, record, made, keeps=body.background)
    if stdin is not None:
        await made.send_stdin(stdin)
    if stdin is not None or not body.background:
        await made.close_stdin()
    return record


def _short(script: str) -> str:
    """Return a script for lists; one too long for an argument is cut, so that it is not kept."""
    if len(script) <= _SHOWN_CHARS:
        return script
    return f"{script[:1000]}… ({len(script)} characters)"


async def get(request: Request) -> None:
    """`GET /sandboxes/{id}/commands/{cid}`."""
    query = query_of(request, WaitQuery)
    record = command(request)
    await wait_ended(request, record, query.wait)
    await request.answer(record.as_json())


async def events(request: Request) -> None:
    """`GET /sandboxes/{id}/commands/{cid}/events`."""
    form = chosen(request, ("ndjson", "sse"))
    after = resume_from(request, query_of(request, AfterQuery).after)
    record = command(request)
    await send_spool(request, record.spool, form, after, {"x-command-id": record.id})


async def stdin(request: Request) -> None:
    """`POST /sandboxes/{id}/commands/{cid}/stdin`."""
    query = query_of(request, StdinQuery)
    made = _running(command(request))
    written = 0
    async for piece in request.pieces(request.settings.body_bytes):
        await made.send_stdin(piece)
        written += len(piece)
    if query.close:
        await made.close_stdin()
    await request.answer({"written": written})


async def signal(request: Request) -> None:
    """`POST /sandboxes/{id}/commands/{cid}/signal`."""
    body = await body_of(request, SignalBody)
    record = command(request)
    number = signal_number(body.signal)
    if not record.ended.done():
        await _running(record).kill(number)
    await request.answer({"message": f"signal {number} sent", "id": record.id})


def signal_number(wanted: int | str) -> int:
    """Return a signal's number; `UsageError` for an unknown name."""
    if isinstance(wanted, int):
        return wanted
    name = wanted if wanted.startswith("SIG") else f"SIG{wanted}"
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise UsageError(f"signal: {wanted!r} is none", remedy="say TERM, INT, KILL…") from None


async def kill(request: Request) -> None:
    """`DELETE /sandboxes/{id}/commands/{cid}`."""
    record = command(request)
    has_ended = record.ended.done()
    record.cancel()
    await request.answer({"message": "it had ended" if has_ended else "killed", "id": record.id})


def _running(record: CommandRecord) -> Command:
    if record.command is None or record.ended.done():
        from cellwall.model.errors import Conflict

        raise Conflict(f"command {record.id}: it has ended", remedy="start another")
    return record.command


_ONE = "/sandboxes/{sandbox_id}/commands/{command_id}"
_DONE = {200: Answer("Done.", responses.Done)}
ENDPOINTS = (
    Endpoint(
        "GET",
        "/sandboxes/{sandbox_id}/commands",
        index,
        "Commands that run or ended a while ago, without their output",
        {200: Answer("The commands.", responses.CommandList)},
        tags=("commands",),
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/commands",
        start,
        "Start a command",
        {
            200: Answer("Events, or how it ended.", responses.Command, tuple(MEDIA.values())),
            201: Answer("It runs in the background.", responses.Command),
        },
        body=CommandBody,
        headers=("Idempotency-Key",),
        tags=("commands",),
    ),
    Endpoint(
        "GET",
        _ONE,
        get,
        "One command",
        {200: Answer("The command.", responses.Command)},
        query=WaitQuery,
        tags=("commands",),
    ),
    Endpoint("DELETE", _ONE, kill, "Kill a command", _DONE, tags=("commands",)),
    Endpoint(
        "GET",
        f"{_ONE}/events",
        events,
        "Events of a command, from any number on, live until its end",
        {200: Answer("Events.", None, (MEDIA["ndjson"], MEDIA["sse"]))},
        query=AfterQuery,
        headers=("Last-Event-ID",),
        tags=("commands",),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/stdin",
        stdin,
        "Write to a command's standard input",
        {200: Answer("What was taken.", responses.Written)},
        body_media="application/octet-stream",
        query=StdinQuery,
        tags=("commands",),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/signal",
        signal,
        "Signal a command's process tree",
        _DONE,
        body=SignalBody,
        tags=("commands",),
    ),
)
