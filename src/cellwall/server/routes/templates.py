"""Routes of the templates that a tenant builds: built, followed, cancelled, shown, removed.

What a tenant may build is decided in `core.template_door`; what a request's parts become is in
`schemas.template_parts`. Templates of the operator are listed by `info`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import UsageError
from cellwall.model.ids import new_id
from cellwall.server.auth.ownership import owned
from cellwall.server.core.errors import failure
from cellwall.server.core.times import rfc3339
from cellwall.server.http import audited_actions
from cellwall.server.http.endpoint import (
    Answer,
    Endpoint,
    body_of,
    learn_secrets,
    parsed,
    query_of,
)
from cellwall.server.schemas import responses, template_parts
from cellwall.server.schemas import templates as schemas
from cellwall.server.schemas.requests import AfterQuery, WaitQuery
from cellwall.server.streaming.streams import MEDIA, chosen, resume_from, send_items
from cellwall.server.streaming.template_upload import BODY_BYTES, unpacked, whole_body, written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cellwall.engine.images.builds import BuildState
    from cellwall.server.core.request import Request
    from cellwall.server.schemas.templates import TemplateBody

_CANCEL_S = 10.0
_LOG_EVENTS = 50
"""Events that `GET` shows of a build; the others are in its stream."""


async def build(request: Request) -> None:
    """`POST /templates`."""
    from cellwall.engine.images.builds import BuildState

    door, state = request.state.templates, request.state
    door.check_permitted()
    state.headroom.check()
    state.kept.check(request.owner, 0)
    with ExitStack() as held:
        body, context = await _received(request, held)
        name = door.check_name(body.name)
        further = door.check_tags(name, body.tags)
        await door.check_room(request.owner, (name, *further))
        asked, clipped = template_parts.request_of(body, state.settings.most)
        build = BuildState(request.owner, name, further, new_id(request.state.engine.settings.node))
        begun = await door.begin(build, asked, context, held)
        begun.clipped = clipped
    if body.wait:
        await request.wait(begun.ended, body.wait)
    headers = {"location": f"/templates/builds/{begun.id}"}
    status = 202 if begun.ended_at is None else 200
    await request.answer(await _shown(request, begun), status, headers)


async def _received(request: Request, held: ExitStack) -> tuple[TemplateBody, Path | None]:
    """Read a body of JSON, or a form of it and of a context as a tar."""
    door = request.state.templates
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        body = await body_of(request, schemas.TemplateBody, BODY_BYTES)
        door.place(request.owner, held)
        return body, await written(request, template_parts.tar_of(body), held)
    parts = whole_body(request)
    data = await anext(parts, b"")
    body = parsed(schemas.TemplateBody, data)
    learn_secrets(request, body)
    await audited_actions.begin(request, body, data)
    if body.files:
        raise UsageError("files: the context has them", remedy="give `files` or a context")
    door.place(request.owner, held)
    folder = await unpacked(request, parts, held)
    return body, folder


async def built(request: Request) -> None:
    """`GET /templates/builds/{id}`."""
    query = query_of(request, WaitQuery)
    found = _build(request)
    if query.wait:
        await request.wait(found.ended, query.wait)
    await request.answer(await _shown(request, found))


async def events(request: Request) -> None:
    """`GET /templates/builds/{id}/events`."""
    form = chosen(request, ("ndjson", "sse"))
    after = resume_from(request, query_of(request, AfterQuery).after)
    await send_items(request, form, _followed(request, _build(request), after), {})


async def _followed(
    request: Request, found: BuildState, after: int
) -> AsyncIterator[dict[str, Any]]:
    async for each in found.follow(after):
        yield each
    yield {"seq": found.last + 1, "type": "end", "build": await _shown(request, found)}


async def cancel(request: Request) -> None:
    """`DELETE /templates/builds/{id}`."""
    found = _build(request)
    was_open = request.state.templates.builds.cancel(found)
    await request.wait(found.ended, _CANCEL_S)
    message = "cancelled" if was_open else "it had ended"
    await request.answer({"message": message, "id": found.id})


async def get(request: Request) -> None:
    """`GET /templates/{name}`."""
    door = request.state.templates
    await request.answer(door.shown(await door.get(request.owner, request.params["name"])))


async def remove(request: Request) -> None:
    """`DELETE /templates/{name}`."""
    gone = await request.state.templates.remove(request.owner, request.params["name"])
    await request.answer({"message": "removed", "id": gone.name})


def _build(request: Request) -> BuildState:
    builds = request.state.templates.builds
    return owned(builds.all, request.owner, "build", request.params["build_id"])


async def _shown(request: Request, found: BuildState) -> dict[str, Any]:
    door, template = request.state.templates, None
    if found.stored is not None:
        own = [each for each in await door.found(found.owner) if each["name"] == found.name]
        template = next((each for each in own if each["image"] == found.stored.digest), None)
    events = list(found.events)[-_LOG_EVENTS:]
    return {
        "id": found.id,
        "name": found.name,
        "status": found.status,
        "began_at": rfc3339(found.began_at),
        "steps": found.steps,
        "cached": found.cached,
        "step": {"line": found.line, "text": found.step} if found.steps else None,
        "log": [
            {"seq": number, "type": each.kind, "line": each.line, "text": each.text[-2000:]}
            for number, each in events
        ],
        "last": found.last,
        "template": template,
        "clipped": dict(found.clipped),
        "error": None if found.failure is None else _error(request, found, found.failure),
    }


def _error(request: Request, found: BuildState, error: BaseException) -> dict[str, Any]:
    """Return the error with the step that failed, and how its program ended."""
    return {
        **failure(error, request.request_id),
        "line": getattr(error, "line", 0) or found.line,
        "step": found.step,
        "exit_code": getattr(error, "exit_status", None),
        "output": getattr(error, "output", ""),
    }


_BUILD = "/templates/builds/{build_id}"
_ONE = "/templates/{name}"
ENDPOINTS = (
    Endpoint(
        "POST",
        "/templates",
        build,
        "Build a template of your own, also from a form of `build` (JSON) and `context` (tar)",
        {
            200: Answer("It has ended.", schemas.Build),
            202: Answer("It is on its way; Location says where.", schemas.Build),
        },
        body=schemas.TemplateBody,
        body_bytes=BODY_BYTES,
        scope="manage",
        tags=("templates",),
    ),
    Endpoint(
        "GET",
        _BUILD,
        built,
        "A build, also for ten minutes after its end",
        {200: Answer("How far it is, or how it ended.", schemas.Build)},
        query=WaitQuery,
        tags=("templates",),
    ),
    Endpoint(
        "GET",
        f"{_BUILD}/events",
        events,
        "Steps and output of a build, from any number on, live until its end",
        {200: Answer("Events.", None, (MEDIA["ndjson"], MEDIA["sse"]))},
        query=AfterQuery,
        headers=("Last-Event-ID",),
        tags=("templates",),
    ),
    Endpoint(
        "DELETE",
        _BUILD,
        cancel,
        "Cancel a build; nothing is left of it but steps that were done",
        {200: Answer("It ends, or had ended.", responses.Done)},
        scope="manage",
        tags=("templates",),
    ),
    Endpoint(
        "GET",
        _ONE,
        get,
        "A template of your own",
        {200: Answer("The template.", schemas.OwnTemplate)},
        tags=("templates",),
    ),
    Endpoint(
        "DELETE",
        _ONE,
        remove,
        "Remove a template of your own that no sandbox uses",
        {200: Answer("It is gone.", responses.Done)},
        scope="manage",
        tags=("templates",),
    ),
)
