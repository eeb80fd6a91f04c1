"""Group commit: waiting writes go into one transaction, and one fsync serves all of them.

SQL is in `write_statements`, threads are in `database`. There is one task per store. The invariant:
a write that gets an error has left nothing in the database, and a failing one does not take its
neighbours along: they are tried again apart from it. A write under way is waited for, however slow
the disk is; only waiting for a turn has a bound.

Where there is a journal (`pending`), the changes that it takes are durable at once and go into the
database with the next transaction, or a moment later. It takes nothing while other writes wait for
the database, so that changes keep the order in which they were given. While many executions run it
takes several writes at once, on a thread (`group_commit`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cellwall.store.journal.group_commit import GroupCommit, Waiting, resolve
from cellwall.store.journal.pending import PendingWrites
from cellwall.store.records.changes import Change
from cellwall.store.records.database import Database
from cellwall.store.records.driver_errors import answer_to, busy, kind_of
from cellwall.store.records.errors import StoreBroken
from cellwall.surface.shared.tasks import Tasks

_BATCH_CHANGES = 512
_BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of one transaction; bounds how long a small write waits behind big ones."""
_FLUSH_S = 0.1
"""Seconds until the journal's changes are in the database too, if nothing else is written…"""
_FLUSH_MOST_S = 0.5
"""…or since the first of them, if more come all the time."""
_FLUSH_AGAIN_S = 1.0
"""Seconds after a failed attempt at that."""
_LOST_PAUSE_S = 0.25
"""Seconds between attempts to reach a lost database server, which refuses without delay."""


@dataclass(slots=True)
class Counts:
    """Counters of a writer since it was made."""

    writes: int = 0
    transactions: int = 0
    largest: int = 0
    """Most writes that one transaction carried."""
    refused: int = 0
    """Number of writes that got an error."""
    retried: int = 0
    """Number of transactions that failed and were tried again, apart or later."""


@dataclass(slots=True)
class Writer:
    """Writes changes to one database; see the module. Lives on one event loop."""

    database: Database
    wait_s: float
    """Seconds that a write waits for its turn."""
    most_waiting: int
    pending: PendingWrites | None = None
    counts: Counts = field(default_factory=Counts)
    _waiting: deque[Waiting] = field(default_factory=deque)
    _group_commit: GroupCommit | None = None
    _tasks: Tasks = field(default_factory=Tasks)
    _arrival: asyncio.Future[None] | None = None
    _is_closing: bool = False
    _is_committing: bool = False
    """Whether a transaction with a caller's write in it is under way."""
    _flush_timer: asyncio.TimerHandle | None = None
    _is_flush_due: bool = False
    _first_taken_at: float = 0.0
    """When the journal took the first change that the database lacks, on the loop's clock; below
    it, when it took the latest."""
    _last_taken_at: float = 0.0

    def start(self) -> None:
        """Begin to write; `aclose` ends it."""
        if self.pending is not None:
            self._group_commit = GroupCommit(self.pending, self._note_taken, self._take_over)
        self._tasks.spawn(self._work())

    @property
    def waiting(self) -> int:
        """Number of writes that wait for their turn."""
        return len(self._waiting) + (0 if self._group_commit is None else len(self._group_commit))

    async def write(self, changes: tuple[Change, ...]) -> None:
        """Return when the changes are durable.

        Raises `StoreBusy`, `StoreFull`, `StoreConflict`, `StoreBroken`. Cancelled while it waits
        for its turn, nothing is written; cancelled later, it is written all the same.
        """
        if self._is_closing:
            raise StoreBroken("write: the store is closed", remedy="open it again")
        group = self._group_commit
        may_join = group is not None and self._is_free and len(group) < self.most_waiting
        record = group.record_of(changes) if group is not None and may_join else None
        if group is not None and record is not None:
            loop = asyncio.get_running_loop()
            item = Waiting(changes, loop.create_future(), loop.time() + self.wait_s, record)
            self._arm(item)
            await group.write(item)
        elif not self.take(changes):
            await self._wait_written(changes)

    def take(self, changes: tuple[Change, ...]) -> bool:
        """Make the changes durable at once, if the journal may; else nothing has happened."""
        group = self._group_commit
        if self.pending is None or not self._is_free or (group is not None and group.is_grouping):
            return False
        if not self.pending.take(changes):
            return False
        self._note_taken(1)
        return True

    @property
    def _is_free(self) -> bool:
        """Whether no write waits for the database or is on its way there."""
        return not (self._waiting or self._is_committing or self._is_closing)

    def _note_taken(self, writes: int) -> None:
        """Count `writes` that the journal has taken, and arm the timer of their transaction."""
        self.counts.writes += writes
        self._last_taken_at = asyncio.get_running_loop().time()
        if self._flush_timer is None:
            self._first_taken_at = self._last_taken_at
            self._arm_flush(_FLUSH_S)

    def _take_over(self, items: list[Waiting]) -> None:
        """Have the database write what was to go into the journal, before all else.

        The writes that wait for the journal's next record follow them.
        """
        until = asyncio.get_running_loop().time() + self.wait_s
        for item in items:
            item.until = until  # it has had a turn, and waits for another
        next_ones = [] if self._group_commit is None else self._group_commit.give_up()
        for item in reversed([*items, *next_ones]):
            self._arm(item)
            self._waiting.appendleft(item)
        self._wake()

    async def settle(self) -> None:
        """Return when the database has what the journal took until now; raises as `write`."""
        if self.pending is not None and self.pending.is_due:
            await self._wait_written(())

    async def _wait_written(self, changes: tuple[Change, ...]) -> None:
        if len(self._waiting) >= self.most_waiting:
            self.counts.refused += 1
            raise busy(f"write: {len(self._waiting)} others wait", 0)
        self._clear_crowd()
        loop = asyncio.get_running_loop()
        item = Waiting(changes, loop.create_future(), loop.time() + self.wait_s)
        self._arm(item)
        self._waiting.append(item)
        self._wake()
        await item.done

    def _clear_crowd(self) -> None:
        """Send the writes that wait for a record to the database, behind those that wait for it."""
        items = [] if self._group_commit is None else self._group_commit.give_up()
        for item in items:
            self._arm(item)
            self._waiting.append(item)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _arm_flush(self, wait_s: float) -> None:
        self._flush_timer = asyncio.get_running_loop().call_later(wait_s, self._on_flush)

    def _on_flush(self) -> None:
        self._flush_timer = None
        until = min(self._last_taken_at + _FLUSH_S, self._first_taken_at + _FLUSH_MOST_S)
        left_s = until - asyncio.get_running_loop().time()
        is_much = self.pending is not None and self.pending.is_much
        if left_s > 0 and not is_much and not self._is_closing:
            self._arm_flush(left_s)
            return
        self._is_flush_due = True
        self._wake()

    def _arm(self, item: Waiting) -> None:
        if item.timer is None:
            item.timer = asyncio.get_running_loop().call_at(item.until, self._give_up, item)

    def _give_up(self, item: Waiting) -> None:
        # The item stays where it is: `_take` skips done items, and removing costs a search.
        self._refuse(item, busy("write: waiting for its turn", self.wait_s))

    def _refuse(self, item: Waiting, error: Exception) -> None:
        self.counts.refused += 1
        if not item.done.done():
            item.done.set_exception(error)

    async def _work(self) -> None:
        while True:
            if self._group_commit is not None and not self._is_free:
                await self._group_commit.landed()  # the record on its way was given before
            batch = self._take()
            if batch or self._is_flush_due:
                await self._commit(batch)
            elif self._is_closing:
                await self._last_commit()
                return
            elif not self._waiting:
                self._arrival = asyncio.get_running_loop().create_future()
                await self._arrival

    def _take(self) -> list[Waiting]:
        batch: list[Waiting] = []
        count = size = 0
        while self._waiting and count < _BATCH_CHANGES and size < _BATCH_BYTES:
            item = self._waiting.popleft()
            item.disarm()
            if item.done.done():
                continue  # its caller has gone, and no caller has been promised anything
            batch.append(item)
            count += len(item.changes)
            size += item.size_bytes
        return batch

    async def _commit(self, batch: list[Waiting]) -> None:
        changes = _changes_of(batch)
        first = () if self.pending is None else self.pending.begin()
        self._is_flush_due = False
        self._is_committing = bool(batch)
        begun = asyncio.get_running_loop().time()
        try:
            await self.database.apply([*first, *changes])
        except Exception as error:  # noqa: BLE001 - the waiting callers get it, whatever it is
            self._end_flush(first, is_applied=False)
            await self._failed(batch, error, is_mixed=bool(first and batch))
            return
        finally:
            self._is_committing = False
        if self.pending is not None:
            self.pending.commit_took(asyncio.get_running_loop().time() - begun)
        self._end_flush(first, is_applied=True)
        self.counts.writes += len(batch)
        self.counts.transactions += 1
        self.counts.largest = max(self.counts.largest, len(batch))
        resolve(batch)

    def _end_flush(self, first: Sequence[Change], *, is_applied: bool) -> None:
        if self.pending is None or not first:
            return
        self.pending.end(is_applied=is_applied)
        if self.pending.is_due and self._flush_timer is None:
            self._first_taken_at = self._last_taken_at
            self._arm_flush(_FLUSH_S if is_applied else _FLUSH_AGAIN_S)

    async def _last_commit(self) -> None:
        """Write the journal's changes a last time; if that fails, the next opening replays them."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self.pending is not None and self.pending.is_due:
            await self._commit([])

    async def _failed(self, batch: list[Waiting], error: Exception, *, is_mixed: bool) -> None:
        kind = kind_of(error)
        if kind in ("busy", "lost"):
            self.counts.retried += 1
            self._again(batch)
            if kind == "lost":
                await asyncio.sleep(_LOST_PAUSE_S)
        elif is_mixed:
            await self._commit_apart(batch, error)
        elif len(batch) == 1 or kind == "broken":
            for item in batch:
                self._refuse(item, answer_to("write", error))
        else:
            self.counts.retried += 1
            for item in batch:
                await self._commit([item])

    async def _commit_apart(self, batch: list[Waiting], error: Exception) -> None:
        """Write first what the journal has, then the batch without it."""
        self.counts.retried += 1
        await self._commit([])
        if self.pending is None or not self.pending.is_due:
            await self._commit(batch)
            return
        for item in batch:
            self._refuse(item, answer_to("write", error))

    def _again(self, batch: list[Waiting]) -> None:
        now = asyncio.get_running_loop().time()
        for item in reversed(batch):
            if item.until <= now:
                self._refuse(item, busy("write: waiting for its turn", self.wait_s))
            else:
                self._arm(item)
                self._waiting.appendleft(item)

    async def aclose(self) -> None:
        """Write what waits, then stop; later writes are refused. Idempotent."""
        self._is_closing = True
        self._clear_crowd()
        self._wake()
        await self._tasks.wait_empty()
        if self._group_commit is not None:
            await self._group_commit.aclose()


def _changes_of(items: Sequence[Waiting]) -> list[Change]:
    return [each for item in items for each in item.changes]
