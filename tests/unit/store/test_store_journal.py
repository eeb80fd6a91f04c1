"""The journal in front of SQLite: what it takes is durable, is there once, and is nobody else's.

A crash is a copy of the folder while the store is open and has not written to its database yet;
the control of each is that the database alone lacks what the journal has.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cellwall.store import writer
from cellwall.store.backup import restore, save
from cellwall.store.journal import file as journal
from cellwall.store.journal import group_commit, pending
from cellwall.store.journal.file import BLOCK_BYTES, Journal
from cellwall.store.records.changes import (
    Accept,
    AppendAudit,
    Change,
    DropReplay,
    Ended,
    EndSandbox,
    KeepReplay,
    PutSandbox,
    Started,
)
from cellwall.store.records.errors import StoreBroken, StoreBusy, StoreConflict
from cellwall.store.records.rows import AuditRow
from cellwall.store.store import Store
from kit import loop_clock
from kit.loop_clock import clock
from kit.stores import chunk, ended, execution, replay, sandbox
from kit.waiting import wait_until

KEY = bytes(range(journal.KEY_BYTES))


def seal(words: Sequence[Any]) -> Any:
    record = str(words[0]).encode()

    def make(seq: int, before: bytes) -> AuditRow:
        return AuditRow(seq, record, hashlib.sha256(before + record).digest())

    return make


def audit(text: str) -> AppendAudit:
    return AppendAudit(seal([text]), (text,))


def running(number: int, sandbox_id: str | None = None) -> Accept:
    own: dict[str, Any] = {"state": "running", "body": None, "started_at": 1.0}
    return Accept(execution(number, sandbox_id=sandbox_id, **own))


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/cellwall.db"


async def served(folder: Path, **settings: Any) -> Store:
    return await Store.open(url_of(folder), sole=True, seal=seal, **settings)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database gets nothing by itself; and a loaded machine's disk is no slow disk here."""
    monkeypatch.setattr(writer, "_FLUSH_S", 3600.0)
    monkeypatch.setattr(journal, "_SLOW_S", 60.0)


async def crashed(folder: Path, *writes: Sequence[Change]) -> Path:
    """Return the folder of a server that was killed after `writes`, all taken by its journal."""
    store = await served(folder / "live")
    for changes in writes:
        assert store.take(*changes)
    shutil.copytree(folder / "live", folder / "crashed")
    await store.aclose()
    return folder / "crashed"


async def everything(store: Store, names: Sequence[str]) -> dict[str, Any]:
    rows = await store.audit(0, 10_000)
    before = bytes(32)
    for number, row in enumerate(rows, 1):
        assert (row.seq, row.hash) == (number, hashlib.sha256(before + row.record).digest())
        before = row.hash
    return {
        "executions": [await store.execution(name) for name in names],
        "events": [await store.events(name, 0) for name in names],
        "sandboxes": await store.sandboxes(),
        "replay": await store.replay("moss", "once"),
        "audit": [row.record for row in rows],
    }


EVERY_KIND: list[tuple[Change, ...]] = [
    (running(1), KeepReplay(replay("ex1")), audit("accept 1")),
    (PutSandbox(sandbox("s1")), audit("made")),
    (PutSandbox(sandbox("s2", shown={"text": "a\u0000b\ud800 ünï", "n": 1.5})),),
    (Ended("ex1", 200.0, {"verdict": "ok", "stdout": "ünï\n"}, (chunk(1, 1, 3),)), audit("end 1")),
    (running(2), audit("accept 2")),
    (EndSandbox("s1", 7.0, "deleted"),),
    (Ended("ex2", 201.0, {"n": float("nan")}, (chunk(2, 1, 2),), '{"n":null}'), audit("end 2")),
]


def test_every_kind_of_change_makes_the_rows_it_makes_without_a_journal(tmp_path: Path) -> None:
    async def run() -> None:
        folder = await crashed(tmp_path, *EVERY_KIND)
        plain = await Store.open(url_of(tmp_path / "plain"))
        for changes in EVERY_KIND:
            await plain.write(*changes)
        wanted = await everything(plain, ["ex1", "ex2"])
        await plain.aclose()
        assert wanted["audit"] == [b"accept 1", b"made", b"end 1", b"accept 2", b"end 2"]
        assert wanted["executions"][1].answer == {"n": None}
        without = await Store.open(url_of(folder))
        assert (await everything(without, ["ex1", "ex2"]))["executions"] == [None, None]
        await without.aclose()
        for _ in range(2):  # and once more: nothing is there twice
            store = await served(folder)
            assert await everything(store, ["ex1", "ex2"]) == wanted
            await store.aclose()

    asyncio.run(run())


def test_dropped_key_of_a_call_that_started_nothing_is_free(tmp_path: Path) -> None:
    async def run() -> None:
        end = (ended(1), DropReplay("moss", "once"))
        folder = await crashed(tmp_path, (running(1), KeepReplay(replay("ex1"))), end)
        store = await served(folder)
        assert await store.replay("moss", "once") is None
        await store.aclose()

    asyncio.run(run())


def test_readers_of_the_same_store_see_what_was_taken(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(running(1), audit("accept 1"))
        found = await store.execution("ex1")
        assert found is not None
        assert found.state == "running"
        assert store.take(ended(1))
        assert [row.record for row in await store.audit(0, 9)] == [b"accept 1"]
        await store.aclose()

    asyncio.run(run())


def test_what_comes_all_the_time_waits_until_it_rests_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is not asked between two that come right behind each other."""
    monkeypatch.setattr(writer, "_FLUSH_S", 60.0)
    monkeypatch.setattr(writer, "_FLUSH_MOST_S", 300.0)

    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(running(1), audit("accept"))
        it, now = store._writer, asyncio.get_running_loop().time()
        for first, latest, much, left in (
            (now - 100, now - 20, 3, 40),  # it does not rest yet
            (now - 290, now, 3, 10),  # the first of it has waited for long
            (now - 60, now - 60, 3, 0),
            (now - 300, now, 3, 0),
            (now - 100, now - 20, 2, 0),  # and two are as many as memory should keep
        ):
            monkeypatch.setattr(pending, "_MUCH", much)
            assert it._flush_timer is not None
            it._flush_timer.cancel()
            it._first_taken_at, it._last_taken_at, it._is_flush_due = first, latest, False
            it._on_flush()
            assert it._is_flush_due == (not left)
            if left:
                assert it._flush_timer.when() - now == pytest.approx(left, abs=5)
            else:
                it._arm_flush(60)
        await store.aclose()

    asyncio.run(run())


def test_many_taken_changes_go_into_few_transactions(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        for number in range(1, 301):
            assert store.take(running(number), audit("accept"))
            assert store.take(ended(number), audit("end"))
        pending = store._writer.pending
        assert pending is not None
        await clock().settle()
        assert (pending.is_due, store.statistics().transactions) == (True, 0)
        await clock().advance(writer._FLUSH_S)
        await asyncio.to_thread(wait_until, lambda: not pending.is_due, "the rows are written")
        assert store.statistics().transactions <= 3
        other = await Store.open(url_of(tmp_path))  # a command beside the server
        assert len(await other.audit(0, 1000)) == 600
        await other.aclose()
        await store.aclose()

    loop_clock.run(run())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((Accept(execution(5)),), id="one that waits for its turn"),
        pytest.param((Started("ex5", 1.0),), id="a start, which the rows may refuse"),
        pytest.param((ended(5),), id="an end of what the journal does not know"),
        pytest.param((AppendAudit(seal(["x"])),), id="a record without words"),
        pytest.param((audit("x" * 100_000),), id="a large one"),
    ],
)
def test_what_the_database_may_refuse_or_does_as_well_is_not_taken(
    tmp_path: Path, changes: tuple[Change, ...]
) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(running(1), audit("accept"))
        assert not store.take(*changes)
        await store.aclose()

    asyncio.run(run())


def test_an_end_is_taken_once(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(running(1))
        assert store.take(ended(1))
        assert not store.take(ended(1, "memory"))
        await store.aclose()

    asyncio.run(run())


def test_order_is_kept_while_others_wait_for_the_database(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(audit("1"))
        waiting = asyncio.ensure_future(store.write(Accept(execution(5)), audit("2")))
        await asyncio.sleep(0)
        assert not store.take(audit("3"))
        await store.write(audit("3"))
        await waiting
        assert [row.record for row in await store.audit(0, 9)] == [b"1", b"2", b"3"]
        await store.aclose()

    asyncio.run(run())


# -- a database that cannot be written ---------------------------------------------------------


def test_locked_database_stops_what_is_taken_and_loses_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path, wait_s=0.6)
        assert store.take(running(1), audit("1"))
        other = sqlite3.connect(tmp_path / "cellwall.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            await store.write(Accept(execution(5)), audit("refused"))
        assert not store.take(audit("not promised while it cannot be written"))
        other.execute("ROLLBACK")
        other.close()
        await store.write(audit("2"))
        assert [row.record for row in await store.audit(0, 9)] == [b"1", b"2"]
        assert store.take(ended(1), audit("3"))
        await store.aclose()
        again = await served(tmp_path)
        assert [row.record for row in await again.audit(0, 9)] == [b"1", b"2", b"3"]
        await again.aclose()

    asyncio.run(run())


def test_refused_change_does_not_take_along_what_the_journal_has(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(running(1), audit("1"))
        with pytest.raises(Exception, match="ended before"):
            await store.write(ended(9))
        found = await store.execution("ex1")
        assert found is not None
        await store.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_failing_journal_is_left_for_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """A sync that fails leaves the whole record there, a disk that is full a part of it."""
    real_pwrite = os.pwrite

    def in_part(handle: int, data: bytes, offset: int) -> int:
        return real_pwrite(handle, data[:40], offset)

    async def run() -> None:
        store = await served(tmp_path / "live")
        assert store.take(running(1), audit("1"))
        assert not store.statistics().is_journal_broken

        def failing(_handle: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing if call == "fdatasync" else in_part)
            assert not store.take(ended(1), audit("2"))
        await store.write(ended(1), audit("2"))
        assert not store.take(audit("3"))
        assert store.statistics().is_journal_broken
        assert [each.name for each in caplog.records] == ["cellwall.store"]
        assert "journal: " in caplog.text
        shutil.copytree(tmp_path / "live", tmp_path / "after")
        await store.aclose()
        again = await served(tmp_path / "after")
        assert [row.record for row in await again.audit(0, 9)] == [b"1", b"2"]
        await again.aclose()

    asyncio.run(run())


def test_journal_that_cannot_be_made_is_told_and_missed_by_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The control is the next start, when nothing is in the way of its making."""

    async def run() -> list[bool]:
        taken = []
        for number in (1, 2):
            store = await served(tmp_path)
            taken.append(store.take(running(number), audit("1")))
            if not taken[-1]:
                await store.write(running(number), audit("1"))
                in_the_way.rmdir()
            found = await store.execution(f"ex{number}")
            assert found is not None
            await store.aclose()
        return taken

    in_the_way = tmp_path / "cellwall.db-ahead.new"
    in_the_way.mkdir()
    assert asyncio.run(run()) == [False, True]
    assert [each.name for each in caplog.records] == ["cellwall.store"]
    assert "every write takes longer" in caplog.text


# -- ends that go with another write ---------------------------------------------------------------


@contextlib.asynccontextmanager
async def crowded(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    running_now: int = 8,
    sandbox_id: str | None = None,
) -> AsyncIterator[tuple[Store, list[int]]]:
    """Yield a store in which so many run, and the numbers of the records that its journal took."""
    records: list[int] = []
    write = Journal.write

    def counted(self: Journal, extent: journal.Extent) -> None:
        write(self, extent)
        records.append(extent.number)

    store = await served(folder)
    try:
        for number in range(1, running_now + 1):
            await store.write(running(number, sandbox_id), audit(f"accept {number}"))
        monkeypatch.setattr(Journal, "write", counted)
        yield store, records
    finally:
        await store.aclose()


def end_of(number: int, *, size: int = 0) -> tuple[Change, ...]:
    ended = Ended(f"ex{number}", 200.0 + number, {"verdict": "ok"}, (), "x" * size)
    return ended, audit(f"end {number}")


async def ending(store: Store, number: int) -> asyncio.Task[None]:
    task = asyncio.ensure_future(store.write(*end_of(number)))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    ("running_now", "sandbox_id", "together"),
    [(3, None, True), (2, None, False), (6, "session", True), (5, "session", False)],
)
def test_ends_go_with_the_next_write_while_many_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    running_now: int,
    sandbox_id: str | None,
    together: bool,
) -> None:
    monkeypatch.setattr(group_commit, "_END_WAITS_S", 3600.0)

    async def run() -> None:
        folder = tmp_path / "live"
        async with crowded(folder, monkeypatch, running_now, sandbox_id) as (store, records):
            ends = [await ending(store, number) for number in (1, 2)]
            assert [each.done() for each in ends] == [not together] * 2
            assert store.take(running(9), audit("accept 9")) is not together
            if together:
                await asyncio.wait_for(store.write(running(9), audit("accept 9")), 10)
            await asyncio.wait_for(asyncio.gather(*ends), 10)
            assert len(records) == (1 if together else 3)
            assert store._writer._group_commit is not None
            assert not store._writer._group_commit.is_grouping  # fewer run now
            # Whoever was told finds it there after a crash.
            shutil.copytree(tmp_path / "live", tmp_path / "after")
        again = await served(tmp_path / "after")
        words = [row.record.decode() for row in await again.audit(0, 99)]
        assert words[running_now:] == ["end 1", "end 2", "accept 9"]
        states = [await again.execution(f"ex{number}") for number in (1, 2, 9)]
        assert [each is not None and each.state for each in states] == ["ended"] * 2 + ["running"]
        await again.aclose()

    asyncio.run(run())


def test_end_with_nothing_to_go_with_waits_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with crowded(tmp_path, monkeypatch) as (store, records):
            end = await ending(store, 1)
            assert not records
            await asyncio.wait_for(end, 10)
            assert len(records) == 1

    asyncio.run(run())


def test_no_record_of_many_ends_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "_END_WAITS_S", 3600.0)

    async def run() -> None:
        async with crowded(tmp_path / "live", monkeypatch, running_now=12) as (store, records):
            ends = [
                asyncio.ensure_future(store.write(*end_of(number, size=25_000)))
                for number in range(1, 6)
            ]
            await asyncio.sleep(0)
            await asyncio.wait_for(store.write(running(13), audit("accept 13")), 10)
            await asyncio.gather(*ends)
            assert len(records) == 3  # two ends each, and the last with the start
            await asyncio.wait_for(store.write(*end_of(6, size=group_commit._RECORD_BYTES)), 10)
            assert len(records) == 3  # too large for any: the database has it
            shutil.copytree(tmp_path / "live", tmp_path / "after")
        again = await served(tmp_path / "after")
        words = [row.record.decode() for row in await again.audit(0, 99)][12:]
        assert words == [*(f"end {number}" for number in range(1, 6)), "accept 13", "end 6"]
        await again.aclose()

    asyncio.run(run())


def test_loop_goes_on_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes while a record is on its way goes with the next; nobody is told too soon."""
    let_go = threading.Event()
    sync = os.fdatasync

    def slow(handle: int) -> None:
        let_go.wait(10)
        sync(handle)

    async def run() -> None:
        async with crowded(tmp_path, monkeypatch) as (store, records):
            monkeypatch.setattr(os, "fdatasync", slow)
            first = asyncio.ensure_future(store.write(running(9), audit("accept 9")))
            await asyncio.sleep(0)
            others = [await ending(store, number) for number in (1, 2)]
            direct = asyncio.ensure_future(store.write(Accept(execution(10)), audit("queued 10")))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(each.done() for each in (first, *others, direct))
            let_go.set()
            await asyncio.wait_for(asyncio.gather(first, *others, direct), 10)
            assert len(records) == 1  # the rest went to the database, in front of the last
            words = [row.record.decode() for row in await store.audit(0, 99)]
            assert words[8:] == ["accept 9", "end 1", "end 2", "queued 10"]

    asyncio.run(run())


def test_turn_behind_a_stuck_record_is_waited_for_no_longer_than_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who was refused nor who has gone is written; the control is who waits long enough."""
    let_go = threading.Event()
    sync = os.fdatasync

    def stuck(handle: int) -> None:
        let_go.wait(10)
        sync(handle)

    async def run() -> None:
        async with crowded(tmp_path, monkeypatch) as (store, records):
            monkeypatch.setattr(os, "fdatasync", stuck)
            first = asyncio.ensure_future(store.write(running(9), audit("accept 9")))
            await asyncio.sleep(0)
            gone = asyncio.ensure_future(store.write(running(10), audit("accept 10")))
            await asyncio.sleep(0)
            gone.cancel()
            store._writer.wait_s = 0.05
            with pytest.raises(StoreBusy, match="turn"):
                await asyncio.wait_for(store.write(running(11), audit("accept 11")), 10)
            store._writer.wait_s = 60.0
            last = asyncio.ensure_future(store.write(running(12), audit("accept 12")))
            await asyncio.sleep(0)
            assert not first.done()
            let_go.set()
            await asyncio.wait_for(asyncio.gather(first, last), 10)
            assert len(records) == 2
            words = [row.record.decode() for row in await store.audit(0, 99)]
            assert words[8:] == ["accept 9", "accept 12"]

    asyncio.run(run())


def test_record_that_fails_on_its_way_goes_to_the_database_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_handle: int) -> None:
        raise OSError(5, "Input/output error")

    async def run() -> None:
        async with crowded(tmp_path / "live", monkeypatch) as (store, records):
            monkeypatch.setattr(os, "fdatasync", failing)
            first = asyncio.ensure_future(store.write(running(9), audit("accept 9")))
            await asyncio.sleep(0)
            second = await ending(store, 1)
            await asyncio.wait_for(asyncio.gather(first, second), 10)
            assert not records
            assert store.statistics().is_journal_broken
            shutil.copytree(tmp_path / "live", tmp_path / "after")
        again = await served(tmp_path / "after")
        words = [row.record.decode() for row in await again.audit(0, 99)]
        assert words[8:] == ["accept 9", "end 1"]
        await again.aclose()

    asyncio.run(run())


def test_what_goes_into_the_database_goes_behind_the_ends_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "_END_WAITS_S", 3600.0)

    async def run() -> None:
        async with crowded(tmp_path, monkeypatch) as (store, records):
            end = await ending(store, 1)
            await store.write(Accept(execution(9)), audit("queued 9"))  # the journal takes none
            assert end.done()
            assert not records
            words = [row.record.decode() for row in await store.audit(0, 99)]
            assert words[8:] == ["end 1", "queued 9"]

    asyncio.run(run())


@pytest.mark.parametrize("is_closed", [True, False])
def test_ends_reach_the_database_if_the_journal_fails_or_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    async def run() -> None:
        async with crowded(tmp_path, monkeypatch) as (store, _):
            end = await ending(store, 1)
            if is_closed:
                await store.aclose()
            else:
                monkeypatch.setattr(Journal, "reserve", lambda *_: None)
            await asyncio.wait_for(end, 10)
        again = await served(tmp_path)
        found = await again.execution("ex1")
        assert found is not None
        assert found.state == "ended"
        await again.aclose()

    asyncio.run(run())


# -- the file -----------------------------------------------------------------------------------


def opened(path: Path, key: bytes = KEY) -> Journal:
    made = Journal.open(path, key, is_new=True)
    assert made is not None
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cellwall.db-ahead"


def test_records_are_read_in_order_behind_a_number(file: Path) -> None:
    one = opened(file)
    for number in range(1, 6):
        assert one.append(number, b"%d" % number * 3000)
    assert one.read(0) == [(n, b"%d" % n * 3000) for n in range(1, 6)]
    assert [number for number, _ in one.read(3)] == [4, 5]
    assert one.read(5) == []
    one.close()


def test_another_process_cannot_have_it(file: Path) -> None:
    one = opened(file)
    assert Journal.open(file, KEY, is_new=False) is None
    one.close()
    opened(file).close()


def test_blocks_go_round_and_what_is_needed_is_never_overwritten(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BLOCKS", 16)
    one, kept, number = opened(file), list[int](), 0
    for step in range(300):
        content = bytes([step % 251]) * (BLOCK_BYTES * (step % 4) + 100)
        if one.append(number + 1, content):
            number += 1
            kept.append(number)
        else:
            assert len(kept) > 2
            one.release(kept.pop(0))
        assert [n for n, _ in one.read(kept[0] - 1)] == kept
    assert number > 100
    one.close()


def test_torn_last_record_is_nothing(file: Path) -> None:
    one = opened(file)
    for number in (1, 2):
        assert one.append(number, b"x" * 6000)
    overwrite(file, 2 * BLOCK_BYTES + 5000, bytes(600))
    assert [number for number, _ in one.read(0)] == [1]
    one.close()


def test_missing_record_in_the_middle_is_damage(file: Path) -> None:
    one = opened(file)
    for number in (1, 2, 3):
        assert one.append(number, b"x" * 100)
    overwrite(file, BLOCK_BYTES + 50, b"y")
    with pytest.raises(StoreBroken, match="missing between 0 and 3"):
        one.read(0)
    assert [number for number, _ in one.read(2)] == [3]  # the control: nobody needs the second
    one.close()


@pytest.mark.parametrize("key", [bytes(16), KEY])
def test_output_that_looks_like_a_record_is_none(file: Path, tmp_path: Path, key: bytes) -> None:
    """Only the control, who has the key of the database, writes a record that counts."""
    forger = opened(tmp_path / "forged", key)
    assert forger.append(2, b"forged")
    forger.close()
    forged = (tmp_path / "forged").read_bytes()[:BLOCK_BYTES]
    one = opened(file)
    head = journal._HEAD.size
    assert one.append(1, b"\0" * (BLOCK_BYTES - head) + forged)
    found = [content for number, content in one.read(0) if number == 2]
    assert found == ([b"forged"] if key == KEY else [])
    one.close()


def test_length_beyond_the_file_is_no_record(file: Path) -> None:
    one = opened(file)
    assert one.append(1, b"x")
    overwrite(file, 4, b"\xff\xff\xff\xff")
    assert one.read(0) == []
    one.close()


def test_slow_disk_is_left_alone_for_a_while(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SLOW_S", 0.005)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    one = opened(file)
    assert one.append(1, b"quick")

    def slow(_handle: int) -> None:
        now[0] += 0.02

    monkeypatch.setattr(os, "fdatasync", slow)
    taken = 1
    while one.append(taken + 1, b"slow"):
        taken += 1
        assert taken < 10
    assert taken > 2, "one slow write is no slow disk"
    one.commit_took(0.001)
    assert not one.append(taken + 1, b"too soon")
    now[0] += journal._REST_S
    assert not one.append(taken + 1, b"nobody has said that it is quick again")
    one.commit_took(2 * journal._QUICK_COMMIT_S)
    assert not one.append(taken + 1, b"it is not")
    one.commit_took(journal._QUICK_COMMIT_S / 2)
    assert one.append(taken + 1, b"tried again")
    one.close()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as handle:
        handle.seek(offset)
        handle.write(data)


# -- opening --------------------------------------------------------------------------------------


def test_lost_journal_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    async def run() -> None:
        folder = await crashed(tmp_path, (running(1),))
        (folder / "cellwall.db-ahead").unlink()
        with pytest.raises(StoreBroken, match="it is gone"):
            await served(folder)

    asyncio.run(run())


def test_journal_of_a_closed_store_may_go(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(running(1))
        await store.aclose()
        (tmp_path / "cellwall.db-ahead").unlink()
        again = await served(tmp_path)
        assert await again.execution("ex1") is not None
        assert again.take(running(2))
        await again.aclose()

    asyncio.run(run())


def test_command_beside_a_dead_server_sees_everything(tmp_path: Path) -> None:
    async def run() -> None:
        folder = await crashed(tmp_path, (running(1), audit("1")))
        command = await Store.open(url_of(folder), seal=seal)
        assert [row.record for row in await command.audit(0, 9)] == [b"1"]
        await command.aclose()
        store = await served(folder)
        assert [row.record for row in await store.audit(0, 9)] == [b"1"]
        await store.aclose()

    asyncio.run(run())


def test_command_beside_a_living_server_leaves_its_journal_alone(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path)
        assert store.take(running(1), audit("1"))
        command = await Store.open(url_of(tmp_path), seal=seal)
        assert await command.audit(0, 9) == []
        await command.aclose()
        assert store.take(ended(1), audit("2"))
        assert [row.record for row in await store.audit(0, 9)] == [b"1", b"2"]
        await store.aclose()

    asyncio.run(run())


def test_restored_backup_gets_nothing_out_of_the_journal(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path / "live")
        await store.write(running(1), audit("1"))
        assert await store.execution("ex1") is not None  # the database has it now
        save(tmp_path / "live/cellwall.db", tmp_path / "backup")
        assert store.take(running(2), audit("2"))
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
        await store.aclose()
        restore(tmp_path / "backup", tmp_path / "crashed/cellwall.db")
        again = await served(tmp_path / "crashed")
        assert [row.record for row in await again.audit(0, 9)] == [b"1"]
        assert await again.execution("ex2") is None
        assert again.take(running(3))
        await again.aclose()

    asyncio.run(run())


def test_server_without_a_journal_writes_to_the_database_alone(tmp_path: Path) -> None:
    async def run() -> None:
        store = await served(tmp_path, has_journal=False)
        assert not store.take(running(1), audit("accept 1"))
        await store.write(running(1), audit("accept 1"))
        await store.write(ended(1), audit("end 1"))
        assert store.statistics().transactions == 2
        with pytest.raises(StoreConflict):
            await store.write(ended(1))
        assert not (tmp_path / "cellwall.db-ahead").exists()
        await store.aclose()

    asyncio.run(run())


def test_journal_of_a_killed_server_is_read_by_one_without(tmp_path: Path) -> None:
    async def run() -> None:
        folder = await crashed(tmp_path, *EVERY_KIND)
        names = [f"ex{number}" for number in range(1, 10)]
        other = shutil.copytree(folder, tmp_path / "other")
        with_one = await served(other)
        expected = await everything(with_one, names)
        await with_one.aclose()
        store = await served(folder, has_journal=False)
        assert await everything(store, names) == expected
        (folder / "cellwall.db-ahead").unlink()  # it is not needed any more
        await store.write(running(50), audit("accept 50"))
        await store.aclose()
        again = await served(folder)
        assert again.take(ended(50), audit("end 50")) is False  # the database started it
        assert again.take(running(51), audit("accept 51"))
        await again.aclose()
        last = await served(folder, has_journal=False)
        records = [row.record for row in await last.audit(0, 10_000)]
        assert records == [*expected["audit"], b"accept 50", b"accept 51"]
        await last.aclose()

    asyncio.run(run())


def test_lost_journal_refuses_a_server_without_one_as_well(tmp_path: Path) -> None:
    async def run() -> None:
        folder = await crashed(tmp_path, *EVERY_KIND)
        (folder / "cellwall.db-ahead").unlink()
        with pytest.raises(StoreBroken, match="it is gone"):
            await served(folder, has_journal=False)

    asyncio.run(run())
