"""Route of the secret with which a tenant's receivers verify webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server.executions.webhooks import HEADER
from cellwall.server.http.endpoint import Answer, Endpoint
from cellwall.server.schemas import responses_about

if TYPE_CHECKING:
    from cellwall.server.core.request import Request


async def secret(request: Request) -> None:
    """`GET /webhooks`."""
    found = request.state.notices.secret_of(request.owner)
    await request.answer({"secret": found, "header": HEADER}, headers={"cache-control": "no-store"})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/webhooks",
        secret,
        "The secret that signs your webhooks",
        {200: Answer("Keep it to yourself.", responses_about.WebhookSecret)},
        scope="manage",
        tags=("server",),
    ),
)
