"""First key: the key of a server without configured keys, made at its first start, kept as digest.

Called by `serve`. Keys of the configuration are read by `settings_loader`, further keys are made by
`cli.keys`. The invariant: the key in clear exists in the line that is printed once and nowhere
else.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.server.auth.key_facts import record_of
from cellwall.server.auth.keys import KeyRecord, digest_of, new_key
from cellwall.server.auth.stored_keys import accepted, create, revoke
from cellwall.store.records.changes import PutKey
from cellwall.store.records.errors import StoreConflict
from cellwall.store.records.rows import KeyRow

if TYPE_CHECKING:
    from cellwall.server.auth.keys import KeyRing
    from cellwall.store.store import Store

NAME = "first start"
_TENANT = "default"


async def first_key(store: Store | None, ring: KeyRing, *, afresh: bool) -> str | None:
    """Return the key if it was made now, None if there is one already.

    `afresh`: revoke the existing one. Without a store a key lives as long as the server.
    """
    if store is None:
        key = new_key()
        ring.add(KeyRecord(digest_of(key), _TENANT, "admin"))
        return key
    mine = accepted(await store.keys(), time.time())
    if afresh:
        for row in mine:
            if row.name == NAME:
                await revoke(store, row.digest[:12])
    elif any(row.scope == "admin" for row in mine):
        return None
    _, key = await create(store, _TENANT, "admin", NAME, None)
    return key


async def has_own_keys(store: Store | None) -> bool:
    """Report whether a deliberately made key is still accepted."""
    if store is None:
        return False
    return any(row.name != NAME for row in accepted(await store.keys(), time.time()))


async def adopt_file(store: Store, directory: Path) -> None:
    """Move the key file of an older server into the store."""
    path = directory / "server" / "key.json"
    if not path.exists():
        return
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        row = KeyRow(str(kept["sha256"]), _TENANT, "admin", NAME, float(kept.get("made_at", 0)))
        record_of(row)
    except (OSError, ValueError, KeyError, TypeError, UsageError) as error:
        raise UsageError(
            f"key: {path} cannot be read: {error}", remedy="remove it and start with --new-key"
        ) from None
    # an earlier start was killed before it could remove the file
    with contextlib.suppress(StoreConflict):
        await store.write(PutKey(row))
    path.unlink()
