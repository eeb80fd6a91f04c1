"""SandboxFusion's door: `/run_code`, `/run_jupyter` and `/v1/ping`.

The protocol has no keys. A client that can set headers sends `Authorization: Bearer` or
`X-API-Key`; others need `tenant` in the door's settings. The invariant: a program that could not
run is status 200 with `SandboxError`; a full server is 503, which the client tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange, validation
from cellwall.apps.doors.door import PublicRoute, Route, Visit
from cellwall.apps.doors.fusion import answers
from cellwall.apps.doors.fusion.bodies import CodeBody, NotebookBody, program_of
from cellwall.apps.doors.fusion.notebook import run_notebook
from cellwall.apps.doors.options import check_none
from cellwall.apps.doors.refusal import send
from cellwall.model.errors import AccessDenied, CapacityError, CellwallError, NodeUnreachable
from cellwall.server.http.face import presented_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find
    from cellwall.server.state import State


class Fusion:
    """The door; see the module."""

    def __init__(self) -> None:
        """Keep the table of routes."""
        self.routes = (
            Route("POST", answers.RUN_CODE, _run_code),
            Route("POST", answers.RUN_NOTEBOOK, _run_jupyter),
            PublicRoute("GET", "/v1/ping", _ping),
        )

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks, by the headers of our own protocol."""
        presented = presented_key(request)
        return None if not presented else find(presented)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error as FastAPI does."""
        await send(request, answers.refusal(error, request.scope["path"]))

    async def aclose(self) -> None:
        """Do nothing: there is no state."""


def make_door(state: State, options: Mapping[str, Any]) -> Fusion:
    """Make the door."""
    del state
    check_none("fusion", options)
    return Fusion()


async def _run_code(visit: Visit) -> None:
    body = await validation.read(visit.request, CodeBody)
    try:
        code, options = program_of(body, visit.request.settings.most)
        execution = await visit.request.unless_gone(visit.client.arun(code, **options))
        answer = answers.code_answer(execution, body.fetch_files)
    except (AccessDenied, CapacityError, NodeUnreachable):
        raise
    except CellwallError as error:
        answer = answers.code_failure(str(error))
    await exchange.answer(visit.request, answer)


async def _run_jupyter(visit: Visit) -> None:
    body = await validation.read(visit.request, NotebookBody)
    try:
        work = run_notebook(visit.client, body, visit.request.settings.most)
        answer = await visit.request.unless_gone(work)
    except (AccessDenied, CapacityError, NodeUnreachable):
        raise
    except CellwallError as error:
        answer = answers.notebook_answer("SandboxError", None, [], {}, str(error))
    await exchange.answer(visit.request, answer)


async def _ping(request: Request) -> None:
    await exchange.answer(request, "pong")
