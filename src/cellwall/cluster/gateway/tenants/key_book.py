"""The keys of callers that the directory keeps, in the ring by which this gateway checks requests.

The directory is asked twice a second whether keys have changed, and never on a request's way; those
that have are read, and no others. The invariants: a key in clear is in the answer that made it and
nowhere else; a directory that is away changes nothing here; the requests of a key that has gone are
told at once (`on_gone`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.cluster.directory.keys import Version
from cellwall.model.errors import Conflict, NotFound, UsageError
from cellwall.server.auth.key_facts import record_of, shown
from cellwall.server.auth.keys import KEY_ID_LENGTH
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cellwall.cluster.directory.keys import Kept, Keys
    from cellwall.server.auth.key_facts import Fresh
    from cellwall.server.auth.keys import KeyRecord, KeyRing

_LOOK_EVERY_S = 0.5
_AGAIN_S = 0.2
_READ_EVERY_S = 600.0
"""Longest time after which all keys are read again, though none has changed."""
_CLOCK_STEP_S = 1.0
"""A clock that was set by more makes every end of a key another moment."""
_log = logging.getLogger("cellwall.gateway")


class KeyBook:
    """See the module. `begin`, then `watch`."""

    def __init__(self, kept: Keys, ring: KeyRing, on_gone: Callable[[], None]) -> None:
        """`ring` has the keys of the settings; `on_gone`: a key is accepted no longer."""
        self._kept = kept
        self._ring = ring
        self._on_gone = on_gone
        self._version = Version(-1)
        self._reading = asyncio.Lock()
        """Held while the keys are read: their answers come in the order of the questions."""
        self._read_s = self._clock_s = 0.0
        """When they were read, on the loop's clock, and how far the machine's clock was ahead."""
        self._found: dict[str, KeyRecord] = {}
        """The directory's keys that are accepted, by their ids."""
        self._accepted: set[str] = set()
        self._ends: list[float] = []
        """When keys expire, in seconds since the epoch, the next one first."""

    # -- changes ---------------------------------------------------------------------------

    async def create(self, made: Fresh) -> dict[str, Any]:
        """Keep a new key; return what its maker is shown, with the key.

        Raises StoreBusy if it may not be kept; a kept one is answered, whatever comes after.
        """
        record = made.record
        row = await self._kept.put(
            record.key_id, record.digest, record.tenant, record.scope, made.name, made.life_s
        )
        await self._try_follow()
        return {**_shown(row), "key": made.key}

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
        self._accept(gone=[key_id])
        await self._try_follow()
        return is_new

    async def listed(self) -> list[dict[str, Any]]:
        """Return what may be shown of the directory's keys, oldest first. Raises StoreBusy."""
        _, rows = await self._kept.all()
        return [_shown(row) for row in rows]

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
        async with self._reading:
            version, rows = await self._kept.all()
            self._read_s, self._clock_s = asyncio.get_running_loop().time(), _ahead_s()
            found = {each.key_id: each for each in records(rows, time.time())}
            self._accept(found.values(), gone=self._found.keys() - found.keys())
            self._version = version

    async def follow(self) -> None:
        """Take up what has changed since the keys were read. Raises StoreBusy, StoreBroken."""
        async with self._reading:
            changed = await self._kept.since(self._version)
            if changed is not None:
                version, rows = changed
                found = records(rows, time.time())
                ids = {row.digest[:KEY_ID_LENGTH] for row in rows}
                self._accept(found, gone=ids - {each.key_id for each in found})
                self._version = version
                return
        # A directory that was restored is another one.
        await self.refresh()

    async def _try_follow(self) -> None:
        """Read what is changed after a change; while that cannot be, `watch` tries again."""
        with contextlib.suppress(StoreBusy):
            await self.follow()

    def _accept(self, made: Iterable[KeyRecord] = (), gone: Iterable[str] = ()) -> None:
        """Accept keys beside those of the settings and those before, and some no longer."""
        made, gone = list(made), list(gone)
        for key_id in gone:
            self._found.pop(key_id, None)
        self._found.update((each.key_id, each) for each in made)
        self._ring.change_stored(made, gone)
        every = (*self._ring.fixed, *self._found.values())
        self._ends = sorted(each.expires_at for each in every if each.expires_at is not None)
        self._tell_gone()

    def _tell_gone(self) -> None:
        """Tell of keys that were accepted and are no longer."""
        accepted = self._ring.accepted()
        if self._accepted - accepted:
            self._on_gone()
        self._accepted = accepted

    async def watch(self) -> None:
        """Follow the directory for ever, whatever fails."""
        is_failing = False
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self._look()
                is_failing = False
            except Exception as error:  # noqa: BLE001 - keys have to end after a defect, too
                if not is_failing:
                    _log.error("keys: what was revoked of late is not known: %r", error)
                is_failing = True

    async def _look(self) -> None:
        """Read the keys if they have changed, or may end at another moment; tell of ended ones."""
        try:
            if self._is_old():
                await self.refresh()
            elif await self._kept.version() != self._version.number:
                await self.follow()
        finally:
            if self._ends and self._ends[0] <= time.time():
                self._tell_gone()
                self._ends.pop(0)

    def _is_old(self) -> bool:
        """Report whether the keys were read long ago, or the machine's clock was set since."""
        age_s = asyncio.get_running_loop().time() - self._read_s
        return age_s > _READ_EVERY_S or abs(_ahead_s() - self._clock_s) > _CLOCK_STEP_S


def _ahead_s() -> float:
    """Return how far the machine's clock is ahead of the loop's, which nothing sets."""
    return time.time() - asyncio.get_running_loop().time()


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
            found.append(replace(record_of(row), expires_at=expires_at))
        except UsageError as error:
            _log.error("keys: a row of the directory is not accepted: %s", error)
    return found


def _shown(row: Kept) -> dict[str, Any]:
    return {**shown(row), "source": "store"}
