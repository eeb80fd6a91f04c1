"""A SQLite file from its path to a checked, migrated, durable database.

`database` calls it on a thread and has the transactions; `prepare` locks the guard meanwhile. The
invariant: a new database appears under its name only when it is whole, and a damaged one is
refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from cellwall.store.records.changes import PutFact
from cellwall.store.records.driver_errors import answer_to, claimed
from cellwall.store.records.errors import StoreBroken
from cellwall.store.records.migration import migrate
from cellwall.store.records.queries import fact
from cellwall.store.records.statements import Mediated
from cellwall.store.records.write_statements import apply
from cellwall.store.sqlite.loss_guard import Guard, locked, sync_folder

LOCK_WAIT_MS = 250
"""Milliseconds of one attempt; the writer tries again until a write's own bound is over."""
_OPEN_WAIT_MS = 10_000
_CACHE_KIB = 8192
_LOG_BYTES = 64 * 1024 * 1024
"""Bytes to which the write-ahead log shrinks after a burst."""
_PRAGMAS: tuple[str, ...] = (
    f"PRAGMA busy_timeout={_OPEN_WAIT_MS}",
    "PRAGMA synchronous=FULL",
    f"PRAGMA cache_size=-{_CACHE_KIB}",
    f"PRAGMA journal_size_limit={_LOG_BYTES}",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
)
_LOG_PAGES = 1000
"""Number of pages after which SQLite folds the log in and begins it anew:
https://www.sqlite.org/pragma.html#pragma_wal_autocheckpoint."""
_OPENED = "opened"


def engine_of(path: Path, begin: str) -> Engine:
    """Return an engine of one connection, whose transactions start with the statement `begin`."""

    def connect() -> sqlite3.Connection:
        # mode=rw: a missing file is an error, never a new empty database.
        made = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            for pragma in _PRAGMAS:
                made.execute(pragma)
        except BaseException:
            made.close()
            raise
        return made

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def prepare(path: Path) -> Engine:
    """Return the writing engine of the database at `path`, made if there is none.

    Raises `StoreBroken` if the database is missing, damaged or of another version, `StoreBusy` if
    another process does not let it go, `StoreFull` if there is no space.
    """
    try:
        with _named(path), locked(path) as guard:
            if not guard.check():
                _make(guard)
            return _open(guard)
    except (DBAPIError, sqlite3.Error) as error:
        raise answer_to(f"open {path}", error) from error


def claim_of(path: Path) -> int:
    """Claim the database for one server; return the descriptor that holds the claim.

    Raises `StoreConflict` if another server has it. Other processes may open the database all the
    same.
    """
    with _named(path):
        name = path.with_name(path.name + ".server")
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise claimed(str(path)) from None
    return handle


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make the folder; turn an `OSError` in the block into an error that names the path."""
    try:
        _make_folder(path.parent)
        yield
    except OSError as error:
        raise StoreBroken(
            f"open {path}: {error.strerror}", remedy="give the store a folder it may write to"
        ) from error


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def _make(guard: Guard) -> None:
    fresh = guard.path.with_name(guard.path.name + ".new")
    for leftover in fresh.parent.glob(fresh.name + "*"):
        leftover.unlink()
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    engine = engine_of(fresh, "BEGIN IMMEDIATE")
    try:
        with engine.begin() as connection:
            migrate(connection, str(guard.path))
    finally:
        engine.dispose()
    handle = os.open(fresh, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    fresh.rename(guard.path)
    sync_folder(guard.path.parent)
    guard.note("closed")


def _open(guard: Guard) -> Engine:
    engine = engine_of(guard.path, "BEGIN IMMEDIATE")
    try:
        _check(engine, guard.path)
        _pragma(engine, "journal_mode=WAL")
        with engine.begin() as connection:
            migrate(connection, str(guard.path))
            # After this commit the log is there and durable, which is the meaning of the mark
            # `open`.
            times = int(fact(connection, _OPENED) or 0) + 1
            apply(Mediated(connection), [PutFact(_OPENED, str(times))])
        guard.note("open")
        _lengthen_log(engine)
        _pragma(engine, f"busy_timeout={LOCK_WAIT_MS}")
    except BaseException:
        with guard.closing():
            engine.dispose()
        raise
    return engine


def _lengthen_log(engine: Engine) -> None:
    """Give the log its blocks now, by a rolled-back transaction too big for the cache.

    A commit that makes the file longer waits for the file system's own journal as well: measured
    0.7-1 ms instead of 0.14. Without space for it the log grows later, or not at all.
    """
    driver = cast(sqlite3.Connection, engine.raw_connection().driver_connection)
    size = _LOG_PAGES * int(driver.execute("PRAGMA page_size").fetchone()[0])
    driver.execute("PRAGMA cache_size=8")
    driver.execute("BEGIN IMMEDIATE")
    with contextlib.suppress(sqlite3.Error):
        driver.execute("CREATE TABLE filler (bytes BLOB)")
        driver.execute("INSERT INTO filler VALUES (zeroblob(?))", (size,))
    driver.rollback()
    driver.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")


def _check(engine: Engine, path: Path) -> None:
    # https://www.sqlite.org/pragma.html#pragma_quick_check: everything but the indexes' content.
    found = _pragma(engine, "quick_check(1)")
    if found != "ok":
        raise StoreBroken(f"open {path}: it is damaged: {found}", remedy="restore a backup")


def _pragma(engine: Engine, setting: str) -> object:
    """Set or read a pragma outside of any transaction, where SQLAlchemy would always begin one."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA {setting}")
        row = cursor.fetchone()
        cursor.close()
        return None if row is None else row[0]
    finally:
        connection.close()
