"""Classification of a driver's exception: one of five kinds, which tells who is at fault.

The functions are pure. The kind is read from codes, never from messages: SQLite's result codes,
PostgreSQL's SQLSTATE. An unknown error is called `change`, so that its write is tried apart from
its neighbours and only its own caller gets it; the price is one more failure if the database itself
was the reason.
"""

from __future__ import annotations

import sqlite3
from typing import Literal

from sqlalchemy.exc import DBAPIError, IntegrityError

from cellwall.model.errors import CellwallError
from cellwall.store.records.errors import StoreBroken, StoreBusy, StoreConflict, StoreFull

Kind = Literal["busy", "lost", "full", "broken", "change"]

_RETRY_S = 5.0

# https://www.sqlite.org/rescode.html; the low byte is the primary code.
_SQLITE: dict[int, Kind] = {
    5: "busy",  # BUSY
    6: "busy",  # LOCKED
    8: "broken",  # READONLY
    10: "broken",  # IOERR
    11: "broken",  # CORRUPT
    13: "full",  # FULL
    14: "broken",  # CANTOPEN
    26: "broken",  # NOTADB
}
# A quota (EDQUOT) or a file limit (EFBIG) is no ENOSPC to SQLite, but it is for the operator.
_SQLITE_EXTENDED: dict[int, Kind] = {
    778: "full",  # IOERR_WRITE
    4874: "full",  # IOERR_SHMSIZE
}
# https://www.postgresql.org/docs/current/errcodes-appendix.html, by class or whole.
_POSTGRES: dict[str, Kind] = {
    "08": "lost",
    "57": "lost",
    "40": "busy",
    "53": "busy",
    "55": "busy",
    "53100": "full",
    "58": "broken",
    "XX": "broken",
}


def kind_of(error: Exception) -> Kind:
    """Return the kind of the error."""
    if isinstance(error, OSError):
        return "lost"  # no connection: refused, reset, timed out, no such socket
    cause: object = error
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return "lost"
        cause = error.orig
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE_EXTENDED.get(code) or _SQLITE.get(code & 0xFF, "change")
    state = getattr(cause, "sqlstate", None) or ""
    return _POSTGRES.get(state) or _POSTGRES.get(state[:2], "change")


def busy(step: str, after_s: float) -> StoreBusy:
    """Return the error of a write that waited too long, or could not wait at all."""
    return StoreBusy(
        f"{step}: the database did not take it within {after_s:g} s",
        retry_after_s=_RETRY_S,
        remedy="try again; if it lasts, see who locks the database and how slow its disk is",
    )


def claimed(name: str) -> StoreConflict:
    """Return the error of a server whose database another server has claimed."""
    return StoreConflict(
        f"open {name}: another server uses it",
        remedy="stop that one, or give each a database of its own",
    )


def answer_to(step: str, error: Exception) -> Exception:
    """Return the exception that the caller of `step` gets instead of the driver's."""
    if isinstance(error, CellwallError):
        return error
    if isinstance(error, (IntegrityError, sqlite3.IntegrityError)):
        return StoreConflict(f"{step}: there is a row of that name", remedy="use a fresh id")
    kind = kind_of(error)
    if kind in ("busy", "lost"):
        return StoreBusy(
            f"{step}: the database does not answer",
            retry_after_s=_RETRY_S,
            remedy="try again; if it lasts, look at the database's own log",
        )
    if kind == "full":
        return StoreFull(
            f"{step}: no space for the database",
            retry_after_s=_RETRY_S,
            remedy="free space where it lies, or raise the quota or file limit",
        )
    if kind == "broken" or isinstance(error, (DBAPIError, sqlite3.Error)):
        cause = error.orig if isinstance(error, DBAPIError) else error
        return StoreBroken(
            f"{step}: the database failed: {cause}",
            remedy="look at the disk and the system's log; restore a backup if it is damaged",
        )
    return error
