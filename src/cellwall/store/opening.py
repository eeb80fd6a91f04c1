"""From a URL to an open database at the newest version, or a reason why not.

The invariant: a database that was there is never taken for a new one.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from cellwall.model.errors import UsageError
from cellwall.store.database import Database
from cellwall.store.migration import migrate
from cellwall.store.sqlite import SqliteDatabase, engine_of


async def open_database(url: str) -> Database:
    """Open `sqlite:////PATH` or `postgresql+asyncpg://…`.

    Raises `UsageError` for another kind of URL, `StoreBroken` if it cannot be used.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = make_url("unknown://")
    if parsed.drivername == "sqlite" and parsed.database and parsed.database.startswith("/"):
        path = Path(parsed.database)
        await asyncio.to_thread(_prepare, path)
        return SqliteDatabase(path)
    raise UsageError(
        f"open the store: {parsed.drivername!r} is no database we know",
        remedy="give sqlite:////PATH/cellwall.db or postgresql+asyncpg://USER@HOST/NAME",
    )


def _prepare(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    engine = engine_of(path, "BEGIN IMMEDIATE")
    try:
        with engine.begin() as connection:
            migrate(connection, str(path))
    finally:
        engine.dispose()
