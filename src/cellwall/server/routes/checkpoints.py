"""Routes of a sandbox's checkpoints: its work area kept, compared, rolled back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cellwall.server.core.times import rfc3339
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, query_of, sandbox
from cellwall.server.schemas import history, responses
from cellwall.server.schemas.paths import check_name

if TYPE_CHECKING:
    from cellwall.engine.parts.files import Files
    from cellwall.model.history import Checkpoint
    from cellwall.server.core.request import Request


def _files(request: Request) -> Files:
    return sandbox(request).sandbox.files


async def create(request: Request) -> None:
    """`POST /sandboxes/{id}/checkpoints`."""
    body = await body_of(request, history.CheckpointBody)
    record = sandbox(request)
    made = await record.sandbox.files.checkpoint(body.name)
    record.log("checkpoint made", checkpoint=made.id, files=made.files, bytes=made.bytes)
    await request.answer(_shown(made), 201)


async def index(request: Request) -> None:
    """`GET /sandboxes/{id}/checkpoints`."""
    found = await _files(request).checkpoints()
    await request.answer({"checkpoints": [_shown(each) for each in found]})


async def diff(request: Request) -> None:
    """`GET /sandboxes/{id}/checkpoints/{checkpoint_id}/diff`."""
    query = query_of(request, history.DiffQuery)
    since, files = request.params["checkpoint_id"], _files(request)
    if query.path is not None:
        text = await files.diff_text(check_name(query.path), since, query.until)
        await request.answer({"changes": None, "text": text})
        return
    changes = [asdict(each) for each in await files.diff(since, query.until)]
    await request.answer({"changes": changes, "text": None})


async def rollback(request: Request) -> None:
    """`POST /sandboxes/{id}/checkpoints/{checkpoint_id}/rollback`."""
    record = sandbox(request)
    done = await record.sandbox.files.rollback(request.params["checkpoint_id"])
    record.log("rolled back", checkpoint=done.id, restored=done.restored, removed=done.removed)
    await request.answer(asdict(done))


async def drop(request: Request) -> None:
    """`DELETE /sandboxes/{id}/checkpoints/{checkpoint_id}`."""
    checkpoint_id = request.params["checkpoint_id"]
    await _files(request).drop(checkpoint_id)
    await request.answer({"message": "dropped", "id": checkpoint_id})


def _shown(made: Checkpoint) -> dict[str, Any]:
    return {**asdict(made), "created_at": rfc3339(made.created_at)}


_BASE = "/sandboxes/{sandbox_id}/checkpoints"
_ONE = f"{_BASE}/{{checkpoint_id}}"
ENDPOINTS = (
    Endpoint(
        "POST",
        _BASE,
        create,
        "Keep the work area as it is now",
        {201: Answer("It is kept.", history.Checkpoint)},
        body=history.CheckpointBody,
        tags=("files",),
    ),
    Endpoint(
        "GET",
        _BASE,
        index,
        "The checkpoints of a sandbox",
        {200: Answer("The oldest first.", history.Checkpoints)},
        tags=("files",),
    ),
    Endpoint(
        "GET",
        f"{_ONE}/diff",
        diff,
        "What changed since a checkpoint",
        {200: Answer("Changes, or the diff of one file.", history.Diff)},
        query=history.DiffQuery,
        tags=("files",),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/rollback",
        rollback,
        "Make the work area what it was",
        {200: Answer("It is; compared afterwards.", history.RolledBack)},
        tags=("files",),
    ),
    Endpoint(
        "DELETE",
        _ONE,
        drop,
        "Forget a checkpoint",
        {200: Answer("It is gone.", responses.Done)},
        tags=("files",),
    ),
)
