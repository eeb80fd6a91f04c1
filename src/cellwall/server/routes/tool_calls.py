"""Routes of an execution's calls to its client's tools: one stream shows them, each is answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cellwall.model.errors import Conflict, NotFound, UsageError
from cellwall.server.executions.record import ExecutionRecord
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, execution
from cellwall.server.schemas import responses
from cellwall.server.schemas.tools import ToolAnswer
from cellwall.server.streaming.streams import MEDIA, chosen, send_items
from cellwall.surface.tools import calls as tool_calls
from cellwall.surface.tools.tools import MOST_BYTES

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.executions.remote_tools import RemoteTools

_BODY_BYTES = MOST_BYTES + 4096


async def calls(request: Request) -> None:
    """`GET /executions/{id}/calls`."""
    form = chosen(request, ("ndjson", "sse"))
    found = request.state.executions.followed(execution(request))
    if isinstance(found, ExecutionRecord):
        # the tools of an execution that waits on disk only are not read yet
        await request.wait(found.started)
    tools = _tools(request)
    with tools.listening():
        await send_items(request, form, tools.follow(), {})


async def answer(request: Request) -> None:
    """`POST /executions/{id}/calls/{call}`."""
    body = await body_of(request, ToolAnswer, _BODY_BYTES)
    number = _number(request.params["call"])
    _tools(request).take(number, _answer(body), request.caller.key_id)
    await request.answer({"message": "answered", "id": str(number)})


def _tools(request: Request) -> RemoteTools:
    found = request.state.executions.followed(execution(request))
    if not isinstance(found, ExecutionRecord) or found.ended.done():
        raise Conflict(f"execution {found.id!r}: it is over", remedy="its calls have ended with it")
    if found.tools is None:
        raise Conflict(
            f"execution {found.id!r}: it has no tools", remedy="send `tools` with the program"
        )
    return found.tools


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise NotFound(f"call {text[:20]!r}: there is none", remedy="answer those you were shown")
    return int(text)


def _answer(body: ToolAnswer) -> tool_calls.Answer:
    if body.error is not None:
        return tool_calls.refusal(body.error.kind, body.error.message, body.error.type)
    try:
        text = json.dumps(body.result, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise UsageError("result: not JSON", remedy="give finite numbers, nested less") from None
    return tool_calls.Answer("ok", text.encode("ascii"))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/executions/{execution_id}/calls",
        calls,
        "Calls that wait for an answer, live until the execution's end",
        {200: Answer("`call`, `call_dropped`, `end`.", None, (MEDIA["ndjson"], MEDIA["sse"]))},
        tags=("executions",),
    ),
    Endpoint(
        "POST",
        "/executions/{execution_id}/calls/{call}",
        answer,
        "Answer a call to a tool of yours",
        {200: Answer("It goes inside.", responses.Done)},
        body=ToolAnswer,
        body_bytes=_BODY_BYTES,
        is_for_running=True,
        tags=("executions",),
    ),
)
