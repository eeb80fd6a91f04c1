"""Routes of a sandbox's contexts, which are stateful interpreters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.languages import registry
from cellwall.model.ids import new_id
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, sandbox
from cellwall.server.schemas import responses
from cellwall.server.schemas.requests import ContextBody

if TYPE_CHECKING:
    from cellwall.server.core.request import Request


async def index(request: Request) -> None:
    """`GET /sandboxes/{id}/contexts`."""
    names = await sandbox(request).sandbox.contexts.list()
    shown = [{"name": str(name), "language": name.language} for name in names]
    await request.answer({"contexts": shown})


async def create(request: Request) -> None:
    """`POST /sandboxes/{id}/contexts`."""
    body = await body_of(request, ContextBody)
    record = sandbox(request)
    name = body.name or new_id()
    language = registry.find(body.language).name
    made = str(await record.sandbox.contexts.create(name, language))
    record.log("context created", name=made, language=language)
    await request.answer({"name": made, "language": language}, 201)


async def close(request: Request) -> None:
    """`DELETE /sandboxes/{id}/contexts/{name}`."""
    record, name = sandbox(request), request.params["context"]
    await record.sandbox.live.enter()
    await record.sandbox.contexts.close(name)
    record.log("context closed", name=name)
    await request.answer({"message": "closed", "name": name})


async def restart(request: Request) -> None:
    """`POST /sandboxes/{id}/contexts/{name}/restart`."""
    record, name = sandbox(request), request.params["context"]
    await record.sandbox.live.enter()
    await record.sandbox.contexts.restart(name)
    record.log("context restarted", name=name)
    await request.answer({"message": "restarted", "name": name})


async def interrupt(request: Request) -> None:
    """`POST /sandboxes/{id}/contexts/{name}/interrupt`."""
    name = request.params["context"]
    await sandbox(request).sandbox.interrupt(name)
    await request.answer({"message": "interrupted", "name": name})


_DONE = {200: Answer("Done.", responses.NamedDone)}
ENDPOINTS = (
    Endpoint(
        "GET",
        "/sandboxes/{sandbox_id}/contexts",
        index,
        "The contexts that are alive",
        {200: Answer("Their names.", responses.ContextList)},
        tags=("contexts",),
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/contexts",
        create,
        "Start another context",
        {201: Answer("It is there.", responses.Context)},
        body=ContextBody,
        tags=("contexts",),
    ),
    Endpoint(
        "DELETE",
        "/sandboxes/{sandbox_id}/contexts/{context}",
        close,
        "End a context; what runs in it is killed",
        _DONE,
        tags=("contexts",),
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/contexts/{context}/restart",
        restart,
        "End a context and start it afresh",
        _DONE,
        tags=("contexts",),
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/contexts/{context}/interrupt",
        interrupt,
        "Raise KeyboardInterrupt in what a context runs now",
        _DONE,
        tags=("contexts",),
    ),
)
