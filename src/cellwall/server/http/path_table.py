"""A table of routes: what serves a path and a method, fixed paths by lookup, the others by pattern.

Used by the router of our own protocol and by those of `apps.doors`. The invariant: what is not in
the table is refused, with the methods that the path has if it has any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.routing import compile_path

from cellwall.server.core.errors import HttpError, wrong_method

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from cellwall.server.core.request import Request

_Route = TypeVar("_Route")


class PathTable(Generic[_Route]):
    """Routes by path and method; see the module."""

    def __init__(self, routes: Iterable[tuple[str, str, _Route]], remedy: str) -> None:
        """`routes`: path, method and route of each. `remedy`: for a path that is not here."""
        self._remedy = remedy
        self._fixed: dict[str, dict[str, _Route]] = {}
        patterns: dict[str, dict[str, _Route]] = {}
        for path, method, route in routes:
            where = patterns if "{" in path else self._fixed
            where.setdefault(path, {})[method] = route
        self._patterns: list[tuple[re.Pattern[str], Mapping[str, Any], dict[str, _Route]]] = [
            (*compile_path(path)[::2], methods) for path, methods in patterns.items()
        ]

    def find(self, request: Request) -> _Route:
        """Return the route, and give the request the path's parameters. Raises HttpError."""
        methods = self._methods_of(request)
        method: str = "WS" if request.scope["type"] == "websocket" else request.scope["method"]
        route = methods.get(method) or methods.get("*")
        if route is None and method == "HEAD":
            route = methods.get("GET")
        if route is None:
            raise wrong_method(method, methods)
        return route

    def _methods_of(self, request: Request) -> Mapping[str, _Route]:
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
        raise HttpError(404, "not_found", "path: there is nothing", remedy=self._remedy)
