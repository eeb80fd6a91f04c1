"""`/mcp` of a server until somebody asks for it: the routes, and the way to the door behind them.

The SDK takes a second to import, which no server should pay that nobody asks. The invariant: what
the guards of the server check is checked before any of it is loaded.
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
    from cellwall.server.core.request import Call
    from cellwall.server.http.guards import Guard
    from cellwall.server.state import State

PATH = "/mcp"
_NEEDED = ("mcp", "httpx")


class Mount:
    """See the module. Made before the application that it is a part of."""

    def __init__(self, state: State) -> None:
        """`app` is set before the first request."""
        self._state = state
        self._door: Door | None = None
        self._opening = asyncio.Lock()
        self.app: Guard | None = None
        """The whole server, of which tools ask what they do."""
        self.endpoints = tuple(
            Endpoint(method, PATH, self.handle, "The Model Context Protocol", {})
            for method in ("POST", "GET", "DELETE")
        )

    async def handle(self, call: Call) -> None:
        """Serve one request of the protocol."""
        await (await self._opened()).handle(call)

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
