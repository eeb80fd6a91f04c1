"""An upgrade of the schema, on every database: all of it or nothing, and no row is lost.

There is one version yet, so these tests make the next one up: the real migrations and one more.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine

import cellwall.store.migrations
from cellwall.store.records import migration, schema
from cellwall.store.records.changes import Accept
from cellwall.store.records.errors import StoreBroken
from cellwall.store.sqlite.file import engine_of
from cellwall.store.store import Store
from kit.stores import chained, execution, with_store

_NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "v9999"
down_revision = "{before}"

def upgrade():
    op.add_column("executions", sa.Column("note", sa.Text()))
    op.execute("DELETE FROM audit")
    {then}
"""


@pytest.fixture
def filled(store_url: str) -> str:
    """The URL of a store with some rows, at today's version."""

    async def fill(store: Store) -> None:
        await store.write(*(Accept(execution(n)) for n in range(1, 50)), chained(b"one"))

    with_store(store_url, fill)
    return store_url


def next_version(monkeypatch: pytest.MonkeyPatch, folder: Path, then: str = "pass") -> None:
    """Make this cellwall one whose newest version is another, which ends with `then`."""
    shutil.copytree(Path(cellwall.store.migrations.__file__).parent, folder, dirs_exist_ok=True)
    script = _NEXT.format(before=schema.VERSION, then=then)
    (folder / "versions/v9999.py").write_text(script)
    monkeypatch.setattr(migration, "_VERSIONS", folder)
    monkeypatch.setattr(schema, "VERSION", "v9999")


async def rows(store: Store) -> tuple[int, int]:
    return len(await store.queued(0, 100)), len(await store.audit(0, 100))


def test_upgrade_keeps_every_row(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_version(monkeypatch, tmp_path / "next")
    assert with_store(filled, rows) == (49, 0)


def test_upgrade_that_fails_has_done_nothing(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        next_version(patch, tmp_path / "next", "raise ZeroDivisionError")
        with pytest.raises((StoreBroken, ZeroDivisionError)):
            asyncio.run(Store.open(filled))
    assert with_store(filled, rows) == (49, 1)


def test_way_back_is_refused_until_the_newer_one_runs_again(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        next_version(patch, tmp_path / "next")
        with_store(filled, rows)
    with pytest.raises(StoreBroken, match="'v9999', which this cellwall does not know"):
        asyncio.run(Store.open(filled))
    next_version(monkeypatch, tmp_path / "next")
    assert with_store(filled, rows) == (49, 0)


def on(url: str, work: Callable[[Connection], Any]) -> Any:
    """Do `work` in one transaction on a database, made if it is a file that is not there."""

    async def run() -> Any:
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            found = await connection.run_sync(work)
        await engine.dispose()
        return found

    if not url.startswith("sqlite"):
        return asyncio.run(run())
    path = Path(url.removeprefix("sqlite:///"))
    path.parent.mkdir(exist_ok=True)
    path.touch()
    engine = engine_of(path, "BEGIN")
    with engine.begin() as connection:
        found = work(connection)
    engine.dispose()
    return found


def shape(connection: Connection) -> dict[str, Any]:
    """Return all that the database knows of its tables, as text."""
    looked = inspect(connection)
    return {
        name: [
            [str(column) for column in looked.get_columns(name)],
            str(looked.get_pk_constraint(name)),
            sorted(map(str, looked.get_unique_constraints(name))),
            sorted(_index(each) for each in looked.get_indexes(name)),
        ]
        for name in looked.get_table_names()
    }


def _index(found: Any) -> str:
    conditions = {name: str(value) for name, value in found.pop("dialect_options", {}).items()}
    return f"{found} {conditions}"


def test_new_database_has_exactly_what_the_migrations_lead_to(store_url: str) -> None:
    with_store(store_url, lambda store: store.server_id())
    made = on(store_url, shape)
    on(store_url, lambda connection: drop_all(connection, made))
    assert on(store_url, shape) == {}
    on(store_url, migration.upgrade)
    assert on(store_url, shape) == made
    assert len(made) == len(schema.tables.tables) + 1
    assert on(store_url, migration.version_of) == schema.VERSION


def drop_all(connection: Connection, names: dict[str, Any]) -> None:
    for name in names:
        connection.execute(text(f"DROP TABLE {name}"))
