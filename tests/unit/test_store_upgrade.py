"""An upgrade of the schema, on every database: all of it or nothing, and no row is lost.

There is one version yet, so these tests make the next one up: the real migrations and one more.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from stores import chained, execution, with_store

import cellwall.store.migrations
from cellwall.store import migration, schema
from cellwall.store.changes import Accept
from cellwall.store.errors import StoreBroken
from cellwall.store.store import Store

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
