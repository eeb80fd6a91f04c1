"""Routes of the images that a tenant may name: listed, pulled, removed.

Which those are is decided in `core.image_door`. Images are shared by all tenants, so that only the
operator's key removes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.server.core.errors import failure
from cellwall.server.core.times import rfc3339
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, query_of
from cellwall.server.schemas import images as schemas
from cellwall.server.schemas import responses
from cellwall.server.schemas.requests import WaitQuery

if TYPE_CHECKING:
    from cellwall.engine.images.image_store import StoredImage
    from cellwall.engine.images.pulls import PullState
    from cellwall.server.core.request import Request


async def index(request: Request) -> None:
    """`GET /images`."""
    found = request.state.images.found(request.owner)
    await request.answer({"images": [_shown(request, each) for each in found]})


async def get(request: Request) -> None:
    """`GET /images/{id}`."""
    stored = request.state.images.find(request.owner, request.params["image_id"])
    await request.answer(_shown(request, stored))


async def pull(request: Request) -> None:
    """`POST /images`."""
    body = await body_of(request, schemas.ImageBody)
    door = request.state.images
    door.check(request.owner, body.image, None)
    begun = door.begin(body.image)
    if body.wait:
        await request.wait(begun.ended, body.wait)
    headers = {"location": f"/images/pulls/{begun.id}"}
    await request.answer(_pull(request, begun), 202 if begun.ended_at is None else 200, headers)


async def pulled(request: Request) -> None:
    """`GET /images/pulls/{id}`."""
    query = query_of(request, WaitQuery)
    found = request.state.images.pull_of(request.owner, request.params["pull_id"])
    if query.wait:
        await request.wait(found.ended, query.wait)
    await request.answer(_pull(request, found))


async def remove(request: Request) -> None:
    """`DELETE /images/{id}`."""
    stored = request.state.images.find(request.owner, request.params["image_id"])
    await request.state.engine.images.remove(stored.digest)
    await request.answer({"message": "removed", "id": stored.digest})


def _pull(request: Request, pull: PullState) -> dict[str, Any]:
    stored, error = pull.stored, pull.failure
    return {
        "id": pull.id,
        "name": pull.name,
        "status": pull.status,
        "come_bytes": pull.come_bytes,
        "all_bytes": pull.all_bytes or None,
        "image": None if stored is None else _shown(request, stored),
        "error": None if error is None else failure(error, request.request_id),
    }


def _shown(request: Request, stored: StoredImage) -> dict[str, Any]:
    config = stored.config
    return {
        "id": stored.digest,
        "names": request.state.images.names_of(request.owner, stored),
        "size_bytes": stored.size_bytes,
        "inodes": stored.inodes,
        "unpacked_at": rfc3339(stored.made_at),
        "used_at": rfc3339(request.state.engine.images.used_at(stored)),
        "user": config.user or "root",
        "working_dir": config.working_dir,
        "environment": dict(config.environment),
        "entrypoint": list(config.entrypoint),
        "command": list(config.command),
        "has_python": stored.has_python,
        "skipped": dict(stored.skipped),
    }


_ONE = "/images/{image_id}"
ENDPOINTS = (
    Endpoint(
        "GET",
        "/images",
        index,
        "The images on this machine that you may name",
        {200: Answer("The newest first.", schemas.Images)},
        tags=("images",),
    ),
    Endpoint(
        "GET",
        _ONE,
        get,
        "One of them",
        {200: Answer("The image.", schemas.Image)},
        tags=("images",),
    ),
    Endpoint(
        "POST",
        "/images",
        pull,
        "Pull an image, also if its name is known",
        {
            200: Answer("It is here, or the pull has failed.", schemas.Pull),
            202: Answer("It is on its way.", schemas.Pull),
        },
        body=schemas.ImageBody,
        scope="manage",
        tags=("images",),
    ),
    Endpoint(
        "GET",
        "/images/pulls/{pull_id}",
        pulled,
        "A pull, also for ten minutes after its end",
        {200: Answer("How far it is.", schemas.Pull)},
        query=WaitQuery,
        tags=("images",),
    ),
    Endpoint(
        "DELETE",
        _ONE,
        remove,
        "Remove an image that no sandbox uses",
        {200: Answer("It is gone.", responses.Done)},
        scope="admin",
        tags=("images",),
    ),
)
