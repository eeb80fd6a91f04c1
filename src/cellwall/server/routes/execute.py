"""Route of one program in one fresh sandbox, the hottest one.

Sessions are in `sandboxes`, many programs in `batch`. A request is checked, clipped, started as an
execution of its own, and answered as JSON or as a stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import Interrupted
from cellwall.server.core.request import ClientGone
from cellwall.server.executions import oneshots
from cellwall.server.executions.idempotency import gone
from cellwall.server.executions.record import ExecutionRecord, waits
from cellwall.server.http.endpoint import Answer, Endpoint, body_of
from cellwall.server.schemas import responses
from cellwall.server.schemas.requests import ExecuteBody
from cellwall.server.streaming.streams import MEDIA, chosen, send_kept, send_spool

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.executions.idempotency import Use
    from cellwall.server.executions.job import Job
    from cellwall.server.executions.order import Order
    from cellwall.server.executions.record import KeptExecution
    from cellwall.server.schemas.requests import OnDisconnect
    from cellwall.server.streaming.streams import Format


async def execute(request: Request) -> None:
    """`POST /execute`."""
    form = chosen(request, ("json", "ndjson", "sse"))
    body = await body_of(request, ExecuteBody, request.settings.body_bytes)
    async with request.state.replays.using(request, "execution") as use:
        if use is not None and use.thing_id is not None:
            await again(request, use.thing_id, form, is_background=body.background)
            return
        data: bytes = request.scope["cellwall.body"]
        order = oneshot(request, body, len(data), is_streamed=form != "json")
        order = replace(
            order,
            body=data,
            on_disconnect=leaving(request, body.on_disconnect),
            replay=use,
        )
        if request.origin.is_trial:
            await request.answer(waits(request.origin.offered_id, order.asked), 202)
            return
        if body.background:
            order = offered(request, replace(order, on_disconnect="detach"))
            await _submit(request, order, use)
            return
        if body.image is not None:  # without a place among those that run
            await request.state.images.wait_here(body.image)
        order = offered(request, order)
        record = request.state.executions.start(order)
        request.holding().until(record.ended)
        if use is not None:
            use.made(record.id)
    await give(request, record, form, leaving=order.on_disconnect)


def oneshot(request: Request, body: ExecuteBody, size: int, *, is_streamed: bool) -> Order:
    """Check and clip a one-shot that came as `size` bytes; a refusal costs and starts nothing."""
    state = request.state
    floor = state.queue.tenants.floor(request.owner)
    caller = oneshots.Caller(request.owner, request.request_id, request.caller.key_id, floor)
    order = oneshots.order(
        state.engine,
        state.settings,
        state.doors,
        body,
        caller,
        size=size,
        is_streamed=is_streamed,
    )
    if body.webhook is not None:
        state.notices.check(body.webhook)
    state.headroom.check()
    return order


def offered(request: Request, order: Order) -> Order:
    """Return the order with the id that was offered for it, if one was."""
    offered_id = request.origin.offered_id
    return replace(order, offered_id=offered_id) if offered_id else order


async def _submit(request: Request, order: Order, use: Use | None) -> None:
    execution_id = await request.state.executions.submit(order)
    record = request.state.executions.all.get(execution_id)
    if record is not None:  # it has begun; the body of a waiting execution is only in the store
        request.holding().until(record.ended)
    if use is not None:
        use.made(execution_id)
    await _accepted(request, waits(execution_id, order.asked))


async def _accepted(request: Request, value: dict[str, Any], *, is_replay: bool = False) -> None:
    execution_id = value["execution_id"]
    headers = {"location": f"/executions/{execution_id}", "x-execution-id": execution_id}
    if is_replay:
        headers["idempotent-replay"] = "true"
    await request.answer(value, 202, headers)


def leaving(request: Request, wanted: OnDisconnect | None, default: OnDisconnect = "cancel") -> str:
    """Return the effect of the client's disconnect: `cancel` or `detach`."""
    if wanted is not None:
        return wanted
    # A client that sends a key wants to come back for the answer.
    return "detach" if "idempotency-key" in request.headers else default


async def again(
    request: Request, execution_id: str, form: Format, *, is_background: bool = False
) -> None:
    """Answer with the execution that an earlier request with the same key made."""
    found = await request.state.executions.find(request.owner, execution_id)
    if found is None:
        raise gone()
    if is_background:
        await _accepted(request, found.as_json(), is_replay=True)
        return
    found = request.state.executions.followed(found)
    if isinstance(found, ExecutionRecord):
        await give(request, found, form, leaving="detach", is_replay=True)
        return
    headers = {"x-execution-id": found.id, "idempotent-replay": "true"}
    if form == "json":
        await request.answer(found.as_json(), headers=headers)
    else:
        await send_kept(request, found.id, form, 0, headers)


async def give(
    request: Request,
    record: ExecutionRecord,
    form: Format,
    *,
    leaving: str,
    is_replay: bool = False,
) -> None:
    """Answer with an execution that has begun, in the format the client wants."""
    headers = {"x-execution-id": record.id}
    if is_replay:
        headers["idempotent-replay"] = "true"
    try:
        await request.wait(record.ended if form == "json" else record.started)
        raise_early(record)
        if form == "json":
            raise_failure(record)
            await request.answer_line(record.as_line(), headers=headers)
        else:
            await send_spool(request, record.spool, form, 0, headers)
    except ClientGone:
        if leaving == "cancel" and not is_replay:
            record.cancel()
        raise


async def follow(
    request: Request, found: ExecutionRecord | KeptExecution, form: Format, after: int
) -> None:
    """Send the events of an execution from memory or store, live until its end."""
    found = request.state.executions.followed(found)
    headers = {"x-execution-id": found.id}
    if isinstance(found, ExecutionRecord):
        await send_spool(request, found.spool, form, after, headers)
    else:
        await send_kept(request, found.id, form, after, headers)


def raise_early(record: Job) -> None:
    """Raise the error that kept the execution from starting; a retry may then try again."""
    if not record.has_begun and record.error is not None:
        raise record.error


def raise_failure(record: Job) -> None:
    """Raise cellwall's failure during the execution; an interrupted one is an answer instead."""
    if record.error is not None and not isinstance(record.error, Interrupted):
        raise record.error


ENDPOINTS = (
    Endpoint(
        "POST",
        "/execute",
        execute,
        "Run one program in a fresh sandbox",
        {
            200: Answer("How it ended, or its events.", responses.Execution, tuple(MEDIA.values())),
            202: Answer("It will run in the background; Location says where.", responses.Execution),
        },
        body=ExecuteBody,
        headers=("Idempotency-Key",),
        tags=("executions",),
    ),
)
