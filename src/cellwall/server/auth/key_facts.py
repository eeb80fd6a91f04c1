"""What is asked of a new API key, and what may be shown of one that is kept.

The same for a server, which keeps its keys in its store (`stored_keys`), and for gateways, which
keep theirs in their directory. The invariant: a key in clear is in `Fresh` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import UsageError
from cellwall.server.auth.keys import KEY_ID_LENGTH, KeyRecord, digest_of, new_key
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from cellwall.store.records.rows import KeyRow

_LONGEST_NAME = 64
_LONGEST_LIFE_S = 100 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Fresh:
    """A key that nothing knows yet."""

    record: KeyRecord
    key: str = field(repr=False)
    name: str | None
    life_s: float | None
    """Seconds; None: until it is revoked."""


def fresh(tenant: str, scope: str, name: str | None, life_s: float | None) -> Fresh:
    """Return a new key for a tenant. Raises UsageError."""
    if name is not None and not (0 < len(name) <= _LONGEST_NAME and name.isprintable()):
        raise UsageError(
            f"keys: a name has 1 to {_LONGEST_NAME} printable characters", remedy="shorten it"
        )
    if life_s is not None and not 0 < life_s <= _LONGEST_LIFE_S:
        raise UsageError(
            f"keys: a life of {life_s:g} s cannot be",
            remedy="give one of up to 100 years, or none at all",
        )
    key = new_key()
    record = KeyRecord(digest_of(key), tenant, scope)  # type: ignore[arg-type]  # it checks scopes
    return Fresh(record, key, name, life_s)


def record_of(row: KeyRow) -> KeyRecord:
    """Return the ring's record of a kept key; `UsageError` if the row is not valid."""
    return KeyRecord(row.digest, row.tenant, row.scope, row.expires_at)  # type: ignore[arg-type]  # it checks scopes


def shown(row: KeyRow) -> dict[str, Any]:
    """Return a key's public description for lists of keys; never the key."""
    return {
        "id": row.digest[:KEY_ID_LENGTH],
        "tenant": row.tenant,
        "scope": row.scope,
        "name": row.name,
        "created_at": rfc3339(row.created_at),
        "expires_at": None if row.expires_at is None else rfc3339(row.expires_at),
        "revoked_at": None if row.revoked_at is None else rfc3339(row.revoked_at),
    }


def configured(record: KeyRecord) -> dict[str, Any]:
    """Return the same of a key that is in the settings."""
    return {
        "id": record.key_id,
        "tenant": record.tenant,
        "scope": record.scope,
        "name": None,
        "created_at": None,
        "expires_at": None if record.expires_at is None else rfc3339(record.expires_at),
        "revoked_at": None,
        "source": "configuration",
    }
