"""One program in one fresh sandbox: the hottest route.

Not sessions (`sandboxes`) and not many programs (`batch`). What is asked is checked, clipped,
started as an execution of its own, and answered as JSON or as a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.engine.admission import Cost
from cellwall.server import answers, asked
from cellwall.server.call import ClientGone
from cellwall.server.endpoint import Answer, Endpoint, body_of
from cellwall.server.executions import ExecutionRecord
from cellwall.server.scanning import look
from cellwall.server.schemas import ExecuteBody
from cellwall.server.streams import MEDIA, chosen, send_spool

if TYPE_CHECKING:
    from cellwall.engine.execution import OnEvent, OnStart
    from cellwall.model.execution import Execution
    from cellwall.server.call import Call
    from cellwall.server.schemas import OnDisconnect
    from cellwall.server.streams import Format
    from cellwall.server.tracked import Tracked


async def execute(call: Call) -> None:
    """`POST /execute`."""
    form = chosen(call, ("json", "ndjson", "sse"))
    body = await body_of(call, ExecuteBody, call.settings.body_bytes)
    record = call.state.replays.find(call)
    is_replay = isinstance(record, ExecutionRecord)
    if not isinstance(record, ExecutionRecord):
        record = begin(call, body, is_streamed=form != "json")
        call.state.replays.keep(call, record)
    await give(call, record, form, leaving=leaving(call, body.on_disconnect), is_replay=is_replay)


def begin(call: Call, body: ExecuteBody, *, is_streamed: bool) -> ExecutionRecord:
    """Check, clip and start a one-shot."""
    state = call.state
    limits, clipped = asked.limits(body, state.engine.settings.limits, state.settings.most)
    is_named = body.limits is not None and body.limits.output_kb is not None
    if is_streamed and not is_named:
        limits = limits.with_changes({"output_kb": state.settings.stream_output_kb})
    request = asked.request(body, limits)
    scan = look(request.code, request.language, body.scan)
    cost = Cost.of(limits)
    state.queue.check(call.owner, cost)
    state.room.check()

    async def work(on_event: OnEvent, on_start: OnStart) -> Execution:
        async with state.queue.place(call.owner, cost):
            execution = await state.engine.execute(request, on_event, on_start)
        state.queue.tenants.spend_output(call.owner, execution.kept_bytes)
        return execution

    shown: dict[str, Any] = {
        "template": body.template,
        "language": request.language,
        "clipped": clipped,
        "scan": scan,
    }
    return state.executions.start(call.owner, call.request_id, shown, work)


def leaving(call: Call, wanted: OnDisconnect | None, default: OnDisconnect = "cancel") -> str:
    """Return what happens when the client goes away."""
    if wanted is not None:
        return wanted
    # Who sends a key wants to come back for the answer.
    return "detach" if "idempotency-key" in call.headers else default


async def give(
    call: Call, record: ExecutionRecord, form: Format, *, leaving: str, is_replay: bool = False
) -> None:
    """Answer with an execution that has begun, in the form the client wants."""
    headers = {"x-execution-id": record.id}
    if is_replay:
        headers["idempotent-replay"] = "true"
    try:
        await call.wait(record.ended if form == "json" else record.started)
        raise_early(call, record)
        if form == "json":
            raise_failure(record)
            await call.answer(record.as_json(), headers=headers)
        else:
            await send_spool(call, record.spool, form, 0, headers)
    except ClientGone:
        if leaving == "cancel" and not is_replay:
            record.cancel()
        raise


def raise_early(call: Call, record: Tracked) -> None:
    """Raise what kept it from starting at all; a retry may then try again."""
    if record.attempt is None and record.error is not None:
        call.state.replays.drop(call)
        raise record.error


def raise_failure(record: Tracked) -> None:
    """Raise what of ours failed on the way."""
    if record.error is not None:
        raise record.error


ENDPOINTS = (
    Endpoint(
        "POST",
        "/execute",
        execute,
        "Run one program in a fresh sandbox",
        {
            200: Answer("How it ended, or its events.", answers.Execution, tuple(MEDIA.values())),
        },
        body=ExecuteBody,
        headers=("Idempotency-Key",),
        tags=("executions",),
    ),
)
