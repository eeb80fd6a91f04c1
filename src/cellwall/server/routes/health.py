"""Is it there? For load balancers and people; says nothing about anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cellwall
from cellwall.server import answers
from cellwall.server.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.server.call import Call

_BODY = f'{{"status":"ok","version":"{cellwall.__version__}"}}'.encode()


async def health(call: Call) -> None:
    """Answer."""
    await call.answer_bytes(_BODY, "application/json")


ENDPOINTS = (
    Endpoint(
        "GET",
        "/health",
        health,
        "Whether the server answers",
        {200: Answer("It does.", answers.Health)},
        access="public",
        tags=("server",),
    ),
)
