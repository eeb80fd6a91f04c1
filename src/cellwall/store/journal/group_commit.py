"""While many executions run: their writes go to the journal together, and the loop does not wait.

Not what a record is (`pending`) and not the database's turn (`writer`, which asks here first). One
record is on its way at a time, on a thread; whoever comes meanwhile goes with the next. A start
waits for nothing else; an end waits a moment, so that it goes with somebody's start. With few, a
thread costs more than the sync does: then the loop writes (`Ahead.take`). The invariant: what was
given first is in an earlier record or further in front, also in the database, where all of it goes
if there is no place in the journal.
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
from cellwall.store.journal.file import Place
from cellwall.store.journal.pending import Ahead
from cellwall.store.records.changes import Accept, Change, Ended, size_of

_MANY = 6
"""So many run at once that a sync less is worth more than a few milliseconds of one of them."""
_PROGRAMS = 3
"""So many of those with a sandbox of their own: starting and ending them keeps the loop so busy
that it must not wait for the disk as well. Of 32 clients' programs some three run at a time, the
others wait for their turn. Cells of as many sessions would lose a quarter of their rate to the
thread."""
_END_WAITS_S = 0.005
_RECORD_BYTES = 60 * 1024
"""Of all that go together; the journal takes 64 KiB."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A write that waits, and who waits for it."""

    changes: tuple[Change, ...]
    done: asyncio.Future[None]
    until: float
    """Its turn has to have come by then, on the loop's clock."""
    record: bytes = b""
    """What `changes` are in the journal."""
    timer: asyncio.TimerHandle | None = None
    """Refuses it when its turn has not come."""

    @property
    def size_bytes(self) -> int:
        """How much is written, roughly."""
        return sum(map(size_of, self.changes))

    def disarm(self) -> None:
        """Its turn has come."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Record(NamedTuple):
    """On its way to the disk."""

    items: list[Waiting]
    changes: list[Change]
    place: Place
    loop: asyncio.AbstractEventLoop
    """Hears how it went."""


class Crowd:
    """See the module. Lives on one event loop."""

    def __init__(
        self,
        ahead: Ahead,
        on_written: Callable[[int], None],
        on_refused: Callable[[list[Waiting]], None],
    ) -> None:
        """Tell `on_written` how many writes a record held, `on_refused` which are for the database.

        The latter come before all that anybody waits for there.
        """
        self._ahead = ahead
        self._on_written = on_written
        self._on_refused = on_refused
        self._on_their_way: SimpleQueue[_Record | None] = SimpleQueue()
        # Not an executor: its futures and a task for each cost the loop 2 % of its time. Made now:
        # a thread that cannot be had later would leave work behind.
        self._thread = Thread(target=self._write_all, name="cellwall-journal", daemon=True)
        self._thread.start()
        self._items: deque[Waiting] = deque()
        self._is_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._landed: asyncio.Future[None] | None = None
        """Done when the record that is on its way is there, or is not."""

    def __len__(self) -> int:
        """Return how many wait for a record."""
        return len(self._items)

    @property
    def is_one(self) -> bool:
        """Whether writes go together, instead of one by one on the loop."""
        ahead = self._ahead
        is_busy = ahead.running >= _MANY or ahead.programs >= _PROGRAMS
        return is_busy or bool(self._items) or self._landed is not None

    def record_of(self, changes: tuple[Change, ...]) -> bytes | None:
        """Return what `changes` are in the journal; None if they may not go with the others."""
        record = encoded(changes) if self.is_one else None
        return None if record is None or len(record) > _RECORD_BYTES else record

    async def write(self, item: Waiting) -> None:
        """Return when it is durable; raises what the database says, if it had to go there.

        Whoever has gone or was refused when its turn comes is passed over.
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
        """Send what waits on its way, unless something is: that comes back here."""
        if self._landed is not None or not self._items:
            return
        items = self._next()
        if not items:
            return
        changes = [each for item in items for each in item.changes]
        place = self._ahead.place(changes, joined([item.record for item in items]))
        if place is None:
            self._on_refused(items)
            return
        loop = asyncio.get_running_loop()
        self._landed = loop.create_future()
        self._on_their_way.put(_Record(items, changes, place, loop))

    def _next(self) -> list[Waiting]:
        """Take as many, the oldest first, as go into one record."""
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
        self._is_urgent = bool(self._items)  # they have waited for one already
        return items

    def _write_all(self) -> None:
        """On the thread: one after the other."""
        while (record := self._on_their_way.get()) is not None:
            error: Exception | None = None
            try:
                self._ahead.write(record.place)
            except Exception as caught:  # noqa: BLE001 - it may be there, or not
                error = caught
            record.loop.call_soon_threadsafe(self._land, record, error)

    def _land(self, record: _Record, error: Exception | None) -> None:
        if error is None:
            self._ahead.keep(record.changes, record.place)
            self._on_written(len(record.items))
            tell(record.items)
        else:
            self._ahead.fail(error)
            self._on_refused(record.items)
        landed, self._landed = self._landed, None
        if landed is not None:
            landed.set_result(None)
        if self._is_urgent:
            self._go()

    async def landed(self) -> None:
        """Return when nothing is on its way; nothing may be given meanwhile."""
        while self._landed is not None:
            await asyncio.shield(self._landed)

    def give_up(self) -> list[Waiting]:
        """Return what waits, to be written by somebody else."""
        items = list(self._items)
        self._items.clear()
        self._is_urgent = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return items

    async def aclose(self) -> None:
        """Return when nothing is on its way and the thread has ended."""
        await self.landed()
        self._on_their_way.put(None)
        self._thread.join()


def _is_end(changes: tuple[Change, ...]) -> bool:
    return any(isinstance(each, Ended) for each in changes) and not any(
        isinstance(each, Accept) for each in changes
    )


def tell(items: list[Waiting]) -> None:
    """That it is durable, each who still waits."""
    for item in items:
        if not item.done.done():
            item.done.set_result(None)
