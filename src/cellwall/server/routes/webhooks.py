"""Route of the secret with which a tenant's receivers verify webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server.executions.webhooks import HEADER
from cellwall.server.http.endpoint import Answer, Endpoint
from cellwall.server.schemas import responses_about as answers_about

if TYPE_CHECKING:
    from cellwall.server.core.request import Call


async def secret(call: Call) -> None:
    """`GET /webhooks`."""
    found = call.state.notices.secret_of(call.owner)
    await call.answer({"secret": found, "header": HEADER}, headers={"cache-control": "no-store"})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/webhooks",
        secret,
        "The secret that signs your webhooks",
        {200: Answer("Keep it to yourself.", answers_about.WebhookSecret)},
        scope="manage",
        tags=("server",),
    ),
)
