"""Running calls per key and tenant: a call ends with its key, and no tenant has all connections.

A key is checked when a request comes; streams, terminals and forwarded connections then live for
hours. Twice a second, the calls whose key is no longer accepted are cut, as if their client had
disconnected: the work they began goes on or ends by its own `on_disconnect`. Behind a proxy an
address does not identify a caller, so the bound is per tenant. The invariant: the count of a
running call is given back once, when the call has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.engine.scheduling.quotas import Tenants
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.core.request import Call

_log = logging.getLogger("cellwall.server")
_LOOK_EVERY_S = 0.5


class Connections:
    """Counts running calls and cuts those of revoked keys; see the module. One per server."""

    def __init__(self, ring: KeyRing, tenants: Tenants) -> None:
        self._ring = ring
        self._tenants = tenants
        self._calls: dict[str, set[Call]] = {}

    def __len__(self) -> int:
        """Return the number of running calls with a key."""
        return sum(map(len, self._calls.values()))

    def begun(self, call: Call) -> None:
        """Register a call that came on a connection; a call without a key is not registered.

        Raises `QuotaExceeded` if its tenant has too many running calls.
        """
        if call.principal is not None:
            self._count(call, call.principal.tenant)
            self.begun_inside(call)

    def begun_inside(self, call: Call) -> None:
        """Register a call made by another call; it is not counted, because the other one is."""
        if call.principal is not None:
            self._calls.setdefault(call.principal.key_id, set()).add(call)

    def lent(self, call: Call, tenant: str, key_id: str) -> None:
        """Register a call opened by a token, which the tenant's key with that id has signed.

        Raises as `begun`.
        """
        if call.principal is None:
            self._count(call, tenant)
            call.lender = key_id
            self._calls.setdefault(key_id, set()).add(call)

    def _count(self, call: Call, tenant: str) -> None:
        call.counted = self._tenants.check_connection(tenant)
        call.counted.connections += 1

    def ended(self, call: Call) -> None:
        """Forget a call and give its count back."""
        if call.counted is not None:
            call.counted.connections -= 1
            call.counted = None
        key_id = call.lender if call.principal is None else call.principal.key_id
        if key_id is None:
            return
        calls = self._calls.get(key_id, set())
        calls.discard(call)
        if not calls:
            self._calls.pop(key_id, None)

    def cut(self) -> int:
        """Cut the calls whose keys are no longer accepted; return the number of these calls."""
        if not self._calls:
            return 0
        gone = self._calls.keys() - self._ring.accepted()
        calls = [call for key_id in gone for call in self._calls[key_id]]
        for call in calls:
            call.abort()
        if calls:
            _log.warning(
                "cut %d requests under way: their keys (%s) are no longer accepted",
                len(calls),
                ", ".join(sorted(gone)),
            )
        return len(calls)

    async def watch(self) -> None:
        """Call `cut` repeatedly, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.cut()
