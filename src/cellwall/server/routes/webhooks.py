"""What a tenant's receivers need to know to believe a webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server import answers_about
from cellwall.server.endpoint import Answer, Endpoint
from cellwall.server.notices import HEADER

if TYPE_CHECKING:
    from cellwall.server.call import Call


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
