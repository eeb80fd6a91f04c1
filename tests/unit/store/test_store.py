"""The store, on every database it knows: what was written is there, in order, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from dataclasses import replace

import pytest
from sqlalchemy import Engine, event

from cellwall.model.errors import UsageError
from cellwall.model.ids import new_id
from cellwall.store.records.changes import (
    Accept,
    AppendAudit,
    AppendEvents,
    DropReplay,
    Ended,
    EndSandbox,
    KeepReplay,
    PutKey,
    PutSandbox,
    RevokeKey,
    Started,
)
from cellwall.store.records.errors import StoreBroken, StoreConflict
from cellwall.store.records.rows import AuditRow, EventChunk, KeptRow, Leftover
from cellwall.store.store import Store
from kit.stores import (
    chained,
    chunk,
    end_leftover,
    ended,
    execution,
    key,
    opened,
    replay,
    sandbox,
    with_store,
)


def test_execution_is_there_after_each_step(store_url: str) -> None:
    row = execution(1, asked={"text": "a\u0000b\ud800 ünï"}, body=bytes(range(256)))

    async def work(store: Store) -> None:
        await store.write(Accept(row))
        assert await store.execution("ex1") == row
        assert await store.body("ex1") == row.body
        await store.write(Started("ex1", 150.5))
        running = replace(row, state="running", started_at=150.5, body=None)
        assert await store.execution("ex1") == running
        await store.write(ended(1))
        over = replace(running, state="ended", ended_at=200.0, answer={"verdict": "ok"})
        assert await store.execution("ex1") == over
        with pytest.raises(StoreBroken, match="body"):
            await store.body("ex1")
        assert await store.execution("ex2") is None

    with_store(store_url, work)


def test_rows_survive_closing(store_url: str) -> None:
    async def write(store: Store) -> str:
        await store.write(Accept(execution(1)), PutKey(key()), chained(b"one"))
        return await store.server_id()

    async def read(store: Store) -> str:
        assert await store.execution("ex1") == execution(1)
        assert await store.keys() == [key()]
        assert len(await store.audit(0, 10)) == 1
        return await store.server_id()

    first, second = with_store(store_url, write), with_store(store_url, read)
    assert first == second
    assert len(first) == 32


def test_started_is_granted_once(store_url: str) -> None:
    async def work(store: Store) -> None:
        await store.write(Accept(execution(1)))
        first, second = await asyncio.gather(
            store.write(Started("ex1", 1.0)),
            store.write(Started("ex1", 2.0)),
            return_exceptions=True,
        )
        assert first is None
        assert isinstance(second, StoreConflict)
        row = await store.execution("ex1")
        assert row is not None
        assert row.started_at == 1.0

    with_store(store_url, work)


def test_a_shown_end_never_changes(store_url: str) -> None:
    async def work(store: Store) -> None:
        await store.write(Accept(execution(1)), Started("ex1", 1.0), ended(1))
        for change in (ended(1, "memory"), Started("ex1", 3.0)):
            with pytest.raises(StoreConflict):
                await store.write(change)
        row = await store.execution("ex1")
        assert row is not None
        assert row.answer == {"verdict": "ok"}

    with_store(store_url, work)


def test_changes_of_one_write_are_made_together_or_not_at_all(store_url: str) -> None:
    async def work(store: Store) -> None:
        await store.write(Accept(execution(1)))
        with pytest.raises(StoreConflict):
            await store.write(Accept(execution(2)), chained(b"x"), Accept(execution(1)))
        assert await store.execution("ex2") is None
        assert await store.audit(0, 10) == []

    with_store(store_url, work)


def test_failing_writes_do_not_take_their_neighbours_along(store_url: str) -> None:
    def refuse(seq: int, before: bytes) -> AuditRow:
        raise ZeroDivisionError

    async def work(store: Store) -> None:
        await store.write(Accept(execution(1)))
        writes = [store.write(Accept(execution(n)), chained(b"%d" % n)) for n in range(2, 30)]
        writes[7:7] = [store.write(Accept(execution(1)))]
        writes[15:15] = [store.write(AppendAudit(refuse))]
        writes[20:20] = [store.write(Accept(execution(99, asked={"x": math.nan})))]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        failed = [answer for answer in answers if answer is not None]
        assert isinstance(failed[0], StoreConflict)
        assert isinstance(failed[1], ZeroDivisionError)
        assert len(failed) == 3
        assert [row.seq for row in await store.queued(0, 100)] == list(range(1, 30))
        assert [row.seq for row in await store.audit(0, 100)] == list(range(1, 29))

    with_store(store_url, work)


def test_concurrent_writes_share_transactions(store_url: str) -> None:
    async def work(store: Store) -> None:
        await asyncio.gather(*(store.write(Accept(execution(n))) for n in range(1, 501)))
        done = store.statistics()
        assert (done.writes, done.waiting, done.refused) == (500, 0, 0)
        assert done.transactions <= 10
        assert [row.seq for row in await store.queued(0, 1000)] == list(range(1, 501))

    with_store(store_url, work)


def test_many_starts_and_ends_in_one_transaction(store_url: str) -> None:
    async def work(store: Store) -> None:
        await asyncio.gather(*(store.write(Accept(execution(n))) for n in range(1, 41)))
        await asyncio.gather(*(store.write(Started(f"ex{n}", n)) for n in range(1, 41)))
        await asyncio.gather(*(store.write(ended(n, f"v{n}")) for n in range(1, 41)))
        for number in (1, 17, 40):
            row = await store.execution(f"ex{number}")
            assert row is not None
            assert (row.started_at, row.answer) == (number, {"verdict": f"v{number}"})

    with_store(store_url, work)


def test_answer_whose_line_is_known_is_written_as_that_line(store_url: str) -> None:
    async def work(store: Store) -> None:
        await store.write(Accept(execution(1)))
        await store.write(Ended("ex1", 9.0, {"n": float("inf")}, line='{"n":null,"t":"\\u00fc"}'))
        row = await store.execution("ex1")
        assert row is not None
        assert row.answer == {"n": None, "t": "ü"}

    with_store(store_url, work)


def test_events_are_read_from_where_a_reader_was(store_url: str) -> None:
    async def work(store: Store) -> None:
        await store.write(Accept(execution(1)), AppendEvents(chunk(1, 1, 3)))
        await store.write(Ended("ex1", 9.0, {}, (chunk(1, 4, 4), chunk(1, 5, 9))))
        assert await store.events("ex1", 0) == [chunk(1, 1, 3), chunk(1, 4, 4), chunk(1, 5, 9)]
        assert await store.events("ex1", 3) == [chunk(1, 4, 4), chunk(1, 5, 9)]
        assert await store.events("ex1", 6) == [chunk(1, 5, 9)]
        assert await store.events("ex1", 9) == []

    with_store(store_url, work)


def test_sixteen_mib_of_events_come_back(store_url: str) -> None:
    big = [EventChunk("ex1", n, n, bytes([n]) * 2**20) for n in range(1, 17)]

    async def work(store: Store) -> None:
        await store.write(Accept(execution(1)), Ended("ex1", 9.0, {}, tuple(big)))
        assert await store.events("ex1", 0) == big

    with_store(store_url, work)


def test_recovery_ends_what_had_started_and_requeues_nothing(store_url: str) -> None:
    async def work(store: Store) -> None:
        for number in range(1, 6):
            cancels = {"on_disconnect": "cancel"} if number == 4 else {}
            await store.write(Accept(execution(number, **cancels)))
        await store.write(
            Started("ex1", 1.0), AppendEvents(chunk(1, 1, 7)), PutSandbox(sandbox("s"))
        )
        await store.write(Started("ex2", 1.0), ended(2))
        found = await store.recover(900.0, end_leftover)
        assert (found.interrupted, found.cancelled) == (("ex1",), ("ex4",))
        assert (found.sandboxes, found.queued, found.last_seq) == (("s",), 2, 5)
        assert [row.id for row in await store.queued(0, 9)] == ["ex3", "ex5"]
        row = await store.execution("ex1")
        assert row is not None
        assert (row.state, row.answer) == ("ended", {"verdict": "interrupted"})
        assert (await store.events("ex1", 7))[0].first_seq == 8
        kept = await store.execution("ex2")
        assert kept is not None
        assert kept.answer == {"verdict": "ok"}

    with_store(store_url, work)


def test_recovery_ends_what_a_lost_node_had_and_nothing_else(store_url: str) -> None:
    mine, before, plain = new_id("a7c2"), new_id("b7c2"), new_id()
    running, leaving = new_id("c7c2"), new_id("b7c2")
    because: dict[str, str] = {}

    def end(left: Leftover) -> list[Ended]:
        because[left.row.id] = left.because
        return [Ended(left.row.id, 900.0, {"verdict": "interrupted"})]

    async def work(store: Store) -> None:
        rows: dict[str, dict[str, object]] = {
            mine: {},
            before: {},
            plain: {},
            running: {"state": "running", "body": None},
        }
        rows[leaving] = {"on_disconnect": "cancel"}
        for number, (name, more) in enumerate(rows.items(), 1):
            await store.write(Accept(replace(execution(number, **more), id=name)))
        found = await store.recover(900.0, end, node="a7c2")
        assert (set(found.lost), found.interrupted) == ({before, running, leaving}, ())
        assert set(because.values()) == {"lost"}
        assert [row.id for row in await store.queued(0, 9)] == [mine, plain]
        assert (await store.recover(901.0, end)).lost == ()  # a server without a name
        assert [row.id for row in await store.queued(0, 9)] == [mine, plain]

    with_store(store_url, work)


def test_recovery_of_thousands_is_one_transaction(store_url: str) -> None:
    def fail_at_the_last(left: Leftover) -> list[Ended]:
        return end_leftover(left) if left.row.seq < 1300 else end_leftover(left)[1 // 0 :]

    async def work(store: Store) -> None:
        rows = [execution(n, state="running", body=None) for n in range(1, 1301)]
        await store.write(*(Accept(row) for row in rows))
        with pytest.raises(ZeroDivisionError):
            await store.recover(900.0, fail_at_the_last)
        assert (await store.recover(900.0, end_leftover)).interrupted == tuple(r.id for r in rows)
        assert (await store.recover(901.0, end_leftover)).interrupted == ()

    with_store(store_url, work)


def test_queue_is_read_in_order_and_in_parts(store_url: str) -> None:
    async def work(store: Store) -> None:
        for number in (5, 1, 4, 2, 3):
            await store.write(Accept(execution(number)))
        first = await store.queued(0, 2)
        rest = await store.queued(first[-1].seq, 9)
        assert [row.seq for row in first + rest] == [1, 2, 3, 4, 5]
        assert {row.body for row in first} == {None}

    with_store(store_url, work)


def test_replays_are_replaced_and_dropped(store_url: str) -> None:
    async def work(store: Store) -> None:
        assert await store.replay("moss", "once") is None
        await store.write(KeepReplay(replay("ex1")))
        await store.write(KeepReplay(replay("ex2", 20.0)))
        assert await store.replay("moss", "once") == replay("ex2", 20.0)
        assert await store.replay("fern", "once") is None
        await store.write(KeepReplay(replay("ex3")), DropReplay("moss", "once"))
        assert await store.replay("moss", "once") is None

    with_store(store_url, work)


def test_sandboxes_end_once(store_url: str) -> None:
    async def work(store: Store) -> None:
        await store.write(PutSandbox(sandbox("s")))
        await store.write(EndSandbox("s", 5.0, "deleted"))
        await store.write(EndSandbox("s", 6.0, "idle"), PutSandbox(sandbox("s", shown={"n": 2})))
        gone = sandbox("s", shown={"n": 2}, ended_at=5.0, ended_because="deleted")
        assert await store.sandboxes() == [gone]

    with_store(store_url, work)


def test_another_process_sees_that_keys_changed(store_url: str) -> None:
    async def run() -> None:
        async with opened(store_url) as server, opened(store_url) as command:
            before = await server.version()
            await server.write(Accept(execution(1)))
            assert await server.version() == before
            await command.write(PutKey(key()))
            between = await server.version()
            await command.write(RevokeKey(key().digest, 7.0), RevokeKey(key().digest, 8.0))
            assert len({before, between, await server.version()}) == 3
            assert await server.keys() == [replace(key(), revoked_at=7.0)]
            with pytest.raises(StoreConflict):
                await command.write(PutKey(key()))

    asyncio.run(run())


def test_audit_has_one_order_whoever_writes(store_url: str) -> None:
    async def run() -> list[AuditRow]:
        async with opened(store_url) as server, opened(store_url) as command:
            names = [b"%d" % number for number in range(100)]
            writers = [server, command] * 50
            await asyncio.gather(
                *(store.write(chained(name)) for store, name in zip(writers, names, strict=True))
            )
            rows = await server.audit(0, 1000)
            assert await command.audit_head() == rows[-1]
            assert await server.audit(98, 1000) == rows[98:]
            return rows

    before = bytes(32)
    rows = asyncio.run(run())
    for number, row in enumerate(rows, 1):
        assert row.seq == number
        assert row.hash == hashlib.sha256(before + row.record).digest()
        before = row.hash
    assert len(rows) == 100


def test_trimmed_audit_goes_on_where_it_was(store_url: str) -> None:
    async def work(store: Store) -> None:
        await store.write(*[chained(b"r%d" % n) for n in range(450)])
        head = await store.audit_head()
        assert await store.trim_audit(440) == 440  # more than one step
        assert [row.seq for row in await store.audit(0, 1000)] == list(range(441, 451))
        assert await store.trim_audit(440) == 0
        assert await store.trim_audit(1000) == 9
        assert await store.audit_head() == head  # the newest never goes
        await store.write(chained(b"next"))
        assert head is not None
        next_hash = hashlib.sha256(head.hash + b"next").digest()
        assert (await store.audit(450, 10))[0].hash == next_hash

    with_store(store_url, work)


def test_expiry_forgets_only_what_is_old_and_over(store_url: str) -> None:
    async def work(store: Store) -> None:
        for number in range(1, 301):
            await store.write(
                Accept(execution(number, state="ended", ended_at=10.0)),
                AppendEvents(chunk(number, 1, 2)),
            )
        await store.write(Accept(execution(500)), Accept(execution(501)), ended(501))
        await store.write(AppendEvents(chunk(501, 1, 1)), KeepReplay(replay("ex1")))
        await store.write(PutSandbox(sandbox("a")), PutSandbox(sandbox("b")))
        await store.write(EndSandbox("a", 10.0, "idle"))
        assert await store.expire(50.0) == 301
        assert await store.expire(50.0) == 0
        assert await store.events("ex1", 0) == []
        assert await store.execution("ex300") is None
        assert await store.execution("ex500") is not None
        assert len(await store.events("ex501", 0)) == 1
        assert [row.id for row in await store.sandboxes()] == ["b"]
        assert await store.replay("moss", "once") is not None
        assert await store.expire(50.0, replays_before=11.0) == 1

    with_store(store_url, work)


def test_expiry_says_the_same_to_the_database_for_any_number_of_rows(store_url: str) -> None:
    """A text of its own for each count would be compiled and kept: 20 KiB each, for ever."""
    said: list[set[str]] = [set()]
    of_expiry: list[set[str]] = []

    def heard(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        said[-1].add(statement)

    async def work(store: Store) -> None:
        for count in (3, 1, 2, 5, 8):
            for number in range(count):
                await store.write(Accept(execution(number, state="ended", ended_at=10.0)))
                await store.write(
                    AppendEvents(chunk(number, 1, 2)), PutSandbox(sandbox(str(number)))
                )
                await store.write(EndSandbox(str(number), 10.0, "idle"))
            said.append(set())
            assert await store.expire(50.0) == 2 * count
            of_expiry.append(said[-1])
            said.append(set())

    event.listen(Engine, "before_cursor_execute", heard)
    try:
        with_store(store_url, work)
    finally:
        event.remove(Engine, "before_cursor_execute", heard)
    assert len(of_expiry) == 5
    assert set.union(*of_expiry) == of_expiry[0]


def test_closing_writes_what_waits_and_refuses_the_rest(store_url: str) -> None:
    async def run() -> None:
        store = await Store.open(store_url)
        waiting = [asyncio.ensure_future(store.write(Accept(execution(n)))) for n in range(1, 50)]
        await asyncio.sleep(0)
        await store.aclose()
        await store.aclose()
        assert {task.exception() for task in waiting} == {None}
        with pytest.raises(StoreBroken, match="closed"):
            await store.write(Accept(execution(99)))

    asyncio.run(run())


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///relative.db", "mysql://x/y", "nonsense"]
)
def test_unknown_url_is_refused_with_examples(url: str) -> None:
    with pytest.raises(UsageError, match="postgresql"):
        asyncio.run(Store.open(url))


def test_what_is_kept_is_summed_up_by_tenant_and_time(store_url: str) -> None:
    """Beyond what each thing has free; what waits or runs is not among it."""
    rows = [
        execution(1),
        execution(2),
        execution(3, tenant="fern"),
        execution(4),
        execution(5, body=b"x" * 9000),
    ]
    lines = b"".join(os.urandom(400).hex().encode() + b"\n" for _ in range(20))

    async def check(store: Store) -> list[KeptRow]:
        await store.write(*map(Accept, rows))
        for row, at, size in (
            (rows[0], 1000.0, 5000),
            (rows[1], 1003.0, 4500),
            (rows[2], 1000.0, 9000),
        ):
            await store.write(Ended(row.id, at, {}, (), '"' + "x" * (size - 2) + '"'))
        await store.write(Ended("ex4", 2000.0, {}, (EventChunk("ex4", 1, 20, lines),), "{}"))
        return await store.kept(4000)

    found = sorted(with_store(store_url, check), key=lambda each: (each.ended_at, each.tenant))
    assert [each.tenant for each in found] == ["fern", "moss", "moss"]
    assert all(
        abs(each.ended_at - at) <= 15 for each, at in zip(found, (1000, 1000, 2000), strict=True)
    )
    assert [each.size for each in found[:2]] == [5000, 1500]
    assert 3000 < found[2].size < 20 * 801 - 4000
