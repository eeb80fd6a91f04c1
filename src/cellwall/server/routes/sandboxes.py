"""Routes of sandboxes and of the cells that run in them.

Contexts, commands and files have modules of their own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cellwall.engine.parts.contexts import MAIN
from cellwall.engine.policy.arguments import check_tools, may_call
from cellwall.engine.scheduling.admission import Cost
from cellwall.languages import registry
from cellwall.model.errors import UsageError
from cellwall.server.core.named_secrets import secrets_of
from cellwall.server.executions.idempotency import gone
from cellwall.server.executions.order import Order
from cellwall.server.executions.promised import bind
from cellwall.server.executions.remote_tools import RemoteTools
from cellwall.server.executions.sandboxes import SandboxRecord
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, query_of, sandbox
from cellwall.server.routes.execute import again, give, leaving, offered
from cellwall.server.schemas import decode, responses
from cellwall.server.schemas.network import value_of
from cellwall.server.schemas.requests import (
    CellBody,
    HibernateBody,
    ListQuery,
    SandboxBody,
    SandboxChange,
)
from cellwall.server.schemas.scanning import look
from cellwall.server.streaming.streams import MEDIA, chosen

if TYPE_CHECKING:
    from cellwall.engine.attempts.attempt import BeforeCode, OnEvent, OnStart
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.languages.entries.language import Language
    from cellwall.model.execution import Execution
    from cellwall.model.limits import Limits
    from cellwall.model.secret import Secret
    from cellwall.server.core.request import Request
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.executions.idempotency import Use


_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def create(request: Request) -> None:
    """`POST /sandboxes`."""
    body = await body_of(request, SandboxBody)
    headers: dict[str, str] = {}
    async with request.state.replays.using(request, "sandbox") as use:
        if use is not None and use.thing_id is not None:
            record = _again(request, use.thing_id)
            headers["idempotent-replay"] = "true"
        else:
            record = await _created(request, body)
            await _keep(request, record, use)
    headers["location"] = f"/sandboxes/{record.id}"
    await request.answer(record.as_json(), 201, headers)


def _again(request: Request, sandbox_id: str) -> SandboxRecord:
    """Return the sandbox that an earlier request with the same key made."""
    record = request.state.sandboxes.all.get(sandbox_id)
    if record is None or record.owner != request.owner:
        raise gone()
    return record


async def _keep(request: Request, record: SandboxRecord, use: Use | None) -> None:
    """Write the sandbox to the store before the answer; if that fails, end the sandbox."""
    try:
        replay = () if use is None else use.changes(record.id)
        audit = request.state.audit
        made = () if audit is None else (audit.made(request, record),)
        await request.state.sandboxes.keep(record, *replay, *made)
    except BaseException:
        await record.close()
        raise
    if use is not None:
        use.made(record.id)


async def _created(request: Request, body: SandboxBody) -> SandboxRecord:
    state = request.state
    limits, clipped = decode.limits(body, state.engine.settings.limits, state.settings.most)
    language = decode.language(body)
    secrets = secrets_of(body.secrets)
    state.headroom.check()
    state.kept.check(request.owner, 0)
    name, own = body.template, state.templates.rooted(request.owner, body.template, body.image)
    if own is None:
        state.images.check(request.owner, body.image, body.user)
    else:
        body = body.model_copy(update=own)
    state.volumes.check(request.owner, body.volumes)
    await state.images.wait_here(body.image)
    offered_id = request.origin.offered_id
    state.sandboxes.begin(offered_id)
    state.observer.created(request.owner)
    record: SandboxRecord | None = None
    try:
        made = await _promised(request, body, limits, secrets)
        facts = {
            "name": body.name,
            "language": language,
            "template": name,
            "metadata": body.metadata,
            "clipped": clipped,
            "image": body.image,
            "volumes": body.volumes,
            "auto_pause_s": body.auto_pause_s,
            "hibernate_s": body.hibernate_s,
            "resume": body.resume,
        }
        record = SandboxRecord(request.owner, made, facts)
    finally:
        state.sandboxes.begun(record, offered_id)
    return record


async def _promised(
    request: Request, body: SandboxBody, limits: Limits, secrets: list[str | Secret] | None
) -> AsyncSandbox:
    """Return a sandbox whose limits are reserved from before its creation until its end."""
    state = request.state
    await state.queue.room(request.owner, Cost.of(limits))
    promise = state.queue.hold(request.owner, Cost.of(limits))
    try:
        made = await state.engine.create_sandbox(
            body.template,
            limits,
            env=body.env,
            runtime=decode.runtime(body),
            isolation=body.isolation,
            trust=body.trust,
            floor=state.queue.tenants.floor(request.owner),
            demand_hard=body.demand_hard,
            start=body.start,
            profile=body.profile,
            network=value_of(body.network),
            secrets=secrets,
            packages=body.packages,
            image=body.image,
            user=body.user,
            volumes=body.volumes,
            auto_pause_s=body.auto_pause_s,
            hibernate_s=body.hibernate_s,
            resume=body.resume,
            tenant=request.owner,
            sandbox_id=request.origin.offered_id,
        )
    except BaseException:
        promise.release()
        raise
    bind(promise, made, state.headroom)
    return made


async def index(request: Request) -> None:
    """`GET /sandboxes`, newest first."""
    query = query_of(request, ListQuery)
    wanted = {k.removeprefix("metadata."): v for k, v in (query.model_extra or {}).items()}
    before = None if query.after is None else _place_of(query.after)
    mine = [each for each in request.state.sandboxes.all.values() if each.owner == request.owner]
    found = [
        record
        for record in sorted(mine, key=_place, reverse=True)
        if (before is None or _place(record) < before)
        and (query.state is None or _is_in(record, query.state))
        and all(record.metadata.get(key) == value for key, value in wanted.items())
    ]
    page = found[: query.limit]
    more = _cursor(page[-1]) if len(found) > query.limit else None
    await request.answer({"sandboxes": [record.as_json() for record in page], "next": more})


def _is_in(record: SandboxRecord, state: str) -> bool:
    return record.status == state or (state == "live" and record.status != "stopped")


def _place(record: SandboxRecord) -> tuple[str, str]:
    return record.created, record.id


def _cursor(record: SandboxRecord) -> str:
    """Return a cursor from which `_place_of` gets the record's place, also after its removal.

    It is made of what a list shows, so that the cursor of a list over many nodes fits each.
    """
    return f"{record.created}~{record.id}"


def _place_of(cursor: str) -> tuple[str, str]:
    created, mark, sandbox_id = cursor.partition("~")
    if not mark or not _MOMENT.fullmatch(created):
        raise UsageError("after: it is no cursor of this list", remedy="give what `next` said")
    return created, sandbox_id


async def get(request: Request) -> None:
    """`GET /sandboxes/{id}`."""
    await request.answer(sandbox(request).as_json())


async def change(request: Request) -> None:
    """`PATCH /sandboxes/{id}`."""
    body = await body_of(request, SandboxChange)
    record = sandbox(request)
    if body.life_s is not None:
        most = request.settings.most.life_s
        record.clipped = {"life_s": body.life_s} if body.life_s > most else {}
        await record.sandbox.extend(min(body.life_s, most))
    if body.name is not None:
        record.name = body.name
    if body.metadata is not None:
        record.metadata = body.metadata
    await request.state.sandboxes.keep(record)
    record.log("changed", fields=", ".join(sorted(body.model_fields_set)))
    await request.answer(record.as_json())


async def delete(request: Request) -> None:
    """`DELETE /sandboxes/{id}`."""
    record = sandbox(request)
    has_ended = record.ended_at is not None
    await record.close()
    await request.answer({"message": "it had ended" if has_ended else "deleted", "id": record.id})


async def pause(request: Request) -> None:
    """`POST /sandboxes/{id}/pause`."""
    record = sandbox(request)
    was = record.status
    await record.sandbox.pause()
    if was == "running":
        record.log("paused")
    await request.answer(record.as_json())


async def resume(request: Request) -> None:
    """`POST /sandboxes/{id}/resume`."""
    record = sandbox(request)
    was = record.status
    await record.sandbox.resume()
    if was in ("paused", "hibernated"):
        record.log("resumed")
    await request.answer(record.as_json())


async def hibernate(request: Request) -> None:
    """`POST /sandboxes/{id}/hibernate`."""
    body = await body_of(request, HibernateBody)
    record = sandbox(request)
    was = record.status
    left = await record.sandbox.hibernate(drop=body.drop, keep=body.keep)
    if was != "hibernated" or left:
        record.log("hibernated", left_behind=", ".join(left), keep=body.keep)
    await request.answer(record.as_json() | {"left_behind": list(left)})


async def execute(request: Request) -> None:
    """`POST /sandboxes/{id}/execute`."""
    form = chosen(request, ("ndjson", "json", "sse"))
    body = await body_of(request, CellBody, request.settings.body_bytes)
    ends = leaving(request, body.on_disconnect, "detach")
    async with request.state.replays.using(request, "execution") as use:
        if use is not None and use.thing_id is not None:
            await again(request, use.thing_id, form)
            return
        order = await _order(request, body, use, is_streamed=form != "json")
        order = offered(request, order)
        record = request.state.executions.start(order)
        request.holding().until(record.ended)
        if use is not None:
            use.made(record.id)
    await give(request, record, form, leaving=ends)


async def _order(request: Request, body: CellBody, use: Use | None, *, is_streamed: bool) -> Order:
    state, owner = request.state, sandbox(request)
    live = owner.sandbox
    await live.live.enter()
    state.queue.tenants.check_output(request.owner)
    source, stdin = decode.source(body), decode.stdin(body)
    spoken = live.contexts.language(body.context) if body.context != MAIN else None
    language = decode.language(body, owner.language if spoken is None else spoken.name)
    timeout, clipped = decode.clipped_seconds(body.timeout, state.settings.most.wall_s)
    scan = look(source, language, body.scan)
    output_kb = state.settings.stream_output_kb if is_streamed else None
    tools = _tools(body, registry.find(language), state.settings)

    async def work(
        on_event: OnEvent, on_start: OnStart, before_code: BeforeCode | None
    ) -> Execution:
        if before_code is not None:
            await before_code()
        execution = await live.run(
            source,
            language,
            body.context,
            stdin=stdin,
            timeout=timeout,
            output_kb=output_kb,
            on_event=on_event,
            on_start=on_start,
            tools=tools,
        )
        owner.log("executed", language=language, verdict=execution.verdict.value)
        return execution

    owner.executions += 1
    shown: dict[str, Any] = {
        "sandbox_id": owner.id,
        "template": owner.template,
        "language": language,
        "clipped": clipped,
        "scan": scan,
        "trust": live.live.trust,
        "key_id": request.caller.key_id,
    }
    return Order(request.owner, request.request_id, shown, work, replay=use, tools=tools)


def _tools(body: CellBody, language: Language, settings: ServerSettings) -> RemoteTools | None:
    wanted = body.tools
    if wanted is None or (wanted.optional and not may_call(language)):
        return None
    tools = RemoteTools(wanted, settings)
    check_tools(tools, language)
    return tools


ENDPOINTS = (
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/execute",
        execute,
        "Run code in a context of a sandbox",
        {200: Answer("Events, or how it ended.", responses.Execution, tuple(MEDIA.values()))},
        body=CellBody,
        headers=("Idempotency-Key",),
        tags=("sandboxes",),
    ),
    Endpoint(
        "GET",
        "/sandboxes",
        index,
        "Your sandboxes, newest first",
        {200: Answer("A page of them.", responses.SandboxList)},
        query=ListQuery,
        tags=("sandboxes",),
    ),
    Endpoint(
        "POST",
        "/sandboxes",
        create,
        "Create a sandbox",
        {201: Answer("It runs.", responses.Sandbox)},
        body=SandboxBody,
        headers=("Idempotency-Key",),
        tags=("sandboxes",),
    ),
    Endpoint(
        "GET",
        "/sandboxes/{sandbox_id}",
        get,
        "One sandbox, also when it has ended",
        {200: Answer("The sandbox.", responses.Sandbox)},
        tags=("sandboxes",),
    ),
    Endpoint(
        "PATCH",
        "/sandboxes/{sandbox_id}",
        change,
        "Extend its life, change its name or metadata",
        {200: Answer("The sandbox.", responses.Sandbox)},
        body=SandboxChange,
        tags=("sandboxes",),
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/pause",
        pause,
        "Stop its processes where they are",
        {200: Answer("They stand still.", responses.Sandbox)},
        tags=("sandboxes",),
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/resume",
        resume,
        "Let the processes of a paused sandbox go on",
        {200: Answer("They go on.", responses.Sandbox)},
        tags=("sandboxes",),
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/hibernate",
        hibernate,
        "Write its session to disk and end its processes, to go on later",
        {200: Answer("It has no processes.", responses.Hibernated)},
        body=HibernateBody,
        tags=("sandboxes",),
    ),
    Endpoint(
        "DELETE",
        "/sandboxes/{sandbox_id}",
        delete,
        "Destroy a sandbox",
        {200: Answer("It is gone.", responses.Done)},
        tags=("sandboxes",),
    ),
)
