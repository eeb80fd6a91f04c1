"""Whose failure it was, read from codes that the drivers really give."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from cellwall.model.errors import CellwallError, UsageError
from cellwall.store.records.driver_errors import Kind, answer_to, kind_of
from cellwall.store.records.errors import StoreBroken, StoreBusy, StoreConflict, StoreFull


class Refused(Exception):
    """What asyncpg raises: an exception with an SQLSTATE."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("as the server said")
        self.sqlstate = sqlstate


class SqliteError(sqlite3.OperationalError):
    """As `sqlite3` raises it; its own code cannot be set from outside."""

    def __init__(self, code: int) -> None:
        super().__init__("as SQLite said")
        self.code = code

    @property
    def sqlite_errorcode(self) -> int:  # type: ignore[override]
        return self.code


def wrapped(cause: Exception) -> DBAPIError:
    return DBAPIError("INSERT", {}, cause)


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (SqliteError(5), "busy", StoreBusy),
        (SqliteError(5 | 1 << 8), "busy", StoreBusy),  # BUSY_RECOVERY
        (SqliteError(13), "full", StoreFull),
        (SqliteError(778), "full", StoreFull),
        (SqliteError(1034), "broken", StoreBroken),  # IOERR_FSYNC
        (SqliteError(11), "broken", StoreBroken),
        (SqliteError(8), "broken", StoreBroken),
        (SqliteError(18), "change", StoreBroken),  # TOOBIG
        (Refused("53100"), "full", StoreFull),
        (Refused("53300"), "busy", StoreBusy),
        (Refused("55P03"), "busy", StoreBusy),
        (Refused("57P01"), "lost", StoreBusy),
        (Refused("08006"), "lost", StoreBusy),
        (Refused("XX001"), "broken", StoreBroken),
        (Refused("22021"), "change", StoreBroken),  # NUL in a text
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_code_says_who_is_to_blame(error: Exception, kind: Kind, told: type[CellwallError]) -> None:
    assert kind_of(wrapped(error)) == kind
    assert kind_of(error) == kind
    answer = answer_to("write", wrapped(error))
    assert type(answer) is told
    assert isinstance(answer, CellwallError)
    assert answer.remedy


def test_connection_that_cannot_be_made_is_lost() -> None:
    assert kind_of(ConnectionRefusedError()) == kind_of(FileNotFoundError()) == "lost"
    gone = DBAPIError("SELECT", {}, Exception(), connection_invalidated=True)
    assert kind_of(gone) == "lost"


def test_our_own_errors_and_bugs_stay_what_they_are() -> None:
    for error in (UsageError("x"), ZeroDivisionError()):
        assert kind_of(error) == "change"
        assert answer_to("write", error) is error
    assert isinstance(answer_to("write", IntegrityError("x", {}, Exception())), StoreConflict)
