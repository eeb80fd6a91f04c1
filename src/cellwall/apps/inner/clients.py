"""Clients: our own SDK, bound to this process's server, one for each caller.

Used by the doors: what a foreign request asks for becomes requests of its caller. The invariant: a
client acts for the one principal it was made for, which the guards check for each foreign request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.inner.transport import InnerTransport
from cellwall.client.asynchronous import AsyncClient
from cellwall.client.connection.address import Address
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.server.auth.keys import KeyRing, Principal
    from cellwall.server.core.request import Message, Receive, Send
    from cellwall.server.http.guards import Guard

_TIMEOUT_S = 60.0
_MANY = 256
"""Number of clients from which on those of keys that are no longer accepted are closed."""


class Clients:
    """Clients by caller; see the module. Lives on the server's event loop."""

    def __init__(self, app: Guard, keys: KeyRing) -> None:
        """Clients send their requests to `app`, the whole server, whose keys are `keys`."""
        self._app = app
        self._keys = keys
        self._tasks = Tasks()
        self._made: dict[Principal, AsyncClient] = {}

    async def of(self, caller: Principal) -> AsyncClient:
        """Return the client that acts for `caller`; it stays this object's to close."""
        client = self._made.get(caller)
        if client is None:
            await self._close_old()
            client = self._made[caller] = self._new(caller)
        return client

    async def aclose(self) -> None:
        """End the requests that still run, and close every client."""
        await self._tasks.cancel()
        made, self._made = list(self._made.values()), {}
        for client in made:
            await client.aclose()

    def _new(self, caller: Principal) -> AsyncClient:
        async def serve(
            headers: Mapping[str, str], scope: Message, receive: Receive, send: Send
        ) -> None:
            await self._app.inside(caller, headers, scope, receive, send)

        address = Address("http://localhost")
        transport = InnerTransport(address, _TIMEOUT_S, serve, self._tasks, None)
        return AsyncClient(address, _TIMEOUT_S, transport)

    async def _close_old(self) -> None:
        if len(self._made) < _MANY:
            return
        accepted = self._keys.accepted()
        for caller in [each for each in self._made if each.key_id not in accepted]:
            await self._made.pop(caller).aclose()
