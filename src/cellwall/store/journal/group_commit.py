"""Group commit for the journal: writes go in one record, off the loop, while many executions run.

Called by `writer` before the database; `pending` has the records. One record is written at a time,
on a thread; writes that come meanwhile go with the next one. A start waits for nothing else; an end
waits a moment, so that it goes with another execution's start. With few executions a thread costs
more than the sync does: then the loop writes (`PendingWrites.take`). The invariant: an earlier
write is in an earlier record or further in front, also in the database, where all of them go if the
journal has no room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from cellwall.store.journal.codec import encoded, joined
from cellwall.store.journal.file import Extent
from cellwall.store.journal.pending import PendingWrites
from cellwall.store.records.changes import Accept, Change, Ended, size_of

_MANY = 6
"""Minimum number of running executions for group commit: below this, one fsync per record on the
loop is faster than a thread hop."""
_PROGRAMS = 3
"""Minimum number of running executions with a sandbox of their own for group commit: starting and
ending them keeps the loop so busy that it must not wait for the disk as well. Of 32 clients'
programs some three run at a time, the others wait for their turn. As many sessions' cells would
lose a quarter of their rate to the thread."""
_END_WAITS_S = 0.005
_RECORD_BYTES = 60 * 1024
"""Bytes of all writes in one record; the journal takes 64 KiB."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A write that waits, with the future of its caller."""

    changes: tuple[Change, ...]
    done: asyncio.Future[None]
    until: float
    """Time on the loop's clock at which the write is refused if its turn has not come."""
    record: bytes = b""
    """The changes as a record of the journal."""
    timer: asyncio.TimerHandle | None = None
    """Refuses the write when its turn has not come in time."""

    @property
    def size_bytes(self) -> int:
        """Approximate number of bytes that are written."""
        return sum(map(size_of, self.changes))

    def disarm(self) -> None:
        """Stop the timer: the turn has come."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Record(NamedTuple):
    """A record on its way to the disk."""

    items: list[Waiting]
    changes: list[Change]
    extent: Extent
    loop: asyncio.AbstractEventLoop
    """Event loop that gets the result."""


class GroupCommit:
    """Writes that go to the journal together; see the module. Lives on one event loop."""

    def __init__(
        self,
        pending: PendingWrites,
        on_written: Callable[[int], None],
        on_refused: Callable[[list[Waiting]], None],
    ) -> None:
        """`on_written` gets the number of writes in a durable record.

        `on_refused` gets writes for the database, which go before all others that wait there.
        """
        self._pending = pending
        self._on_written = on_written
        self._on_refused = on_refused
        self._on_their_way: SimpleQueue[_Record | None] = SimpleQueue()
        # Not an executor: its futures and a task for each cost the loop 2 % of its time. The thread
        # is made here: one that cannot be made later would leave work behind.
        self._thread = Thread(target=self._write_all, name="cellwall-journal", daemon=True)
        self._thread.start()
        self._items: deque[Waiting] = deque()
        self._is_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._landed: asyncio.Future[None] | None = None
        """Done when the record on its way was written, or has failed."""

    def __len__(self) -> int:
        """Return the number of writes that wait for a record."""
        return len(self._items)

    @property
    def is_grouping(self) -> bool:
        """Whether writes go together, instead of one by one on the loop."""
        pending = self._pending
        is_busy = pending.running >= _MANY or pending.programs >= _PROGRAMS
        return is_busy or bool(self._items) or self._landed is not None

    def record_of(self, changes: tuple[Change, ...]) -> bytes | None:
        """Return the journal's record of `changes`; None if they may not go with the others."""
        record = encoded(changes) if self.is_grouping else None
        return None if record is None or len(record) > _RECORD_BYTES else record

    async def write(self, item: Waiting) -> None:
        """Return when the write is durable; raises the database's error, if it had to go there.

        A write that was cancelled or refused when its turn comes is skipped.
        """
        self._items.append(item)
        self._is_urgent = self._is_urgent or not _is_end(item.changes)
        if self._is_urgent:
            self._go()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_END_WAITS_S, self._on_timer)
        await item.done

    def _on_timer(self) -> None:
        self._timer = None
        self._is_urgent = bool(self._items)
        self._go()

    def _go(self) -> None:
        """Send the waiting writes, unless a record is on its way: its landing calls this again."""
        if self._landed is not None or not self._items:
            return
        items = self._next()
        if not items:
            return
        changes = [each for item in items for each in item.changes]
        extent = self._pending.reserve(changes, joined([item.record for item in items]))
        if extent is None:
            self._on_refused(items)
            return
        loop = asyncio.get_running_loop()
        self._landed = loop.create_future()
        self._on_their_way.put(_Record(items, changes, extent, loop))

    def _next(self) -> list[Waiting]:
        """Take the oldest waiting writes, as many as go into one record."""
        items: list[Waiting] = []
        size = 0
        while self._items:
            item = self._items[0]
            size += 0 if item.done.done() else len(item.record)
            if size > _RECORD_BYTES:
                break
            self._items.popleft()
            item.disarm()
            if not item.done.done():
                items.append(item)
        self._is_urgent = bool(self._items)  # they have waited for one record already
        return items

    def _write_all(self) -> None:
        """Write records one after the other; runs on the thread."""
        while (record := self._on_their_way.get()) is not None:
            error: Exception | None = None
            try:
                self._pending.write(record.extent)
            except Exception as caught:  # noqa: BLE001 - it may be there, or not
                error = caught
            record.loop.call_soon_threadsafe(self._land, record, error)

    def _land(self, record: _Record, error: Exception | None) -> None:
        if error is None:
            self._pending.keep(record.changes, record.extent)
            self._on_written(len(record.items))
            resolve(record.items)
        else:
            self._pending.fail(error)
            self._on_refused(record.items)
        landed, self._landed = self._landed, None
        if landed is not None:
            landed.set_result(None)
        if self._is_urgent:
            self._go()

    async def landed(self) -> None:
        """Return when no record is on its way; no write may be added meanwhile."""
        while self._landed is not None:
            await asyncio.shield(self._landed)

    def give_up(self) -> list[Waiting]:
        """Return the waiting writes, which the database is to write."""
        items = list(self._items)
        self._items.clear()
        self._is_urgent = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return items

    async def aclose(self) -> None:
        """Return when no record is on its way and the thread has ended."""
        await self.landed()
        self._on_their_way.put(None)
        self._thread.join()


def _is_end(changes: tuple[Change, ...]) -> bool:
    return any(isinstance(each, Ended) for each in changes) and not any(
        isinstance(each, Accept) for each in changes
    )


def resolve(items: list[Waiting]) -> None:
    """Resolve the future of every write whose caller still waits: it is durable."""
    for item in items:
        if not item.done.done():
            item.done.set_result(None)
