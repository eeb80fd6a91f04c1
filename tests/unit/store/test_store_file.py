"""A SQLite file that is damaged, lost, older or newer: refused or migrated, never taken for empty.

Every fault has its control: the same image without the fault opens with every row, and where
SQLite itself would have opened the faulty one without a word, a test shows that it does.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import cellwall.store.migrations
from cellwall.store.records import schema
from cellwall.store.records.changes import Accept
from cellwall.store.records.errors import StoreBroken, StoreBusy
from cellwall.store.records.migration import upgrade
from cellwall.store.sqlite.file import engine_of
from cellwall.store.sqlite.loss_guard import locked
from cellwall.store.store import Store
from kit.stores import chained, end_leftover, execution, opened, with_store

ROWS = 300
V0001 = Path(__file__).parent / "data/store_v0001.sql"


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/cellwall.db"


def count(folder: Path) -> int:
    async def work(store: Store) -> int:
        return len(await store.queued(0, 10 * ROWS))

    return with_store(url_of(folder), work)


async def fill(store: Store) -> None:
    for first in range(1, ROWS + 1, 10):
        rows = [execution(n, body=b"x" * 500) for n in range(first, first + 10)]
        await store.write(*(Accept(row) for row in rows), chained(b"%d" % first))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The folder of a store as it is on disk after its server was killed."""

    async def run() -> None:
        async with opened(url_of(tmp_path / "live")) as store:
            await fill(store)
            shutil.copytree(tmp_path / "live", tmp_path / "crashed")

    asyncio.run(run())
    return tmp_path / "crashed"


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The folder of a store that was closed."""
    with_store(url_of(tmp_path / "closed"), fill)
    return tmp_path / "closed"


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def bump(path: Path, version: str = "v9999") -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    connection.close()


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "file gone": (lambda db: db.unlink(), "is gone"),
    "file empty": (lambda db: cut(db, 0), "cut short"),
    "header cut": (lambda db: cut(db, 10), "cut short"),
    "tail cut": (lambda db: cut(db, db.stat().st_size // 2 // 4096 * 4096), "open"),
    "cut inside a page": (lambda db: cut(db, db.stat().st_size - 1000), "open"),
    "header garbage": (lambda db: overwrite(db, 0, b"\xff" * 100), "overwritten"),
    "schema garbage": (lambda db: overwrite(db, 100, b"\xff" * 900), "open"),
    "page garbage": (lambda db: overwrite(db, 5 * 4096, b"\xff" * 4096), "damaged"),
    "newer version": (bump, "version 'v9999'"),
}


def test_control_both_images_open_with_every_row(crashed: Path, closed: Path) -> None:
    assert (crashed / "cellwall.db-wal").stat().st_size > 0
    assert not (closed / "cellwall.db-wal").exists()
    assert count(crashed) == count(closed) == ROWS


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_file_is_refused_with_a_remedy(closed: Path, fault: str) -> None:
    damage, said = FAULTS[fault]
    damage(closed / "cellwall.db")
    before = {path.name: path.read_bytes() for path in closed.iterdir()}
    for _ in range(2):
        with pytest.raises(StoreBroken, match=said) as caught:
            count(closed)
        assert caught.value.remedy
    if (closed / "cellwall.db").exists():
        assert (closed / "cellwall.db").read_bytes() == before["cellwall.db"]


@pytest.mark.parametrize("fault", ["gone", "empty", "header"])
def test_missing_log_of_a_killed_server_is_refused(crashed: Path, fault: str) -> None:
    log = crashed / "cellwall.db-wal"
    match fault:
        case "gone":
            log.unlink()
        case "empty":
            cut(log, 0)
        case _:
            overwrite(log, 8, b"\xff\xff")
    (crashed / "cellwall.db-shm").unlink()
    with pytest.raises(StoreBroken, match=r"cellwall\.db-wal is missing or damaged"):
        count(crashed)


def test_control_sqlite_itself_says_nothing_about_a_missing_log(crashed: Path) -> None:
    (crashed / "cellwall.db-wal").unlink()
    connection = sqlite3.connect(crashed / "cellwall.db")
    found = connection.execute("SELECT count(*) FROM executions").fetchone()[0]
    connection.close()
    assert found < ROWS


def test_missing_log_is_forgiven_when_the_operator_says_so(crashed: Path) -> None:
    (crashed / "cellwall.db-wal").unlink()
    (crashed / "cellwall.db.guard").unlink()
    assert count(crashed) < ROWS


def test_log_without_its_database_is_refused(crashed: Path) -> None:
    (crashed / "cellwall.db").unlink()
    (crashed / "cellwall.db.guard").unlink()
    with pytest.raises(StoreBroken, match="is gone"):
        count(crashed)


def test_backup_put_in_the_place_of_a_closed_store_is_taken(closed: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(closed / "cellwall.db")
    connection.execute("VACUUM INTO ?", (str(tmp_path / "backup"),))
    connection.close()
    (tmp_path / "backup").replace(closed / "cellwall.db")
    assert count(closed) == ROWS


def test_crash_while_it_was_being_made_starts_over(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    for name in ("cellwall.db.new", "cellwall.db.new-journal", "cellwall.db.guard"):
        (folder / name).touch()
    overwrite(folder / "cellwall.db.new", 0, b"half of a database")
    assert count(folder) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["cellwall.db", "cellwall.db.guard"]


def test_everything_in_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with opened(url_of(tmp_path / "deep/state")) as store:
            await fill(store)
            folder = tmp_path / "deep/state"
            return [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())]

    assert asyncio.run(run()) == [0o700, 0o600, 0o600, 0o600, 0o600]


def test_last_one_to_close_says_so_whoever_it_is(tmp_path: Path) -> None:
    async def run(first: int) -> str:
        stores = [await Store.open(url_of(tmp_path)) for _ in range(2)]
        await stores.pop(first).aclose()
        between = (tmp_path / "cellwall.db.guard").read_text().strip()
        await stores.pop().aclose()
        return between

    for first in (0, 1):
        assert asyncio.run(run(first)) == "open"
        assert (tmp_path / "cellwall.db.guard").read_text().strip() == "closed"


def test_opening_waits_for_another_opener_only_so_long(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellwall.store.sqlite.loss_guard._LOCK_S", 0.1)
    with locked(closed / "cellwall.db"), pytest.raises(StoreBusy, match="another process"):
        count(closed)


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreBroken, match="folder"):
        count(tmp_path / "file/state")


# ── versions ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def oldest(tmp_path: Path) -> Path:
    """A state directory as the first version left it, with a row of everything."""
    (tmp_path / "old").mkdir()
    connection = sqlite3.connect(tmp_path / "old/cellwall.db")
    connection.executescript(V0001.read_text())
    connection.close()
    return tmp_path / "old"


def test_store_of_the_oldest_version_opens_with_every_row(oldest: Path) -> None:
    async def work(store: Store) -> None:
        row = await store.execution("ex1")
        assert row is not None
        assert row.answer == {"verdict": "ok"}
        assert len(await store.events("ex1", 0)) == 1
        assert await store.body("ex3") == b"print(3)"
        assert (await store.recover(900.0, end_leftover)).interrupted == ("ex2",)
        assert [len(await store.keys()), len(await store.sandboxes())] == [1, 1]
        assert await store.replay("moss", "once") is not None
        assert [record.record for record in await store.audit(0, 9)] == [b"one", b"two"]
        assert await store.server_id() == "5" * 32

    with_store(url_of(oldest), work)


def test_version_that_nobody_knows_is_refused_and_left_alone(oldest: Path) -> None:
    bump(oldest / "cellwall.db", "v0000")
    with pytest.raises(StoreBroken, match="v0000"):
        count(oldest)
    bump(oldest / "cellwall.db", schema.VERSION)
    assert count(oldest) == 1


def test_tables_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "cellwall.db")
    connection.execute("CREATE TABLE accounts (n)")
    connection.close()
    with pytest.raises(StoreBroken, match="not ours: accounts"):
        count(tmp_path)


def test_version_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(cellwall.store.migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.VERSION]


def test_migrations_lead_to_the_tables_that_are_declared(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    engine = engine_of(tmp_path / "empty.db", "BEGIN")
    with engine.begin() as connection:
        upgrade(connection)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.tables) == []
    engine.dispose()
