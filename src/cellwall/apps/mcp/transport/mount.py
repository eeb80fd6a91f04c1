"""Mount: the routes of `/mcp`, which load the protocol with the first request.

Importing the SDK takes a second, which a server without such requests does not pay. The invariant:
the server's guards check a request before any of it is loaded.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cellwall.server.core.errors import HttpError
from cellwall.server.http.endpoint import Endpoint

if TYPE_CHECKING:
    from cellwall.apps.mcp.transport.http import Door
    from cellwall.server.core.request import Request
    from cellwall.server.http.guards import Guard
    from cellwall.server.state import State

PATH = "/mcp"
_NEEDED = ("mcp", "httpx")


class Mount:
    """Routes of `/mcp`; see the module. Made before the application that contains them."""

    def __init__(self, state: State) -> None:
        """The caller sets `app` before the first request."""
        self._state = state
        self._door: Door | None = None
        self._opening = asyncio.Lock()
        self.app: Guard | None = None
        """The whole server, to which tools send their requests."""
        self.endpoints = tuple(
            Endpoint(method, PATH, self.handle, "The Model Context Protocol", {})
            for method in ("POST", "GET", "DELETE")
        )

    async def handle(self, request: Request) -> None:
        """Serve one request of the protocol."""
        await (await self._opened()).handle(request)

    async def _opened(self) -> Door:
        async with self._opening:
            if self._door is None:
                self._door = await self._open()
        return self._door

    async def _open(self) -> Door:
        missing = [name for name in _NEEDED if find_spec(name) is None]
        if missing:
            raise HttpError(
                501,
                "host_unsupported",
                f"mcp: not installed on this server: {', '.join(missing)}",
                remedy="the operator runs: pip install 'cellwall[server,client,mcp]'",
            )
        if self.app is None:
            raise RuntimeError("mcp: there is no application")
        http = await asyncio.to_thread(import_module, "cellwall.apps.mcp.transport.http")
        door: Door = http.Door(self._state, self.app)
        await door.open()
        return door

    async def aclose(self) -> None:
        """End every session; idempotent."""
        async with self._opening:
            if self._door is not None:
                await self._door.aclose()
