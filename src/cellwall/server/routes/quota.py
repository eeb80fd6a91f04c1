"""How much the caller's tenant may have and has. Nobody else's; for those see `/stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server import answers_about
from cellwall.server.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.server.call import Call


async def quota(call: Call) -> None:
    """`GET /quota`."""
    await call.answer(call.state.queue.tenants.quotas_json(call.owner))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/quota",
        quota,
        "Your quotas, and what of them is in use",
        {200: Answer("Now.", answers_about.Quota)},
        tags=("server",),
    ),
)
