"""Routes of executions: their answers, their events, their cancellation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server.executions.record import ExecutionRecord
from cellwall.server.http.endpoint import Answer, Endpoint, execution, query_of, wait_ended
from cellwall.server.routes.execute import follow
from cellwall.server.schemas import responses
from cellwall.server.schemas.requests import AfterQuery, WaitQuery
from cellwall.server.streaming.streams import MEDIA, chosen, resume_from

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_CANCEL_S = 2.0
"""Seconds to wait for the end of a cancelled execution; a cell may take one to obey."""


async def get(request: Request) -> None:
    """`GET /executions/{id}`."""
    query = query_of(request, WaitQuery)
    found = execution(request)
    if query.wait > 0:
        found = request.state.executions.followed(found)
    if isinstance(found, ExecutionRecord):
        await wait_ended(request, found, query.wait)
    await request.answer(found.as_json())


async def events(request: Request) -> None:
    """`GET /executions/{id}/events`."""
    form = chosen(request, ("ndjson", "sse"))
    after = resume_from(request, query_of(request, AfterQuery).after)
    await follow(request, execution(request), form, after)


async def cancel(request: Request) -> None:
    """`DELETE /executions/{id}`."""
    found = request.state.executions.followed(execution(request))
    has_ended = not isinstance(found, ExecutionRecord) or found.ended.done()
    if isinstance(found, ExecutionRecord):
        found.cancel()
        await request.wait(found.ended, _CANCEL_S)
    message = "it had ended" if has_ended else "cancelled"
    await request.answer({"message": message, "id": found.id})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/executions/{execution_id}",
        get,
        "How an execution ended, or how far it is",
        {200: Answer("The execution.", responses.Execution)},
        query=WaitQuery,
        tags=("executions",),
    ),
    Endpoint(
        "DELETE",
        "/executions/{execution_id}",
        cancel,
        "Cancel an execution",
        {200: Answer("It ends, or had ended.", responses.Done)},
        tags=("executions",),
    ),
    Endpoint(
        "GET",
        "/executions/{execution_id}/events",
        events,
        "Events of an execution, from any number on, live until its end",
        {200: Answer("Events.", None, (MEDIA["ndjson"], MEDIA["sse"]))},
        query=AfterQuery,
        headers=("Last-Event-ID",),
        tags=("executions",),
    ),
)
