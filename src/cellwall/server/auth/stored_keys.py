"""API keys in the store: made, listed, revoked, and known to a running server within a second.

Called by the routes of keys, by `cellwall keys` and by the server's start. The check of a key is in
`keys`. The invariants: a key in clear is returned once by `create` and is nowhere else; a key that
is revoked in the store is not accepted, whichever process revoked it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cellwall.model.errors import CellwallError, NotFound
from cellwall.server.audit.chain import Entry, appending, compact
from cellwall.server.auth.key_facts import fresh, record_of
from cellwall.server.core.request_context import ORIGIN
from cellwall.server.core.times import rfc3339
from cellwall.server.observability.redaction import Redactor
from cellwall.store.records.changes import AppendAudit, PutKey, RevokeKey
from cellwall.store.records.rows import KeyRow

if TYPE_CHECKING:
    from cellwall.server.auth.keys import KeyRing
    from cellwall.store.store import Store

_log = logging.getLogger("cellwall.server")
_LOOK_EVERY_S = 0.5


def accepted(rows: Iterable[KeyRow], now: float) -> list[KeyRow]:
    """Return the rows neither revoked nor expired; `now` in seconds since the epoch."""
    return [
        row
        for row in rows
        if row.revoked_at is None and (row.expires_at is None or row.expires_at > now)
    ]


async def create(
    store: Store, tenant: str, scope: str, name: str | None, life_s: float | None
) -> tuple[KeyRow, str]:
    """Return a new key's row, which is durable, and the key itself, which is kept nowhere.

    `life_s` in seconds; None: until it is revoked. Raises `UsageError`, and the errors of the
    store.
    """
    made, now = fresh(tenant, scope, name, life_s), time.time()
    expires_at = None if life_s is None else now + life_s
    row = KeyRow(made.record.digest, tenant, scope, name, now, expires_at)
    await store.write(PutKey(row), _on_record("key.create", row))
    return row, made.key


async def revoke(store: Store, key_id: str) -> KeyRow:
    """Revoke the key of that id and return its row as it was before; idempotent.

    Raises `NotFound`, and the errors of the store.
    """
    for row in await store.keys():
        if row.digest[:12] == key_id:
            await store.write(RevokeKey(row.digest, time.time()), _on_record("key.revoke", row))
            return row
    raise NotFound(f"key {key_id[:64]!r}: there is none", remedy="list them: cellwall keys ls")


def _on_record(action: str, row: KeyRow) -> AppendAudit:
    """Return the audit record of a change of keys, for the same transaction.

    The request has a record of its own besides, with the key that asked for the change.
    """
    expires_at = None if row.expires_at is None else rfc3339(row.expires_at)
    facts = {"scope": row.scope, "name": row.name, "expires_at": expires_at}
    entry = Entry(
        time=time.time(),
        mono_ns=time.monotonic_ns(),
        tenant=row.tenant,
        actor="cli" if ORIGIN.get() is None else "server",
        action=action,
        object=f"key:{row.digest[:12]}",
        details=Redactor().clean(compact(facts)),
    )
    return appending(entry)


class StoredKeys:
    """Keeps a ring of keys in step with the store."""

    def __init__(self, store: Store, ring: KeyRing) -> None:
        self._store = store
        self._ring = ring
        self._version: str | None = None

    async def refresh(self) -> None:
        """Read the keys again if they have changed; raises the errors of the store."""
        version = await self._store.version()
        if version != self._version:
            rows = await self._store.keys()
            self._ring.replace_stored(record_of(row) for row in rows if row.revoked_at is None)
            self._version = version

    async def watch(self) -> None:
        """Refresh twice a second, until cancelled. A store that cannot be read changes nothing."""
        is_failing = False
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self.refresh()
                is_failing = False
            except CellwallError as error:
                if not is_failing:
                    _log.error("keys: what was revoked of late is not known: %s", error)
                is_failing = True
