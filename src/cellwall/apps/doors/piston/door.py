"""Piston's door: `/api/v2/execute`, `/runtimes`, `/packages` and `/connect`.

The protocol has no keys; the hosted one took a key as the whole `Authorization` header, under the
prefix `/api/v2/piston`. Clients that send none need `tenant` in the door's settings. Packages are
what the host has, and cannot be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange
from cellwall.apps.doors.door import PublicRoute, Route, Visit
from cellwall.apps.doors.installed import InstalledTools
from cellwall.apps.doors.options import check_none
from cellwall.apps.doors.piston.answers import answer_of, refusal
from cellwall.apps.doors.piston.connect import connect
from cellwall.apps.doors.piston.jobs import BadJob, job_of, named
from cellwall.apps.doors.piston.runtimes import Runtimes
from cellwall.apps.doors.refusal import send
from cellwall.apps.doors.stages import text_of
from cellwall.apps.doors.tool_versions import shown
from cellwall.model.errors import NotFound
from cellwall.server.core.errors import HttpError
from cellwall.server.http.face import presented_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.model.execution import Execution
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find
    from cellwall.server.state import State

_PREFIXES = ("/api/v2", "/api/v2/piston")
_NOT_JSON = "requests must be of type application/json"


class Piston:
    """The door; see the module."""

    def __init__(self, tools: InstalledTools) -> None:
        """Serve the languages of `tools`."""
        self._runtimes = Runtimes(tools)
        routes: list[Route | PublicRoute] = []
        for prefix in _PREFIXES:
            for end in ("", "/"):  # clients end paths either way
                routes += [
                    Route("POST", f"{prefix}/execute{end}", self._execute),
                    Route("WS", f"{prefix}/connect{end}", self._connect),
                    PublicRoute("GET", f"{prefix}/runtimes{end}", self._show_runtimes),
                    PublicRoute("GET", f"{prefix}/packages{end}", self._show_packages),
                    Route("POST", f"{prefix}/packages{end}", self._change_packages),
                    Route("DELETE", f"{prefix}/packages{end}", self._change_packages),
                ]
        routes.append(PublicRoute("GET", "/", _about))
        self.routes = tuple(routes)

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks, by the headers of our own protocol or the whole `Authorization`."""
        presented = presented_key(request) or request.headers.get("authorization")
        return None if not presented else find(presented)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error as `{"message": …}`; a failure of the server has no text."""
        await send(request, refusal(error))

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""

    async def _execute(self, visit: Visit) -> None:
        body = await _body(visit.request)
        name, selector = named(body)
        runtime = await self._runtimes.find(name, selector)
        if runtime is None:
            raise BadJob(f"{name}-{selector} runtime is unknown")
        job = job_of(body, visit.request.settings.most)
        work = visit.client.arun(job.code, **job.options(runtime.language))
        execution = await visit.request.unless_gone(work)
        output = await _output_of(visit, execution)
        await exchange.answer(visit.request, answer_of(execution, runtime, output))

    async def _connect(self, visit: Visit) -> None:
        await connect(visit, self._runtimes)

    async def _show_runtimes(self, request: Request) -> None:
        found = await self._runtimes.all()
        await exchange.answer(request, [each.as_json() for each in found])

    async def _show_packages(self, request: Request) -> None:
        packages = [
            {
                "language": each.name,
                "language_version": shown(each.version),
                "installed": True,
            }
            for each in await self._runtimes.all()
        ]
        await exchange.answer(request, packages)

    async def _change_packages(self, visit: Visit) -> None:
        body = await _body(visit.request)
        asked = (body.get("language"), body.get("version")) if isinstance(body, dict) else (0, 0)
        name, selector = (each if isinstance(each, str) else "" for each in asked)
        if await self._runtimes.find(name, selector) is None:
            text = f"Requested package {name}-{selector} does not exist"
            await exchange.answer(visit.request, {"message": text}, 404)
            return
        is_new = visit.request.scope["method"] == "POST"
        text = "Already installed" if is_new else "packages are the operator's, and stay"
        await exchange.answer(visit.request, {"message": text}, 500)


def make_door(state: State, options: Mapping[str, Any]) -> Piston:
    """Make the door."""
    check_none("piston", options)
    return Piston(InstalledTools(state.tasks))


async def _body(request: Request) -> Any:  # noqa: ANN401 - JSON
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HttpError(415, "content_type", _NOT_JSON)
    data = await exchange.body_of(request)
    try:
        return exchange.decoded(data)
    except ValueError as error:
        raise BadJob(f"the body is not JSON: {error}"[:300]) from None


async def _output_of(visit: Visit, execution: Execution) -> str:
    """Return both streams in the order in which they came, if that is still known."""
    if not execution.stdout or not execution.stderr:
        return execution.stdout or execution.stderr
    apart = execution.stdout + execution.stderr
    try:
        found = await text_of(visit.client.execution(execution.id))
    except NotFound:
        return apart
    return found if len(found) == len(apart) else apart


async def _about(request: Request) -> None:
    await exchange.answer(request, {"message": "Piston API v2, answered by cellwall"})
