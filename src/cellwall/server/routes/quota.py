"""Route of the caller's tenant's quotas and their use; for other tenants see `/stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server.http.endpoint import Answer, Endpoint
from cellwall.server.schemas import responses_about

if TYPE_CHECKING:
    from cellwall.server.core.request import Request


async def quota(request: Request) -> None:
    """`GET /quota`."""
    await request.answer(request.state.queue.tenants.quotas_json(request.owner))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/quota",
        quota,
        "Your quotas, and what of them is in use",
        {200: Answer("Now.", responses_about.Quota)},
        tags=("server",),
    ),
)
