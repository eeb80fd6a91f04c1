"""Opening of a journal: records that the database lacks are written to the database first.

Called by `Store.open`. The invariant: no server reads the database, and none writes to the journal,
before the database has every record of it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from cellwall.store.journal.codec import Seal, decoded
from cellwall.store.journal.file import KEY_BYTES, Journal
from cellwall.store.journal.pending import APPLIED, PendingWrites
from cellwall.store.records import queries
from cellwall.store.records.changes import Change, PutFact
from cellwall.store.records.database import Database
from cellwall.store.records.errors import StoreBusy

_KEY = "journal_key"
_MARK = "journal_mark"
"""Name of the fact that is `open` while a server may have records in the journal."""
_AT_ONCE = 200
_LOCK_S = 10.0
_POLL_S = 0.02
_log = logging.getLogger("cellwall.store")


@dataclass(frozen=True, slots=True)
class _Known:
    """State of the journal as the database has it."""

    key: str | None
    applied: int
    is_open: bool


async def open_pending(database: Database, seal: Seal) -> PendingWrites | None:
    """Open the journal beside `database` for the server; None where there can be none.

    Raises `StoreBroken` if it is lost or damaged, `StoreBusy` if another process keeps it locked.
    """
    path = database.journal
    if path is None:
        return None
    known = await database.read(_known)
    key = known.key or secrets.token_hex(KEY_BYTES)
    try:
        journal = await _locked(path, bytes.fromhex(key), is_new=not known.is_open)
    except OSError as error:
        if known.is_open:
            raise
        # for example no space: SQLite's own log is as durable, only slower
        _log.warning(
            "journal: %s; without it every write takes longer, until the next start", error
        )
        return None
    try:
        await database.apply([PutFact(_KEY, key), PutFact(_MARK, "open")])
        applied = await _replay(database, journal, known.applied, seal)
    except BaseException:
        journal.close()
        raise
    return PendingWrites(journal, applied)


async def catch_up(database: Database, seal: Seal) -> None:
    """Apply the journal of a database without a running server; raises as `open_pending`."""
    path = database.journal
    if path is None or not path.exists():
        return
    known = await database.read(_known)
    if not known.is_open or known.key is None:
        return
    journal = Journal.open(path, bytes.fromhex(known.key), is_new=False)
    if journal is None:
        return  # a server has it, and writes its records to the database within a moment
    try:
        await _replay(database, journal, known.applied, seal)
    finally:
        journal.close()


async def retire(database: Database, seal: Seal) -> None:
    """Apply the journal of a server that was killed, for one that does without; as `open_pending`.

    After it the journal's file may go: the database says that it is not needed.
    """
    path = database.journal
    if path is None:
        return
    known = await database.read(_known)
    if not known.is_open or known.key is None:
        return
    journal = await _locked(path, bytes.fromhex(known.key), is_new=False)
    try:
        await _replay(database, journal, known.applied, seal)
        await database.apply([PutFact(_MARK, "closed")])
    finally:
        journal.close()


async def close_pending(database: Database, pending: PendingWrites) -> None:
    """Close the journal; note that it is not needed if the database has everything."""
    try:
        if not pending.is_due:
            await database.apply([PutFact(_MARK, "closed")])
    finally:
        pending.close()


def _known(connection: Connection) -> _Known:
    return _Known(
        queries.fact(connection, _KEY),
        int(queries.fact(connection, APPLIED) or 0),
        queries.fact(connection, _MARK) == "open",
    )


async def _locked(path: Path, key: bytes, *, is_new: bool) -> Journal:
    until = time.monotonic() + _LOCK_S
    while (journal := await asyncio.to_thread(_open, path, key, is_new)) is None:
        if time.monotonic() > until:
            raise StoreBusy(
                f"open {path}: another process has had it for {_LOCK_S:g} s",
                retry_after_s=_LOCK_S,
                remedy=f"see who it is with: fuser {path}",
            )
        await asyncio.sleep(_POLL_S)
    return journal


def _open(path: Path, key: bytes, is_new: bool) -> Journal | None:
    return Journal.open(path, key, is_new=is_new)


async def _replay(database: Database, journal: Journal, applied: int, seal: Seal) -> int:
    records = await asyncio.to_thread(journal.read, applied)
    for at in range(0, len(records), _AT_ONCE):
        group = records[at : at + _AT_ONCE]
        changes: list[Change] = [each for _, data in group for each in decoded(data, seal)]
        applied = group[-1][0]
        await database.apply([*changes, PutFact(APPLIED, str(applied))])
    return applied
