"""The store as the rest of cellwall calls it.

SQL is in `write_statements` and `queries`, the databases are `sqlite.database` and
`postgres.database`. The invariant: when `write` returns, its changes survive the loss of power.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cellwall.store.journal.codec import Seal
from cellwall.store.journal.pending import PendingWrites
from cellwall.store.journal.replay import catch_up, close_pending, open_pending, retire
from cellwall.store.opening import open_database
from cellwall.store.records import queries, recovery, retention
from cellwall.store.records.changes import Change
from cellwall.store.records.database import Database, T, Work
from cellwall.store.records.driver_errors import answer_to
from cellwall.store.records.errors import StoreBroken
from cellwall.store.records.migration import SERVER_ID
from cellwall.store.records.rows import (
    AuditRow,
    EventChunk,
    ExecutionRow,
    KeptRow,
    KeyRow,
    Recovery,
    ReplayRow,
    SandboxRow,
    SecretRow,
)
from cellwall.store.records.write_statements import KEYS_VERSION
from cellwall.store.writer import Writer

REPLAY_S = 86_400.0
"""Seconds that an idempotency key is remembered beyond the other rows."""
WAIT_S = 10.0
"""Seconds that a write waits for its turn before its caller gets `StoreBusy`."""
MOST_WAITING = 20_000


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters of the store since it was opened."""

    waiting: int
    """Number of writes that wait for their turn now."""
    writes: int
    transactions: int
    largest: int
    """Most writes that one transaction carried."""
    refused: int
    """Number of writes that got an error."""
    retried: int
    """Number of transactions that failed and were tried again, apart or later."""
    is_journal_broken: bool
    """Whether the journal failed; writes then go to the database until the store is opened
    again."""


class Store:
    """One open store. Lives on one event loop; made by `open`."""

    def __init__(
        self, database: Database, pending: PendingWrites | None, *, wait_s: float, most_waiting: int
    ) -> None:
        """Use `open`."""
        self._database = database
        self._pending = pending
        self._writer = Writer(database, wait_s, most_waiting, pending)
        self._writer.start()
        self.on_written: Callable[[float], None] | None = None
        """Called with the seconds that each write took."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        sole: bool = False,
        seal: Seal | None = None,
        has_journal: bool = True,
        wait_s: float = WAIT_S,
        most_waiting: int = MOST_WAITING,
    ) -> Store:
        """Open the database at `url`, make it if there is none, bring it to the newest version.

        Raises `UsageError` for a URL of an unknown kind, `StoreBroken` if the database cannot be
        used: it never starts empty in the place of one that was there. `sole` opens it as the
        server, of which a database has one: `StoreConflict` if there is another. Two would end each
        other's executions as left behind. Commands open it beside the server. `seal` rebuilds audit
        records that are in a journal; without it no journal is used or read. Without `has_journal`
        the server writes to the database alone, which first gets what an earlier server's journal
        has.
        """
        database = await open_database(url, sole=sole)
        pending = None
        try:
            if seal is not None and sole and has_journal:
                pending = await open_pending(database, seal)
            elif seal is not None and sole:
                await retire(database, seal)
            elif seal is not None:
                await catch_up(database, seal)
        except BaseException as error:
            await database.aclose()
            if isinstance(error, Exception):
                raise answer_to("open the journal", error) from error
            raise
        return cls(database, pending, wait_s=wait_s, most_waiting=most_waiting)

    async def aclose(self) -> None:
        """Write what waits, then close; idempotent."""
        await self._writer.aclose()
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                await close_pending(self._database, pending)
        finally:
            await self._database.aclose()

    def statistics(self) -> StoreStatistics:
        """Return the counters."""
        counts = self._writer.counts
        return StoreStatistics(
            self._writer.waiting,
            counts.writes,
            counts.transactions,
            counts.largest,
            counts.refused,
            counts.retried,
            self._pending is not None and self._pending.is_broken,
        )

    async def write(self, *changes: Change) -> None:
        """Return when the changes are durable, all of them, in order.

        Raises `StoreBusy` or `StoreFull` (nothing was written, try again), `StoreConflict` (the
        rows forbid it), `StoreBroken`. Cancelled while it waits for its turn, nothing is written;
        cancelled later, it is written all the same.
        """
        if not changes:
            return
        began_s = time.perf_counter()
        await self._writer.write(changes)
        if self.on_written is not None:
            self.on_written(time.perf_counter() - began_s)

    def take(self, *changes: Change) -> bool:
        """Write without waiting and return True; False, without effect, if it cannot."""
        began_s = time.perf_counter()
        is_taken = self._writer.take(changes)
        if is_taken and self.on_written is not None:
            self.on_written(time.perf_counter() - began_s)
        return is_taken

    async def _read(self, step: str, work: Work[T], *, is_settled: bool = True) -> T:
        try:
            if is_settled:
                await self._writer.settle()
            return await self._database.read(work)
        except Exception as error:
            raise answer_to(step, error) from error

    # ── executions ────────────────────────────────────────────────────────────────────────────

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        """Return the execution, or None."""
        return await self._read(
            "read an execution", partial(queries.execution, execution_id=execution_id)
        )

    async def body(self, execution_id: str) -> bytes:
        """Return the body of a queued execution; `StoreBroken` if it has none."""
        found = await self._read("read a body", partial(queries.body, execution_id=execution_id))
        if found is None:
            raise StoreBroken(
                f"read the body of execution {execution_id}: there is none",
                remedy="ask only for those that are queued",
            )
        return found

    async def queued(self, after_seq: int, limit: int) -> list[ExecutionRow]:
        """Return up to `limit` queued executions behind place `after_seq`, without their bodies."""
        return await self._read(
            "read the queue", partial(queries.queued, after_seq=after_seq, limit=limit)
        )

    async def events(self, execution_id: str, after: int, limit: int = 1000) -> list[EventChunk]:
        """Return the first chunks that hold events after number `after`; one may begin before."""
        work = partial(queries.events, execution_id=execution_id, after=after, limit=limit)
        return await self._read("read events", work)

    async def recover(
        self,
        at: float,
        end: recovery.End,
        sandboxes: recovery.Sandboxes = recovery.ALL_ENDED,
        node: str = "",
    ) -> Recovery:
        """End what an earlier server left, in one transaction; before anything else runs.

        `end` returns the changes that end a leftover: its `Ended` and what goes with it. `node`:
        the server's name among several; executions of another name never begin.
        """
        work = partial(recovery.recover, at=at, end=end, sandboxes=sandboxes, node=node)
        try:
            return await self._database.write(work)
        except Exception as error:
            raise answer_to("recover", error) from error

    async def expire(self, before: float, replays_before: float | None = None) -> int:
        """Delete what ended before that time; return the number of deleted rows.

        Idempotency keys stay `REPLAY_S` seconds longer, unless `replays_before` is given.
        """
        if replays_before is None:
            replays_before = before - REPLAY_S
        work = partial(retention.expire_some, before=before, replays_before=replays_before)
        return await self._in_steps("expire", work)

    async def trim_audit(self, up_to: int) -> int:
        """Delete audit records up to number `up_to`, oldest first; return how many."""
        return await self._in_steps("trim the audit", partial(retention.trim_some, up_to=up_to))

    async def _in_steps(self, step: str, work: Work[int]) -> int:
        """Repeat `work` until it deletes nothing more; other writes run in between."""
        total = 0
        try:
            while gone := await self._database.write(work):
                total += gone
                await asyncio.sleep(0)
        except Exception as error:
            raise answer_to(step, error) from error
        return total

    # ── everything else ───────────────────────────────────────────────────────────────────────

    async def sandboxes(self) -> list[SandboxRow]:
        """Return every sandbox that is kept, oldest first; also those that have ended."""
        return await self._read("read sandboxes", queries.sandboxes)

    async def kept(self, above: int) -> list[KeptRow]:
        """Return the bytes of ended executions beyond `above` each, by tenant and time."""
        return await self._read("read what is kept", lambda it: queries.kept(it, above))

    async def keys(self) -> list[KeyRow]:
        """Return every key, oldest first; also the revoked and the expired ones."""
        return await self._read("read keys", queries.keys)

    async def secrets(self, tenant: str) -> list[SecretRow]:
        """Return a tenant's secrets by name, with their values encrypted."""
        return await self._read("read secrets", partial(queries.secrets, tenant=tenant))

    async def version(self) -> str:
        """Return a token that changes when a key does, whichever process changed it."""
        # Read twice a second; keys are never in the journal.
        work = partial(queries.fact, name=KEYS_VERSION)
        return await self._read("read the version", work, is_settled=False) or ""

    async def replay(self, tenant: str, key: str) -> ReplayRow | None:
        """Return the use of an idempotency key, or None."""
        return await self._read("read a replay", partial(queries.replay, tenant=tenant, key=key))

    async def audit(self, after_seq: int, limit: int) -> list[AuditRow]:
        """Return up to `limit` audit records behind number `after_seq`, in order."""
        return await self._read(
            "read the audit", partial(queries.audit, after_seq=after_seq, limit=limit)
        )

    async def audit_head(self) -> AuditRow | None:
        """Return the newest audit record, or None."""
        return await self._read("read the audit's head", queries.audit_head)

    async def fact(self, name: str) -> str | None:
        """Return the value that `PutFact` stored under that name, or None."""
        return await self._read("read a fact", partial(queries.fact, name=name))

    async def server_id(self) -> str:
        """Return 128 random bits in hexadecimal, made with the database."""
        return await self.fact(SERVER_ID) or ""
