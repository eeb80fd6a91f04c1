"""SQLite: one thread that writes, one that reads, each with a connection of its own.

Not aiosqlite: it sends every call of a driver through its thread, five for one statement, where
we send a whole transaction at once. WAL, so that reading waits for no writer; `synchronous=FULL`,
so that a commit is an fsync of the log. The invariant: the directory is its owner's alone, and
so is every file in it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

T = TypeVar("T")

_LOCK_WAIT_MS = 250
"""One attempt; the writer tries again until a write's own bound is over."""
_PAGES_CACHED_KIB = 8192
_LOG_BYTES = 64 * 1024 * 1024
"""What the write-ahead log shrinks to after a burst."""
_PRAGMAS = (
    f"PRAGMA busy_timeout={_LOCK_WAIT_MS}",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    f"PRAGMA cache_size=-{_PAGES_CACHED_KIB}",
    f"PRAGMA journal_size_limit={_LOG_BYTES}",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
)


def engine_of(path: Path, begin: str) -> Engine:
    """Return an engine of one connection, whose transactions start with the statement `begin`."""

    def connect() -> sqlite3.Connection:
        # mode=rw: a file that is gone is an error, never a new empty database.
        made = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
        )
        for pragma in _PRAGMAS:
            made.execute(pragma)
        return made

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


class _Lane:
    """A thread and its connection."""

    def __init__(self, path: Path, name: str, begin: str) -> None:
        self._engine = engine_of(path, begin)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"cellwall-store-{name}")
        self._connection: Connection | None = None

    async def run(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._engine.connect()
        with self._connection.begin():
            return work(self._connection)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()


class SqliteDatabase:
    """One database file; see `database.Database`."""

    def __init__(self, path: Path) -> None:
        """The file exists and is at the newest version (`opening`)."""
        self._writer = _Lane(path, "write", "BEGIN IMMEDIATE")
        self._reader = _Lane(path, "read", "BEGIN")
        self._is_closed = False

    async def write(self, work: Callable[[Connection], T]) -> T:
        """See `Database.write`."""
        return await self._writer.run(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """See `Database.read`."""
        return await self._reader.run(work)

    async def aclose(self) -> None:
        """See `Database.aclose`."""
        if not self._is_closed:
            self._is_closed = True
            await self._reader.aclose()
            await self._writer.aclose()
