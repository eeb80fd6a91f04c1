"""SQLite: one thread that writes, one that reads, each with a connection of its own.

It does not use aiosqlite, which sends every call of a driver through its thread, five for one
statement, where this module sends a whole transaction at once. WAL mode lets reading wait for no
writer; `synchronous=FULL` makes a commit an fsync of the log. The invariant: after `aclose` the
guard says whether the database is whole in its one file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from sqlalchemy import Connection, Engine

from cellwall.store.records.changes import Change
from cellwall.store.records.database import T, Work
from cellwall.store.records.errors import StoreBusy
from cellwall.store.records.statements import Direct
from cellwall.store.records.write_statements import apply
from cellwall.store.sqlite.file import claim_of, engine_of, prepare
from cellwall.store.sqlite.loss_guard import journal_of, locked


class _Lane:
    """A thread and its connection."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"cellwall-store-{name}")
        self._connection: Connection | None = None
        self._direct: Direct | None = None

    async def run(self, work: Work[T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._transact, work)

    async def apply(self, changes: Sequence[Change]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._apply, changes)

    def _transact(self, work: Work[T]) -> T:
        connection = self._connected()
        with connection.begin():
            return work(connection)

    def _apply(self, changes: Sequence[Change]) -> None:
        direct = self._direct
        if direct is None:
            driver = self._connected().connection.driver_connection
            direct = self._direct = Direct(cast(sqlite3.Connection, driver))
        with direct.connection:  # commits, or rolls back
            direct.connection.execute("BEGIN IMMEDIATE")
            apply(direct, changes)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def close(self) -> None:
        """Close the connection after the running work; blocks."""
        self._thread.shutdown()
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()


class SqliteDatabase:
    """One database file; see `database.Database`."""

    def __init__(self, path: Path, writing: Engine, claim: int | None) -> None:
        """Use `open`; `claim` is a descriptor that is closed last."""
        self._path = path
        self._claim = claim
        self._writer = _Lane(writing, "write")
        self._reader = _Lane(engine_of(path, "BEGIN"), "read")
        self._is_closed = False

    @property
    def journal(self) -> Path:
        """See `Database.journal`."""
        return journal_of(self._path)

    @classmethod
    async def open(cls, path: Path, *, sole: bool = False) -> SqliteDatabase:
        """Open the database, make it if there is none; raises the errors of `file.prepare`.

        `StoreConflict` if another server has it as `sole`.
        """
        return await asyncio.to_thread(cls._open, path, sole)

    @classmethod
    def _open(cls, path: Path, sole: bool) -> SqliteDatabase:
        claim = claim_of(path) if sole else None
        try:
            return cls(path, prepare(path), claim)
        except BaseException:
            if claim is not None:
                os.close(claim)
            raise

    async def write(self, work: Work[T]) -> T:
        """See `Database.write`."""
        return await self._writer.run(work)

    async def apply(self, changes: Sequence[Change]) -> None:
        """See `Database.apply`."""
        await self._writer.apply(changes)

    async def read(self, work: Work[T]) -> T:
        """See `Database.read`."""
        return await self._reader.run(work)

    async def aclose(self) -> None:
        """See `Database.aclose`."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        try:
            with locked(self._path) as guard, guard.closing():
                self._close_lanes()
        except StoreBusy:
            # another process is opening the database, so this is not the last one
            self._close_lanes()
        if self._claim is not None:
            os.close(self._claim)

    def _close_lanes(self) -> None:
        self._reader.close()
        self._writer.close()
