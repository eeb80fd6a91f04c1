"""Running requests per key and tenant: they end with their key, and no tenant has all connections.

A key is checked when a request comes; streams, terminals and forwarded connections then live for
hours. Twice a second, the requests whose key is no longer accepted are cut, as if their client had
disconnected: the work they began goes on or ends by its own `on_disconnect`. Behind a proxy an
address does not identify a caller, so the bound is per tenant. The invariant: the count of a
running request is given back once, when the request has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.engine.scheduling.quotas import Tenants
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.core.request import Request

_log = logging.getLogger("cellwall.server")
_LOOK_EVERY_S = 0.5


class Connections:
    """Counts running requests and cuts those of revoked keys; see the module. One per server."""

    def __init__(self, ring: KeyRing, tenants: Tenants) -> None:
        self._ring = ring
        self._tenants = tenants
        self._requests: dict[str, set[Request]] = {}

    def __len__(self) -> int:
        """Return the number of running requests with a key."""
        return sum(map(len, self._requests.values()))

    def begun(self, request: Request) -> None:
        """Register a request that came on a connection; a request without a key is not registered.

        Raises `QuotaExceeded` if its tenant has too many running requests.
        """
        if request.principal is not None:
            self._count(request, request.principal.tenant)
            self.begun_inside(request)

    def begun_inside(self, request: Request) -> None:
        """Register a request made by another one; it is not counted, because the other is."""
        if request.principal is not None:
            self._requests.setdefault(request.principal.key_id, set()).add(request)

    def lent(self, request: Request, tenant: str, key_id: str) -> None:
        """Register a request opened by a token, which the tenant's key with that id has signed.

        Raises as `begun`.
        """
        if request.principal is None:
            self._count(request, tenant)
            request.lender = key_id
            self._requests.setdefault(key_id, set()).add(request)

    def _count(self, request: Request, tenant: str) -> None:
        request.counted = self._tenants.check_connection(tenant)
        request.counted.connections += 1

    def ended(self, request: Request) -> None:
        """Forget a request and give its count back."""
        if request.counted is not None:
            request.counted.connections -= 1
            request.counted = None
        key_id = request.lender if request.principal is None else request.principal.key_id
        if key_id is None:
            return
        requests = self._requests.get(key_id, set())
        requests.discard(request)
        if not requests:
            self._requests.pop(key_id, None)

    def cut(self) -> int:
        """Cut the requests whose keys are no longer accepted; return their number."""
        if not self._requests:
            return 0
        gone = {each for each in self._requests if not self._ring.is_accepted(each)}
        requests = [request for key_id in gone for request in self._requests[key_id]]
        for request in requests:
            request.abort()
        if requests:
            _log.warning(
                "cut %d requests under way: their keys (%s) are no longer accepted",
                len(requests),
                ", ".join(sorted(gone)),
            )
        return len(requests)

    async def watch(self) -> None:
        """Call `cut` repeatedly, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.cut()
