"""The audit of a gateway: who asked for what, at which node, and what was refused.

A chain of its own, in a store of its own, by the code of a server's audit; what ran is in the
nodes' chains, under the same ids of requests. Imported only where the operator names a store. The
invariants: an operator's order is on disk before a node hears it; what passes is noted, and costs
its request no wait.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CellwallError
from cellwall.server.audit.chain import Entry, compact
from cellwall.server.core.errors import status_of

if TYPE_CHECKING:
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.routing import Way
    from cellwall.server.audit.writer import Audit
    from cellwall.store.store import Store

_ACCESS = frozenset({401, 403, 429})
"""Statuses of what is refused for who asks."""


class Trail:
    """What one gateway writes down."""

    def __init__(self, audit: Audit, store: Store) -> None:
        """`audit` is open, in that store."""
        self._audit = audit
        self._store = store

    async def page(self, after: int, limit: int) -> dict[str, Any]:
        """Return so many records behind the place `after`, oldest first, as a server shows them."""
        rows = await self._store.audit(after, limit + 1)
        page = rows[:limit]
        records = [{**json.loads(row.record), "hash": row.hash.hex()} for row in page]
        return {"records": records, "next": page[-1].seq if len(rows) > limit else None}

    def passed(
        self, caller: Caller | None, peer: str, way: Way, node: str, status: int, request_id: str
    ) -> None:
        """Note a request that changes something, once its answer is there; 0: there was none."""
        entry = _entry(caller, peer, "request.pass", _object(way), request_id)
        details = compact({"node": node, "status": status})
        self._audit.note(entry._replace(details=details))

    def refused(self, caller: Caller | None, peer: str, error: Exception, request_id: str) -> None:
        """Note a refusal for who asks; repeated ones are summed up."""
        status = status_of(error)
        if status not in _ACCESS:
            return
        code = error.code if isinstance(error, CellwallError) else "internal"
        entry = _entry(caller, peer, "request.refuse", "", request_id)
        details = compact({"status": status, "code": code})
        self._audit.refused_call(entry._replace(decision="refused", result=code, details=details))

    async def ordered(self, caller: Caller | None, peer: str, word: str, node: str) -> None:
        """Write an operator's order to a node. Raises as `Audit.before`."""
        await self._audit.before(_entry(caller, peer, f"node.{word}", f"node:{node}", ""))

    async def changing(
        self,
        caller: Caller | None,
        peer: str,
        request_id: str,
        action: str,
        subject: str,
        facts: dict[str, Any],
    ) -> None:
        """Write a change of what gateways keep, which is about to be made. Raises as `ordered`."""
        entry = _entry(caller, peer, action, subject, request_id)
        await self._audit.before(entry._replace(details=compact(facts)))


def _object(way: Way) -> str:
    """Return what a request is about; a token says nothing of its own here."""
    if way.kind != "object":
        return way.path
    return way.thing if way.thing == "token" else f"{way.thing}:{way.name}"


def _entry(caller: Caller | None, peer: str, action: str, subject: str, request_id: str) -> Entry:
    return Entry(
        time=time.time(),
        mono_ns=time.monotonic_ns(),
        tenant="" if caller is None else caller.principal.tenant,
        actor=f"address:{peer or 'unix'}" if caller is None else caller.principal.key_id,
        action=action,
        object=subject,
        request=request_id,
    )
