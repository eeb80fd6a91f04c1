"""Rules for which audit records may leave the store, and the record of their removal.

Called by `writer`; the deletion is in `store`. The removed part is a beginning of the chain that
was exported, is old enough and is whole; an edited record stays, as evidence. The invariants: the
newest record is never removed, and before any removal a record names the last removed one, with its
hash, so that a check knows where the chain may begin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.server.audit.chain import Malformed, compact, read
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from cellwall.store.records.rows import AuditRow
    from cellwall.store.store import Store

EXPORTED = "audit_exported"
"""The fact of the store that holds the number of the last exported record."""
TRIM = "audit.trim"
_PAGE = 500


class Cut(NamedTuple):
    """Where the chain was cut: the last removed record."""

    seq: int
    hash: bytes
    time: str = ""
    """When the cut was decided."""


async def due(store: Store, before: float) -> AuditRow | None:
    """Return the last removable record made before `before` (seconds since 1970), or None."""
    head = await store.audit_head()
    exported = await store.fact(EXPORTED)
    if head is None or exported is None:
        return None
    most, moment = min(int(exported), head.seq - 1), rfc3339(before)
    found: AuditRow | None = None
    while rows := await store.audit(found.seq if found else 0, _PAGE):
        for row in rows:
            if row.seq > most or not _is_before(row, moment):
                return found
            found = row
    return found


def _is_before(row: AuditRow, moment: str) -> bool:
    try:
        found = read(row.record)
    except Malformed:
        return False
    return bool(found.hash == row.hash and found.values["time"] < moment)


def details_of(cut: AuditRow) -> str:
    """Return the details of the record of a cut."""
    return compact({"to": cut.seq, "hash": cut.hash.hex()})


def cut_of(values: Mapping[str, Any]) -> Cut | None:
    """Return the cut that a record is about, or None."""
    if values["action"] != TRIM or values["actor"] != "server":
        return None
    try:
        said = json.loads(values["details"])
        return Cut(int(said["to"]), bytes.fromhex(said["hash"]), str(values["time"]))
    except (ValueError, KeyError, TypeError):
        return None
