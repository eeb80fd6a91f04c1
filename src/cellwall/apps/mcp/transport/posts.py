"""Posts: plain tool calls over HTTP, answered as one JSON object or as a stream.

Called by `http` for requests of an existing session. The answer is JSON unless the program takes
long: then it becomes a stream of events, whose comments keep proxies from closing the connection.
The invariant: a request not handled here reaches the SDK whole, with the body that was read here:
the SDK itself would read as many bodies at once as there are connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.mcp.direct import decoded
from cellwall.apps.mcp.transport.events import PRIMED_FROM, RETRY_MS
from cellwall.server.core.request import JSON_TYPE, ClientGone

if TYPE_CHECKING:
    from cellwall.apps.mcp.transport.calls import DirectCall
    from cellwall.apps.mcp.transport.visits import Connection, Visit
    from cellwall.server.core.request import Message, Receive, Request

MESSAGE_BYTES = 16 * 1024 * 1024
_EVENTS = "text/event-stream"
_PATIENCE_S = 5.0
"""Seconds after which a program is answered as a stream."""
_COMMENT_S = 15.0
"""Seconds between two comments of a stream."""


async def served_directly(request: Request, visit: Visit, connection: Connection) -> Receive | None:
    """Serve or cancel a plain call; otherwise return the request's source for the SDK."""
    try:
        resumed = _resumed(request, visit)
        if resumed is not None:
            await _stream(request, visit, resumed)
            return None
        if visit.client.session.spoken is None or not _may_be_plain(request):
            return await read_before(request)
        data = await request.body(MESSAGE_BYTES)
        message = decoded(data)
        if visit.client.calls.give_up(message):
            await request.answer_bytes(b"", JSON_TYPE, 202, _headers(visit))
            return None
        asked = visit.client.calls.begin(message)
        if asked is None:
            return _from(data, request.receive)
        await _answer(request, visit, asked)
    except ClientGone:
        connection.is_lost = True
        raise
    return None


async def read_before(request: Request) -> Receive:
    """Return the request's source for the SDK, with its body already read and counted."""
    if request.scope["method"] != "POST":
        return request.receive
    return _from(await request.body(MESSAGE_BYTES), request.receive)


def _may_be_plain(request: Request) -> bool:
    """Report whether the SDK would accept the request's headers: both answer types, and JSON."""
    accepted = request.headers.get("accept", "")
    return (
        request.scope["method"] == "POST"
        and JSON_TYPE in accepted
        and _EVENTS in accepted
        and request.headers.get("content-type", "").partition(";")[0].strip() == JSON_TYPE
    )


def _headers(visit: Visit) -> dict[str, str]:
    return {"mcp-session-id": visit.session_id}


def _from(data: bytes, receive: Receive) -> Receive:
    is_given = False

    async def receive_again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": data, "more_body": False}

    return receive_again


def _resumed(request: Request, visit: Visit) -> DirectCall | None:
    """Return the call whose stream the request resumes; None for a stream of the SDK."""
    seen = request.headers.get("last-event-id")
    if seen is None or request.scope["method"] != "GET":
        return None
    if _EVENTS not in request.headers.get("accept", ""):
        return None
    return visit.client.events.call_after(seen)


async def _answer(request: Request, visit: Visit, asked: DirectCall) -> None:
    if await request.wait(asked.done, _PATIENCE_S):
        await request.answer_bytes(asked.answer(), JSON_TYPE, headers=_headers(visit))
        return
    await _stream(request, visit, asked)


async def _stream(request: Request, visit: Visit, asked: DirectCall) -> None:
    """Answer by a stream; after a broken connection, a GET with the event's id resumes it."""
    begun = visit.client.events.begin(asked)
    await request.start(
        200, _EVENTS, {"cache-control": "no-cache, no-transform", **_headers(visit)}
    )
    if request.headers.get("mcp-protocol-version", "") >= PRIMED_FROM:
        await request.write(f"id: {begun}\nretry: {RETRY_MS}\ndata: \n\n".encode())
    while not await request.wait(asked.done, _COMMENT_S):
        await request.write(b": it runs\n\n")
    await request.write(b"event: message\ndata: " + asked.answer() + b"\n\n")
    await request.end()
