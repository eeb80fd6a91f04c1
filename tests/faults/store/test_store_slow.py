"""A database that somebody else locks, or whose disk is slow: bounded waiting, no wrong word."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cellwall.store.journal import file as journal
from cellwall.store.records.changes import Accept, Change, Started
from cellwall.store.records.errors import StoreBusy
from cellwall.store.store import Store
from kit.stores import ended, execution, locked, opened, unsealed

WAIT_S = 0.6
WRITERS = 50


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/cellwall.db"


async def timed(store: Store, number: int) -> tuple[float, BaseException | None]:
    begun = time.monotonic()
    try:
        await store.write(Accept(execution(number)))
    except StoreBusy as error:
        return time.monotonic() - begun, error
    return time.monotonic() - begun, None


def test_locked_database_answers_busy_in_time_and_loses_nothing(url: str) -> None:
    async def run() -> None:
        async with opened(url, wait_s=WAIT_S) as store:
            await store.write(Accept(execution(1)), Started("ex1", 1.0))
            with locked(url):
                waits = await asyncio.gather(*(timed(store, n) for n in range(2, 2 + WRITERS)))
                assert await store.queued(0, 9) == []  # reading waits for no writer
            for _, error in waits:
                assert isinstance(error, StoreBusy)
                assert error.retry_after_s > 0
            # The latest may have begun an attempt, of a quarter of a second, at the last moment.
            assert min(wait for wait, _ in waits) >= WAIT_S * 0.9
            await store.write(ended(1), Accept(execution(99)))
            assert [row.seq for row in await store.queued(0, 999)] == [99]
            assert store.statistics().waiting == 0

    asyncio.run(run())


def test_locked_database_costs_no_cpu_and_few_attempts(url: str) -> None:
    async def run() -> tuple[float, int]:
        async with opened(url, wait_s=2.0) as store:
            await store.write(Accept(execution(1)))
            with locked(url):
                before = time.process_time()
                await asyncio.gather(*(timed(store, n) for n in range(2, 2 + WRITERS)))
                return time.process_time() - before, store.statistics().retried

    cpu_s, attempts = asyncio.run(run())
    assert attempts <= 12
    assert cpu_s < 1.0, "of two seconds of waiting"


def test_lock_that_ends_in_time_is_not_noticed(url: str) -> None:
    async def run() -> None:
        async with opened(url, wait_s=50) as store:
            await store.write(Accept(execution(1)))
            with locked(url):
                writes = [asyncio.ensure_future(timed(store, n)) for n in range(2, 2 + WRITERS)]
                while store.statistics().retried < 3:
                    await asyncio.wait(writes, timeout=0.05)
                assert not any(task.done() for task in writes)
            assert [error for _, error in await asyncio.gather(*writes)] == [None] * WRITERS
            assert len(await store.queued(0, 999)) == WRITERS + 1

    asyncio.run(run())


def test_opening_a_locked_database_waits_then_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cellwall.store.sqlite import file as sqlite_file

    asyncio.run(_make(url))
    fast = tuple(p.replace("timeout=10000", "timeout=100") for p in sqlite_file._PRAGMAS)
    monkeypatch.setattr(sqlite_file, "_PRAGMAS", fast)
    with locked(url), pytest.raises(StoreBusy, match="open"):
        asyncio.run(Store.open(url))
    asyncio.run(_make(url))


async def _make(url: str) -> None:
    async with opened(url):
        pass


class SlowDisk:
    """Takes the place of a store's database: a commit ends when the test lets it."""

    def __init__(self, store: Store) -> None:
        self._apply = store._database.apply
        self.may_sync = asyncio.Event()
        self.syncing = asyncio.Event()
        store._database.apply = self.apply  # type: ignore[method-assign]

    async def apply(self, changes: Sequence[Change]) -> None:
        await self._apply(changes)
        self.syncing.set()
        await self.may_sync.wait()


def test_slow_sync_delays_those_under_way_and_refuses_none_of_them(url: str) -> None:
    async def run() -> None:
        async with opened(url, wait_s=0.2) as store:
            disk = SlowDisk(store)
            first = asyncio.ensure_future(timed(store, 1))
            await disk.syncing.wait()
            _, error = await timed(store, 2)
            assert isinstance(error, StoreBusy)
            assert not first.done()
            disk.may_sync.set()
            waited, none = await first
            assert none is None
            assert waited >= 0.2
            assert [row.seq for row in await store.queued(0, 9)] == [1]

    asyncio.run(run())


class StuckDisk:
    """Under a journal and its database: each sync takes `sync_s`, on whatever thread it is."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sync_s = 0.0
        self.waits_of_the_loop = 0
        self._apply = store._database.apply
        monkeypatch.setattr(os, "fdatasync", self._sync)
        monkeypatch.setattr(store._database, "apply", self._commit)

    def _sync(self, _handle: int) -> None:
        self.waits_of_the_loop += 1
        time.sleep(self.sync_s)

    async def _commit(self, changes: Sequence[Change]) -> None:
        await self._apply(changes)
        await asyncio.sleep(self.sync_s)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_stuck_disk_keeps_the_loop_waiting_once(
    url: str, monkeypatch: pytest.MonkeyPatch, *, is_guarded: bool
) -> None:
    """The control believes every commit to be quick."""
    monkeypatch.setattr(journal, "_REST_S", 0.0)
    if not is_guarded:
        monkeypatch.setattr(journal, "_QUICK_COMMIT_S", 3600.0)

    def running(number: int) -> Accept:
        return Accept(execution(number, state="running", body=None, started_at=1.0))

    async def run() -> None:
        async with opened(url, sole=True, seal=unsealed) as store:
            disk = StuckDisk(store, monkeypatch)
            disk.sync_s = 0.1
            for number in range(1, 9):
                await store.write(running(number))
            assert disk.waits_of_the_loop == 1 if is_guarded else disk.waits_of_the_loop > 2
            disk.sync_s, before = 0.0, disk.waits_of_the_loop
            for number in range(9, 99):
                await store.write(running(number))
                if disk.waits_of_the_loop > before:
                    return  # quick again, and so used again
            raise AssertionError("the journal is not used again")

    asyncio.run(run())


def test_write_that_nobody_waits_for_any_more_is_not_made(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            disk = SlowDisk(store)
            first = asyncio.ensure_future(timed(store, 1))
            await disk.syncing.wait()
            second = asyncio.ensure_future(timed(store, 2))
            await asyncio.sleep(0)
            assert store.statistics().waiting == 1
            second.cancel()
            disk.may_sync.set()
            await first
            await store.write(Accept(execution(3)))
            assert [row.seq for row in await store.queued(0, 9)] == [1, 3]

    asyncio.run(run())


def test_queue_of_writes_is_bounded(url: str) -> None:
    async def run() -> None:
        async with opened(url, most_waiting=5) as store:
            disk = SlowDisk(store)
            writes = [asyncio.ensure_future(timed(store, 1))]
            await disk.syncing.wait()
            writes += [asyncio.ensure_future(timed(store, n)) for n in range(2, 9)]
            await asyncio.wait(writes[6:])
            assert [isinstance(task.result()[1], StoreBusy) for task in writes[6:]] == [True] * 2
            disk.may_sync.set()
            await asyncio.gather(*writes)
            assert [row.seq for row in await store.queued(0, 99)] == [1, 2, 3, 4, 5, 6]

    asyncio.run(run())
