"""Assembly of the ASGI application: guards around a router around the table of routes.

Called by `apps.serve` and by tests, which have the process, the socket and the settings. The
invariant: there is no route outside the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.server.http.endpoint import Endpoint, serve
from cellwall.server.http.guards import Guard
from cellwall.server.http.path_table import PathTable
from cellwall.server.routes import (
    audit,
    batch,
    checkpoints,
    commands,
    contexts,
    execute,
    executions,
    files,
    health,
    images,
    info,
    keys,
    network,
    packages,
    pages,
    ports,
    quota,
    sandboxes,
    secrets,
    signed,
    snapshots,
    templates,
    terminal,
    tool_calls,
    volumes,
    webhooks,
)

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Face
    from cellwall.server.state import State

_HANDLERS: tuple[Endpoint, ...] = (
    *execute.ENDPOINTS,
    *batch.ENDPOINTS,
    *executions.ENDPOINTS,
    *tool_calls.ENDPOINTS,
    *sandboxes.ENDPOINTS,
    *network.ENDPOINTS,
    *packages.ENDPOINTS,
    *contexts.ENDPOINTS,
    *checkpoints.ENDPOINTS,
    *commands.ENDPOINTS,
    *files.ENDPOINTS,
    *signed.ENDPOINTS,
    *terminal.ENDPOINTS,
    *ports.ENDPOINTS,
    *images.ENDPOINTS,
    *snapshots.ENDPOINTS,
    *volumes.ENDPOINTS,
    *templates.ENDPOINTS,
    *info.ENDPOINTS,
    *audit.ENDPOINTS,
    *quota.ENDPOINTS,
    *webhooks.ENDPOINTS,
    *keys.ENDPOINTS,
    *secrets.ENDPOINTS,
    *health.ENDPOINTS,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_HANDLERS, *pages.Pages(_HANDLERS).endpoints)


class Router:
    """Serves what the table of routes has for a path and method."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        routes = ((each.path, each.method, each) for each in endpoints)
        self._table = PathTable(routes, remedy="see /docs")

    async def __call__(self, request: Request) -> None:
        """Serve a call."""
        endpoint = self._table.find(request)
        request.route = endpoint.path
        await serve(endpoint, request)


def create_app(state: State, more: tuple[Endpoint, ...] = (), face: Face | None = None) -> Guard:
    """Return the application over `state`; `more` are endpoints of a surface built on it.

    `face`: how a listener of its own finds out who asks; None: as ours does.
    """
    return Guard(state, Router((*ENDPOINTS, *more)), face)
