"""The keys of callers that the directory keeps, in the ring by which this gateway checks requests.

The directory is asked twice a second whether keys have changed, and never on a request's way. The
invariants: a key in clear is in the answer that made it and nowhere else; a directory that is away
changes nothing here; the requests of a key that has gone are told at once (`on_gone`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CellwallError, Conflict, NotFound, UsageError
from cellwall.server.auth.keys import KeyRecord, digest_of, new_key
from cellwall.server.core.times import rfc3339
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cellwall.cluster.directory.keys import Kept, Keys
    from cellwall.server.auth.keys import KeyRing

_LOOK_EVERY_S = 0.5
_AGAIN_S = 0.2
_LONGEST_NAME = 64
_LONGEST_LIFE_S = 100 * 365 * 86_400.0
_log = logging.getLogger("cellwall.gateway")


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
    record = KeyRecord(digest_of(key), tenant, scope)  # type: ignore[arg-type]
    return Fresh(record, key, name, life_s)


class KeyBook:
    """See the module. `begin`, then `watch`."""

    def __init__(self, kept: Keys, ring: KeyRing, on_gone: Callable[[], None]) -> None:
        """`ring` has the keys of the settings; `on_gone`: a key is accepted no longer."""
        self._kept = kept
        self._ring = ring
        self._on_gone = on_gone
        self._version = -1
        self._accepted: set[str] = set()
        self._ends: list[float] = []
        """When keys expire, in seconds since the epoch, the next one first."""

    # -- changes ---------------------------------------------------------------------------

    async def create(self, made: Fresh) -> dict[str, Any]:
        """Keep a new key; return what its maker is shown, with the key. Raises StoreBusy."""
        record = made.record
        row = await self._kept.put(
            record.key_id, record.digest, record.tenant, record.scope, made.name, made.life_s
        )
        await self.refresh()
        return {**shown(row), "key": made.key}

    async def revoke(self, key_id: str) -> bool:
        """Revoke a key; report whether it was not before.

        Raises Conflict for a key of the settings, NotFound, StoreBusy.
        """
        if any(each.key_id == key_id for each in self._ring.fixed):
            raise Conflict(
                f"key {key_id}: it is in the configuration",
                remedy="remove it there, and start each gateway again",
            )
        is_there, is_new = await self._kept.revoke(key_id)
        if not is_there:
            raise NotFound(f"key {key_id[:64]!r}: there is none", remedy="list them: GET /keys")
        await self.refresh()
        return is_new

    async def listed(self) -> list[dict[str, Any]]:
        """Return what may be shown of the directory's keys, oldest first. Raises StoreBusy."""
        _, rows = await self._kept.all()
        return [shown(row) for row in rows]

    # -- the ring --------------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait until the keys are known: no request may be checked before."""
        while True:
            try:
                await self.refresh()
                return
            except StoreBusy:
                await asyncio.sleep(_AGAIN_S)

    async def refresh(self) -> None:
        """Accept the keys that the directory has now. Raises StoreBusy, StoreBroken."""
        version, rows = await self._kept.all()
        if version < self._version:
            return  # a later answer came first
        self._version, now = version, time.time()
        found = records(rows, now)
        self._ring.replace_stored(found)
        every = (*self._ring.fixed, *found)
        self._ends = sorted(each.expires_at for each in every if each.expires_at is not None)
        self._tell_gone()

    def _tell_gone(self) -> None:
        """Tell of keys that were accepted and are no longer."""
        before, self._accepted = self._accepted, self._ring.accepted()
        if before - self._accepted:
            self._on_gone()

    async def watch(self) -> None:
        """Follow the directory for ever."""
        is_failing = False
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if await self._kept.version() != self._version:
                    await self.refresh()
                is_failing = False
            except CellwallError as error:
                if not is_failing:
                    _log.error("keys: what was revoked of late is not known: %s", error)
                is_failing = True
            if self._ends and self._ends[0] <= time.time():
                self._ends.pop(0)
                self._tell_gone()


def records(rows: Iterable[Kept], now: float) -> list[KeyRecord]:
    """Return the ring's records of the keys that are accepted at `now`, in seconds since the epoch.

    A row that cannot be is left out: it opens nothing.
    """
    found = []
    for row in rows:
        if row.revoked_at is not None or (row.left_s is not None and row.left_s <= 0):
            continue
        expires_at = None if row.left_s is None else now + row.left_s
        try:
            found.append(KeyRecord(row.digest, row.tenant, row.scope, expires_at))  # type: ignore[arg-type]
        except UsageError as error:
            _log.error("keys: a row of the directory is not accepted: %s", error)
    return found


def shown(row: Kept) -> dict[str, Any]:
    """Return a key's public description; never the key."""
    return {
        "id": row.digest[:12],
        "tenant": row.tenant,
        "scope": row.scope,
        "name": row.name,
        "created_at": rfc3339(row.made_at),
        "expires_at": None if row.expires_at is None else rfc3339(row.expires_at),
        "revoked_at": None if row.revoked_at is None else rfc3339(row.revoked_at),
        "source": "store",
    }


def configured(record: KeyRecord) -> dict[str, Any]:
    """Return the same of a key of the settings."""
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
