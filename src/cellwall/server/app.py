"""Assembly of the ASGI application: guards around a router around the table of routes.

Called by `apps.serve` and by tests, which have the process, the socket and the settings. The
invariant: there is no route outside the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.routing import compile_path

from cellwall.server.core.errors import HttpError
from cellwall.server.http.endpoint import Endpoint, serve
from cellwall.server.http.guards import Guard
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
    import re
    from typing import Any

    from cellwall.server.core.request import Request
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
    """Finds the endpoint of a path and method: fixed paths by lookup, the others by pattern."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._fixed: dict[str, dict[str, Endpoint]] = {}
        patterns: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            where = patterns if "{" in endpoint.path else self._fixed
            where.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        self._patterns: list[tuple[re.Pattern[str], Mapping[str, Any], dict[str, Endpoint]]] = [
            (*compile_path(path)[::2], methods) for path, methods in patterns.items()
        ]

    async def __call__(self, request: Request) -> None:
        """Serve a call."""
        methods = self._find(request)
        method = "WS" if request.scope["type"] == "websocket" else request.scope["method"]
        endpoint = methods.get(method) or methods.get("*")
        if endpoint is None and method == "HEAD":
            endpoint = methods.get("GET")
        if endpoint is None:
            allowed = ", ".join(sorted(methods))
            raise HttpError(
                405,
                "method",
                f"method: {method[:20]} is not for this path",
                remedy=f"use {allowed}",
                headers={"allow": allowed},
            )
        request.route = endpoint.path
        await serve(endpoint, request)

    def _find(self, request: Request) -> Mapping[str, Endpoint]:
        path: str = request.scope["path"]
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        for pattern, convertors, methods in self._patterns:
            found = pattern.match(path)
            if found:
                request.params = {
                    name: convertors[name].convert(value)
                    for name, value in found.groupdict().items()
                }
                return methods
        raise HttpError(404, "not_found", "path: there is nothing", remedy="see /docs")


def create_app(state: State, more: tuple[Endpoint, ...] = ()) -> Guard:
    """Return the application over `state`; `more` are endpoints of a surface built on it."""
    return Guard(state, Router((*ENDPOINTS, *more)))
