"""What only PostgreSQL can do to a store: go away and come back, answer nothing to a commit."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from cellwall.store.postgres.database import PostgresDatabase
from cellwall.store.records.changes import Accept
from cellwall.store.records.errors import StoreBroken, StoreBusy, StoreConflict
from cellwall.store.store import Store
from kit.postgres_server import Postgres, another
from kit.stores import chained, execution, opened


@pytest.fixture(scope="module")
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may crash; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


@pytest.mark.timeout(200)  # two crashes, each with the server's own recovery
def test_crash_of_the_server_loses_and_doubles_nothing(own: Postgres) -> None:
    async def run() -> None:
        async with opened(own.database(), wait_s=40, sole=True) as store:
            await store.write(Accept(execution(1)), chained(b"1"))
            numbers = iter(range(2, 10_000))
            told: list[int] = []
            is_over = asyncio.Event()

            async def write() -> None:
                for number in numbers:
                    if is_over.is_set():
                        return
                    await store.write(Accept(execution(number)), chained(b"%d" % number))
                    told.append(number)

            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(write())
                for _ in range(2):
                    before = len(told)
                    await asyncio.to_thread(own.stop, signal.SIGQUIT)
                    own.start()  # on this thread, whose end would be its own
                    while len(told) < before + 20:
                        await store.audit_head()
                is_over.set()
            assert [row.seq for row in await store.queued(0, 20_000)] == [1, *sorted(told)]
            assert len(await store.audit(0, 20_000)) == len(told) + 1

    asyncio.run(run())


_NUMBER = "SELECT pg_current_xact_id()::text"


@pytest.mark.parametrize("is_written", [True, False], ids=["committed", "aborted"])
def test_commit_without_an_answer_is_asked_about(
    own: Postgres, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """The connection breaks around COMMIT: whether it came through decides, not a guess."""
    from sqlalchemy.ext.asyncio import AsyncConnection

    commit, broken = AsyncConnection.commit, 0

    async def break_once(self: AsyncConnection) -> None:
        nonlocal broken
        if broken == 0:
            broken = 1
            if is_written:
                await commit(self)
            with contextlib.suppress(Exception):
                await self.invalidate()
            raise ConnectionResetError
        await commit(self)

    async def run() -> None:
        async with opened(own.database()) as store:
            monkeypatch.setattr(AsyncConnection, "commit", break_once)
            await store.write(chained(b"once"))
            assert broken == 1
            assert [row.record for row in await store.audit(0, 9)] == [b"once"]
            assert store.statistics().retried == (0 if is_written else 1)

    asyncio.run(run())


@pytest.mark.parametrize("is_reused", [False, True], ids=["lost", "reused"])
def test_number_that_a_crash_lost_is_no_commit(
    own: Postgres, monkeypatch: pytest.MonkeyPatch, is_reused: bool
) -> None:
    """A crash takes the transaction and its number, which another transaction then has."""
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncConnection

    commit = AsyncConnection.commit
    numbers: list[int] = []
    given: list[int] = []

    async def crash_once(self: AsyncConnection) -> None:
        if numbers:
            return await commit(self)
        numbers.append(int((await self.execute(text(_NUMBER))).scalar_one()))
        await asyncio.to_thread(own.stop, signal.SIGQUIT)
        own.start()  # on this thread, whose end would be its own
        while is_reused and (not given or given[-1] < numbers[0]):
            given.append(int(own.sql(_NUMBER)))
        with contextlib.suppress(Exception):
            await self.invalidate()
        raise ConnectionResetError

    async def run() -> None:
        async with opened(own.database(), wait_s=40) as store:
            monkeypatch.setattr(AsyncConnection, "commit", crash_once)
            await store.write(chained(b"once"))
            assert not is_reused or given[-1] == numbers[0]
            assert [row.record for row in await store.audit(0, 9)] == [b"once"]
            assert store.statistics().retried == 1

    own.sql("ALTER SYSTEM SET wal_writer_delay = '10s'")  # else it may save the number
    own.sql("SELECT pg_reload_conf()")
    try:
        asyncio.run(run())
    finally:
        own.sql("ALTER SYSTEM RESET wal_writer_delay")
        own.sql("SELECT pg_reload_conf()")


def test_mark_of_a_writer_ends_with_it(postgres: Postgres) -> None:
    url = postgres.database()
    name = str(make_url(url).database)
    marks = "SELECT count(*) FROM facts WHERE name LIKE 'commit:%'"

    async def run() -> str:
        async with opened(url) as store:
            await store.write(Accept(execution(1)))
            await store.write(Accept(execution(2)))
            return postgres.sql(marks, name).strip()

    assert asyncio.run(run()) == "1"
    assert postgres.sql(marks, name).strip() == "0"


def test_server_that_stays_away_is_busy_then_back(own: Postgres) -> None:
    async def run() -> None:
        async with opened(own.database(), wait_s=0.6) as store:
            await store.write(Accept(execution(1)))
            await asyncio.to_thread(own.stop)
            with pytest.raises(StoreBusy):
                await store.write(Accept(execution(2)))
            with pytest.raises(StoreBusy):
                await store.execution("ex1")
            own.start()  # on this thread, whose end would be its own
            assert await store.execution("ex1") == execution(1)
            assert await store.execution("ex2") is None
            await store.write(Accept(execution(2)))

    asyncio.run(run())


def test_server_whose_place_was_taken_writes_nothing_any_more(postgres: Postgres) -> None:
    url = postgres.database()

    async def run() -> None:
        async with opened(url, sole=True) as first:
            await first.write(Accept(execution(1)))
            postgres.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            )
            async with opened(url, sole=True) as second:
                for _ in range(2):
                    with pytest.raises(StoreConflict, match="another server"):
                        await first.write(Accept(execution(2)))
                await second.write(Accept(execution(3)))
            await first.write(Accept(execution(4)))
            assert [row.seq for row in await first.queued(0, 9)] == [1, 3, 4]

    asyncio.run(run())


def test_server_that_does_not_wait_for_its_disk_is_refused(own: Postgres) -> None:
    url = own.database()
    own.sql("ALTER SYSTEM SET fsync = off")
    own.sql("SELECT pg_reload_conf()")
    try:
        with pytest.raises(StoreBroken, match="fsync = on"):
            asyncio.run(Store.open(url))
    finally:
        own.sql("ALTER SYSTEM RESET fsync")
        own.sql("SELECT pg_reload_conf()")


def test_asynchronous_commit_of_the_role_does_not_reach_us(postgres: Postgres) -> None:
    url = postgres.database()
    name = make_url(url).database
    postgres.sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    assert postgres.sql("SHOW synchronous_commit", str(name)).strip() == "off"

    async def run() -> str:
        from sqlalchemy import text

        database = await PostgresDatabase.open(make_url(url))
        try:
            show = text("SHOW synchronous_commit")
            return await database.write(lambda c: str(c.execute(show).scalar()))
        finally:
            await database.aclose()

    assert asyncio.run(run()) == "on"


def test_missing_database_is_named_without_the_password(postgres: Postgres) -> None:
    url = make_url(postgres.database()).set(database="nowhere", password="hidden")
    with pytest.raises(StoreBroken, match="nowhere") as caught:
        asyncio.run(Store.open(url.render_as_string(hide_password=False)))
    assert "hidden" not in str(caught.value)
