"""From a URL to an open database at the newest version, or an error with the reason.

The invariant: a database that was there is never taken for a new one.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cellwall.model.errors import UsageError
from cellwall.store.records.database import Database
from cellwall.store.sqlite.database import SqliteDatabase


async def open_database(url: str, *, sole: bool) -> Database:
    """Open `sqlite:////PATH` or `postgresql+asyncpg://…`.

    Raises `UsageError` for another kind of URL, `StoreBroken` if the database cannot be used,
    `StoreConflict` if another server has it as `sole`.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = make_url("unknown://")
    if parsed.drivername == "sqlite" and parsed.database and parsed.database.startswith("/"):
        return await SqliteDatabase.open(Path(parsed.database), sole=sole)
    if parsed.drivername == "postgresql+asyncpg":
        return await _open_postgres(parsed, sole)
    raise UsageError(
        f"open the store: {parsed.drivername!r} is no database we know",
        remedy="give sqlite:////PATH/cellwall.db or postgresql+asyncpg://USER@HOST/NAME",
    )


async def _open_postgres(url: URL, sole: bool) -> Database:
    if importlib.util.find_spec("asyncpg") is None:
        raise UsageError(
            "open the store: PostgreSQL needs a driver that is not installed",
            remedy="run: pip install 'cellwall[postgres]'",
        )
    from cellwall.store.postgres.database import PostgresDatabase

    return await PostgresDatabase.open(url, sole=sole)
