"""Dify's door: `/v1/sandbox/run`, the packages there are, and health.

Keys come as `X-Api-Key`. `enable_network` and `preload` are not refused, because Dify's client
always sends them; programs have no network, and `preload` is not run, as in the sandbox service's
own default configuration. Dependencies are those of the operator's template and cannot be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange
from cellwall.apps.doors.dify import answers
from cellwall.apps.doors.dify.binding import DEPENDENCIES, RUN, bound
from cellwall.apps.doors.door import PublicRoute, Route, Visit
from cellwall.apps.doors.options import check_none
from cellwall.apps.doors.refusal import send

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.apps.doors.dify.binding import Fields
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find
    from cellwall.server.state import State

WALL_S = 15.0
"""Seconds of wall time, as Dify's compose file sets them (`SANDBOX_WORKER_TIMEOUT`)."""
_LANGUAGES = {"python3": "python", "nodejs": "javascript"}
_DISTRIBUTIONS = """\
import importlib.metadata
for each in importlib.metadata.distributions():
    print(each.metadata["Name"], each.version)
"""
_UNSUPPORTED = "unsupported language"


class Dify:
    """The door; see the module."""

    def __init__(self) -> None:
        """Keep the table of routes."""
        self.routes = (
            Route("POST", "/v1/sandbox/run", _run),
            Route("GET", "/v1/sandbox/dependencies", _dependencies),
            Route("GET", "/v1/sandbox/dependencies/refresh", _dependencies),
            Route("POST", "/v1/sandbox/dependencies/update", _update),
            PublicRoute("GET", "/health", _health),
        )

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks, by `X-Api-Key`."""
        presented = request.headers.get("x-api-key")
        return None if not presented else find(presented)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error; one without a key gets no body, one for an unknown path is text."""
        await send(request, answers.refusal(error))

    async def aclose(self) -> None:
        """Do nothing: there is no state."""


def make_door(state: State, options: Mapping[str, Any]) -> Dify:
    """Make the door."""
    del state
    check_none("dify", options)
    return Dify()


async def _bound(request: Request, fields: Fields) -> dict[str, Any]:
    data = await exchange.body_of(request)
    media_type = request.headers.get("content-type", "")
    if request.scope["method"] == "GET":
        media_type = ""
    query = request.scope.get("query_string", b"").decode("latin-1")
    return bound(fields, media_type, query, data)


async def _run(visit: Visit) -> None:
    asked = await _bound(visit.request, RUN)
    language = _LANGUAGES.get(asked["language"])
    if language is None:
        await exchange.answer(visit.request, answers.failure(-400, _UNSUPPORTED), 400)
        return
    most = visit.request.settings.most
    limits = {"wall_s": min(WALL_S, most.wall_s), "cpu_s": min(WALL_S, most.cpu_s)}
    work = visit.client.arun(asked["code"], language=language, limits=limits)
    execution = await visit.request.unless_gone(work)
    await exchange.answer(visit.request, answers.answer_of(execution))


async def _dependencies(visit: Visit) -> None:
    if not await _is_python(visit):
        return
    execution = await visit.request.unless_gone(visit.client.arun(_DISTRIBUTIONS))
    if not execution.ok:
        await exchange.answer(visit.request, answers.failure(-500, answers.FAILED))
        return
    found = [line.split(" ", 1) for line in sorted(set(execution.stdout.splitlines()))]
    shown = [{"name": each[0], "version": each[1]} for each in found if len(each) == 2]
    await exchange.answer(visit.request, answers.success({"dependencies": shown}))


async def _update(visit: Visit) -> None:
    if not await _is_python(visit):
        return
    why = "dependencies are those of the operator's template: cellwall templates build python"
    await exchange.answer(visit.request, answers.failure(-400, why))


async def _is_python(visit: Visit) -> bool:
    """Report whether the request is about Python's packages; otherwise it was answered."""
    asked = await _bound(visit.request, DEPENDENCIES)
    if asked["language"] == "python3":
        return True
    await exchange.answer(visit.request, answers.failure(-400, _UNSUPPORTED), 400)
    return False


async def _health(request: Request) -> None:
    await exchange.answer(request, "ok")
