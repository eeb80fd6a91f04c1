"""Route that installs packages into a live sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server.http.endpoint import Answer, Endpoint, body_of, sandbox
from cellwall.server.schemas import decode, responses
from cellwall.server.schemas.requests import PackagesBody

if TYPE_CHECKING:
    from cellwall.server.core.request import Request


async def install(request: Request) -> None:
    """`POST /sandboxes/{id}/packages`, answered when they are installed."""
    body = await body_of(request, PackagesBody)
    record = sandbox(request)
    timeout, _ = decode.clipped_seconds(body.timeout, request.settings.most.life_s)
    made = await record.sandbox.install(body.packages, timeout=timeout)
    record.log("packages", installed=", ".join(made.packages)[:1000])
    await request.answer({"installed": list(made.packages)})


ENDPOINTS = (
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/packages",
        install,
        "Install Python packages into it",
        {200: Answer("They can be imported now.", responses.Installed)},
        body=PackagesBody,
        tags=("network",),
    ),
)
