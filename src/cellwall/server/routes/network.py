"""Routes of a sandbox's network: its policy, changed while it runs, its use, its log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from cellwall.server.http.endpoint import Answer, Endpoint, body_of, sandbox
from cellwall.server.schemas import responses
from cellwall.server.schemas.network import NetworkBody, value_of

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_PATH = "/sandboxes/{sandbox_id}/network"


async def get(request: Request) -> None:
    """`GET /sandboxes/{id}/network`."""
    live = sandbox(request).sandbox
    usage = await live.network_usage()
    await request.answer({"policy": live.network.as_json(), "usage": asdict(usage)})


async def put(request: Request) -> None:
    """`PUT /sandboxes/{id}/network`."""
    body = await body_of(request, NetworkBody)
    record = sandbox(request)
    policy = await record.sandbox.set_network(value_of(body))
    record.log("network", policy=str(policy)[:1000])
    await get(request)


async def log(request: Request) -> None:
    """`GET /sandboxes/{id}/network/log`."""
    await request.answer({"records": await sandbox(request).sandbox.network_log()})


ENDPOINTS = (
    Endpoint(
        "GET",
        _PATH,
        get,
        "Its network policy, and what it used",
        {200: Answer("The policy that applies now.", responses.SandboxNetwork)},
        tags=("network",),
    ),
    Endpoint(
        "PUT",
        _PATH,
        put,
        "Change its network policy while it runs",
        {200: Answer("The policy that applies now.", responses.SandboxNetwork)},
        body=NetworkBody,
        tags=("network",),
    ),
    Endpoint(
        "GET",
        f"{_PATH}/log",
        log,
        "Its latest connections and refusals",
        {200: Answer("At most a thousand records, oldest first.", responses.NetworkLog)},
        tags=("network",),
    ),
)
