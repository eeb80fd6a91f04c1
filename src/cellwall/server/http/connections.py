"""What is under way for which key and tenant: it ends with the key, and no tenant has it all.

A key is checked when a request comes; streams, terminals and forwarded connections then live for
hours. Twice a second, those whose key is no longer accepted are cut, as if their client had gone:
what they had begun goes on or ends by its own `on_disconnect`. Addresses say nothing of who calls
where a proxy is in front, so the bound is each tenant's. The invariant: what a call that is under
way was counted as is given back once, when it has ended.
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
    """See the module; one per server."""

    def __init__(self, ring: KeyRing, tenants: Tenants) -> None:
        """Nobody is here yet."""
        self._ring = ring
        self._tenants = tenants
        self._calls: dict[str, set[Call]] = {}

    def __len__(self) -> int:
        """Return how many calls with a key are under way."""
        return sum(map(len, self._calls.values()))

    def begun(self, call: Call) -> None:
        """Remember a call that came on a connection; one without a key is nobody's.

        Raises `QuotaExceeded` if too many of its tenant's are under way.
        """
        if call.principal is not None:
            self._count(call, call.principal.tenant)
            self.begun_inside(call)

    def begun_inside(self, call: Call) -> None:
        """Remember a call that another one makes, which is counted."""
        if call.principal is not None:
            self._calls.setdefault(call.principal.key_id, set()).add(call)

    def lent(self, call: Call, tenant: str, key_id: str) -> None:
        """Remember a call that a token opened, which the tenant's key of that id has signed.

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
        """Forget it."""
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
        """Cut what runs for keys that are no longer accepted; return how many those were."""
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
        """Do that for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.cut()
