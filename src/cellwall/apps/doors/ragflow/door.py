"""RAGFlow's door: `/run` and the health of its executor manager.

Keys come as `Authorization: Bearer` or `X-Sandbox-Token`. The invariant: once a caller is known, a
run that failed is status 200 with the failure in it, because RAGFlow's client reads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.doors import exchange, validation
from cellwall.apps.doors.door import PublicRoute, Route, Visit
from cellwall.apps.doors.options import check_none
from cellwall.apps.doors.ragflow import answers
from cellwall.apps.doors.ragflow.programs import RunBody, program_of
from cellwall.apps.doors.refusal import send
from cellwall.server.http.face import bearer_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find
    from cellwall.server.state import State


class Ragflow:
    """The door; see the module."""

    def __init__(self) -> None:
        """Keep the table of routes."""
        self.routes = (
            Route("POST", "/run", _run),
            PublicRoute("GET", "/", _health),
            PublicRoute("GET", "/healthz", _health),
        )

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks, by either header."""
        presented = bearer_of(request.headers) or request.headers.get("x-sandbox-token")
        return None if not presented else find(presented)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error: of a run as an answer about it, of anything else as FastAPI's."""
        await send(request, answers.refusal(error, is_of_run=request.is_body_read))

    async def aclose(self) -> None:
        """Do nothing: there is no state."""


def make_door(state: State, options: Mapping[str, Any]) -> Ragflow:
    """Make the door."""
    del state
    check_none("ragflow", options)
    return Ragflow()


async def _run(visit: Visit) -> None:
    body = await validation.read(visit.request, RunBody)
    code, options = program_of(body, visit.request.settings.most)
    execution = await visit.request.unless_gone(visit.client.arun(code, **options))
    await exchange.answer(visit.request, answers.answer_of(execution))


async def _health(request: Request) -> None:
    await exchange.answer(request, {"status": "ok"})
