"""Route of the health check, for load balancers and people; it reveals nothing about tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cellwall
from cellwall.server.http.endpoint import Answer, Endpoint
from cellwall.server.schemas import responses

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_BODY = f'{{"status":"ok","version":"{cellwall.__version__}"}}'.encode()


async def health(request: Request) -> None:
    """Answer with status and version."""
    await request.answer_bytes(_BODY, "application/json")


ENDPOINTS = (
    Endpoint(
        "GET",
        "/health",
        health,
        "Whether the server answers",
        {200: Answer("It does.", responses.Health)},
        access="public",
        tags=("server",),
    ),
)
