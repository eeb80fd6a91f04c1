"""Routes of a tenant's volumes: made, listed, copied, removed.

What they may take together is decided in `core.volume_door`. Files come in and out through a
sandbox that has the volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.server.core.times import rfc3339
from cellwall.server.http.endpoint import Answer, Endpoint, body_of
from cellwall.server.schemas import responses
from cellwall.server.schemas import volumes as schemas

if TYPE_CHECKING:
    from cellwall.model.volume import Volume
    from cellwall.server.core.request import Request


async def index(request: Request) -> None:
    """`GET /volumes`."""
    found = await request.state.volumes.found(request.owner)
    await request.answer({"volumes": [_shown(each) for each in found]})


async def get(request: Request) -> None:
    """`GET /volumes/{name}`."""
    found = await request.state.volumes.get(request.owner, request.params["name"])
    await request.answer(_shown(found))


async def create(request: Request) -> None:
    """`POST /volumes`."""
    body = await body_of(request, schemas.VolumeBody)
    made = await request.state.volumes.create(request.owner, body.name, body.size_mb, body.inodes)
    await request.answer(_shown(made), 201, {"location": f"/volumes/{made.name}"})


async def copy(request: Request) -> None:
    """`POST /volumes/{name}/copy`."""
    body = await body_of(request, schemas.CopyBody)
    made = await request.state.volumes.copy(request.owner, request.params["name"], body.name)
    await request.answer(_shown(made), 201, {"location": f"/volumes/{made.name}"})


async def remove(request: Request) -> None:
    """`DELETE /volumes/{name}`."""
    name = request.params["name"]
    await request.state.volumes.remove(request.owner, name)
    await request.answer({"message": "removed", "id": name})


def _shown(volume: Volume) -> dict[str, Any]:
    return {
        "name": volume.name,
        "size_mb": volume.size_mb,
        "inodes": volume.inodes,
        "created_at": rfc3339(volume.created_at),
        "used_bytes": volume.used_bytes,
        "used_inodes": volume.used_inodes,
        "disk_bytes": volume.disk_bytes,
    }


_ONE = "/volumes/{name}"
ENDPOINTS = (
    Endpoint(
        "GET",
        "/volumes",
        index,
        "Your volumes",
        {200: Answer("By name.", schemas.Volumes)},
        tags=("volumes",),
    ),
    Endpoint(
        "GET",
        _ONE,
        get,
        "One of them",
        {200: Answer("The volume.", schemas.Volume)},
        tags=("volumes",),
    ),
    Endpoint(
        "POST",
        "/volumes",
        create,
        "Make an empty volume",
        {201: Answer("It is made.", schemas.Volume)},
        body=schemas.VolumeBody,
        tags=("volumes",),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/copy",
        copy,
        "Make a volume with the content of another",
        {201: Answer("It is made.", schemas.Volume)},
        body=schemas.CopyBody,
        tags=("volumes",),
    ),
    Endpoint(
        "DELETE",
        _ONE,
        remove,
        "Remove a volume that no sandbox uses, and all that is in it",
        {200: Answer("It is gone.", responses.Done)},
        tags=("volumes",),
    ),
)
