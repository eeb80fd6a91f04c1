"""Vault: the secrets of a store, set, listed, removed, and found for a sandbox by their names.

Called by the routes of secrets, by `cellwall secrets` and by the engine of a server. The invariant:
a value goes in by `put` and comes out by `find` alone, as a `Secret`, for the egress proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import NotFound, UsageError
from cellwall.model.secret import Secret
from cellwall.server.audit.chain import Entry, appending, compact
from cellwall.server.core.request_context import ORIGIN
from cellwall.server.core.times import rfc3339
from cellwall.server.secrets.sealing import KEY_FILE, Seal
from cellwall.store.records.changes import AppendAudit, DropSecret, PutSecret
from cellwall.store.records.rows import SecretRow

if TYPE_CHECKING:
    from cellwall.store.store import Store

_MOST = 1000
"""Most secrets of one tenant."""


class Vault:
    """The secrets of one store."""

    def __init__(self, store: Store, directory: Path, key_file: str = "") -> None:
        """The key is in `key_file`, or in a file of `directory` that is made at the first use."""
        self._store = store
        self._named = Path(key_file) if key_file else None
        self._own = directory / KEY_FILE
        self._seal: Seal | None = None

    async def put(self, tenant: str, secret: Secret) -> SecretRow:
        """Keep a secret, in the place of one with its name. Raises the errors of the store."""
        rows = await self._store.secrets(tenant)
        if len(rows) >= _MOST and all(row.name != secret.name for row in rows):
            raise UsageError(f"secrets: there are {_MOST}, the most", remedy="remove some")
        facts = {"hosts": [*map(str, secret.hosts)], "places": [*secret.places]}
        seal = await self._key()
        sealed = seal.sealed(secret.reveal(), tenant, secret.name, facts)
        row = SecretRow(tenant, secret.name, facts, sealed, time.time())
        await self._store.write(
            PutSecret(row), _on_record("secret.set", tenant, secret.name, facts)
        )
        return row

    async def names(self, tenant: str) -> list[dict[str, Any]]:
        """Return what may be shown of a tenant's secrets."""
        return [shown(row) for row in await self._store.secrets(tenant)]

    async def remove(self, tenant: str, name: str) -> None:
        """Forget a secret; sandboxes that have it keep it until their end. Raises `NotFound`."""
        await self._row(tenant, name)
        await self._store.write(
            DropSecret(tenant, name), _on_record("secret.remove", tenant, name, {})
        )

    async def find(self, tenant: str, names: Sequence[str]) -> list[Secret]:
        """Return secrets by their names. Raises `NotFound`, and `UsageError` for another key."""
        seal = await self._key()
        found = []
        for name in names:
            row = await self._row(tenant, name)
            value = seal.opened(row.sealed, tenant, name, row.facts)
            found.append(Secret(name, value, hosts=row.facts["hosts"], places=row.facts["places"]))
        return found

    async def _row(self, tenant: str, name: str) -> SecretRow:
        for row in await self._store.secrets(tenant):
            if row.name == name:
                return row
        raise NotFound(
            f"secret {name[:100]!r}: there is none", remedy="set it: cellwall secrets set"
        )

    async def _key(self) -> Seal:
        if self._seal is None:
            path, may_make = self._named or self._own, self._named is None
            self._seal = await asyncio.to_thread(Seal.of_file, path, may_make=may_make)
        return self._seal


def shown(row: SecretRow) -> dict[str, Any]:
    """Return what may be shown of a secret: all but its value."""
    return {"name": row.name, **row.facts, "changed_at": rfc3339(row.changed_at)}


def _on_record(action: str, tenant: str, name: str, facts: dict[str, Any]) -> AppendAudit:
    """Return the audit record of a change, for the same transaction."""
    entry = Entry(
        time=time.time(),
        mono_ns=time.monotonic_ns(),
        tenant=tenant,
        actor="cli" if ORIGIN.get() is None else "server",
        action=action,
        object=f"secret:{name}",
        details=compact(facts),
    )
    return appending(entry)
