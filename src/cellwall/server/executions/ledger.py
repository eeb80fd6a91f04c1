"""What the store holds of executions, and when it is written.

The registry, which runs the executions, reaches the store only through this module. Without a store
nothing is written and everything else is the same. The invariants: an execution is accepted,
started and ended in this order; an end that could not be written is kept in memory, said in the
execution's notes, and written when the store is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cellwall.model.errors import CapacityError, CellwallError
from cellwall.model.execution import Event
from cellwall.server.core.times import steady
from cellwall.server.streaming.event_line import Line
from cellwall.server.streaming.overflow import Overflow, chunk_of
from cellwall.store.records.changes import Accept, Change, DropReplay, Ended, Started, size_of
from cellwall.store.records.errors import StoreConflict, StoreFull
from cellwall.store.records.rows import ExecutionRow
from cellwall.wire.answer import event_line, one_line

if TYPE_CHECKING:
    from cellwall.server.executions.disk_quota import Kept
    from cellwall.server.executions.order import Order
    from cellwall.server.executions.record import ExecutionRecord
    from cellwall.store.records.rows import EventChunk
    from cellwall.store.store import Store
    from cellwall.surface.shared.tasks import Tasks

_T = TypeVar("_T")
_AGAIN_S = 1.0
"""Seconds between two attempts to write what the store did not take."""
_MOST_BYTES = 15 * 1024 * 1024
"""Bytes of events of one execution written while it runs; memory's share makes it 16 MiB at
most."""
_MOST_UNWRITTEN = 1000
_TOLD_BYTES = 16 * 1024
"""Largest answer text, in bytes, kept in memory between writing and reporting the end; a larger one
is encoded again."""
_UNWRITTEN_BYTES = 256 * 1024 * 1024
_NOT_WRITTEN = (
    "this end is not on disk yet, the store could not write: it is lost if the server ends "
    "before it can"
)


class Recorder(Protocol):
    """Adds audit records to the transactions of the executions they are about."""

    def accept(self, execution_id: str, order: Order) -> tuple[Change, ...]:
        """Return the changes that join the acceptance; if they cannot be written, nothing runs."""

    def ended(self, record: ExecutionRecord, answer: dict[str, Any]) -> tuple[Change, ...]:
        """Return the changes that join the end."""

    def seen(self, record: ExecutionRecord) -> None:
        """Take note of an end, also without a store."""

    def tool_called(self, record: ExecutionRecord, call: Mapping[str, Any]) -> None:
        """Take note of a finished call to one of the client's tools."""


class _NoRecorder:
    """A recorder that writes nothing."""

    def seen(self, record: ExecutionRecord) -> None:
        pass

    def tool_called(self, record: ExecutionRecord, call: Mapping[str, Any]) -> None:
        pass

    def accept(self, execution_id: str, order: Order) -> tuple[Change, ...]:
        return ()

    def ended(self, record: ExecutionRecord, answer: dict[str, Any]) -> tuple[Change, ...]:
        return ()


class Acceptance:
    """The write of "accepted and started": made once, however many tasks wait for it."""

    def __init__(self, store: Store, changes: Callable[[], Sequence[Change]]) -> None:
        """`changes` builds the changes at the moment they are to be written."""
        self._store = store
        self._changes = changes
        self._is_written = False
        self._writing: asyncio.Future[None] | None = None

    async def write(self) -> None:
        """Return when the acceptance is on disk, without waiting where the store allows that.

        Raises `CapacityError` or another `CellwallError` if it cannot be written; then nothing must
        run.
        """
        if self._is_written:
            return
        if self._writing is None:
            changes = self._changes()
            if self._store.take(*changes):
                self._is_written = True
                return
            self._writing = asyncio.ensure_future(self._store.write(*changes))
        await asyncio.shield(self._writing)

    async def settled(self) -> bool:
        """Report whether the acceptance is on disk; writes it, or waits for the pending write."""
        try:
            await self.write()
        except CellwallError:
            return False
        return True


class Ledger:
    """The executions in the store; see the module."""

    def __init__(
        self, store: Store | None, tasks: Tasks, kept: Kept, recorder: Recorder | None = None
    ) -> None:
        """Without a store (None) nothing outlives this server."""
        self.store = store
        self._kept = kept
        self.recorder: Recorder = recorder or _NoRecorder()
        self._tasks = tasks
        self._last_seq = 0
        self._unwritten: dict[str, tuple[ExecutionRecord, tuple[Change, ...]]] = {}
        self._unwritten_bytes = 0
        self._writing: asyncio.Task[None] | None = None

    def go_on_after(self, seq: int) -> None:
        """Number further acceptances above `seq`."""
        self._last_seq = seq

    @property
    def unwritten(self) -> int:
        """Number of ends that wait until the store can be written again."""
        return len(self._unwritten)

    def is_unwritten(self, execution_id: str) -> bool:
        """Report whether memory has the only copy of the execution's end."""
        return execution_id in self._unwritten

    def check(self, order: Order) -> None:
        """Raise `QuotaExceeded` or `StoreFull` if the store may not take what `order` adds.

        It takes nothing while too many ends wait to be written: each of them is held in memory.
        """
        if self.store is None:
            return
        self._kept.check(order.owner, len(order.body or b"") if order.outlives else 0)
        if len(self._unwritten) >= _MOST_UNWRITTEN or self._unwritten_bytes >= _UNWRITTEN_BYTES:
            raise StoreFull(
                f"accept: {len(self._unwritten)} ends of others could not be written yet",
                retry_after_s=_AGAIN_S,
                remedy="try again; the operator has to look after the database's disk",
            )

    # -- before ----------------------------------------------------------------------------

    def overflow(self, execution_id: str) -> Overflow | None:
        """Return the place for the execution's oldest events when memory is full, or None."""
        if self.store is None:
            return None
        return Overflow(execution_id, self.store, self._tasks, _MOST_BYTES)

    def acceptance(
        self, execution_id: str, order: Order, *, is_started: bool
    ) -> tuple[Change, ...]:
        """Return the changes of an acceptance, for `accept` or an `Acceptance`.

        With `is_started` they also say that the execution is started, because its turn is at once.
        """
        if self.store is None:
            return ()
        self._last_seq += 1
        row = _row(execution_id, order, self._last_seq, is_started=is_started)
        if row.body is not None:
            self._kept.wait(execution_id, order.owner, len(row.body))
        replay = () if order.replay is None else order.replay.changes(execution_id)
        return (Accept(row), *replay, *self.recorder.accept(execution_id, order))

    async def accept(self, acceptance: Sequence[Change]) -> None:
        """Write an acceptance.

        Raises `CapacityError` or another `CellwallError` if it cannot be written; then nothing must
        run.
        """
        if self.store is not None:
            await self.store.write(*acceptance)

    def not_accepted(self, execution_id: str) -> None:
        """Stop counting the execution's body: its acceptance is not on disk after all."""
        self._kept.waits_no_more(execution_id)

    def restored(self, row: ExecutionRow) -> None:
        """Count the body of an execution that an earlier server accepted and that waits again."""
        self._kept.wait(row.id, row.tenant, int(row.asked.get("body_bytes", 0)))

    async def started(self, execution_id: str) -> None:
        """Write that the execution's code is about to be handed over. Raises as `accept`."""
        if self.store is not None:
            await self.store.write(Started(execution_id, time.time()))
            self._kept.waits_no_more(execution_id)

    async def started_at_last(self, execution_id: str) -> None:
        """Write the start as `started` does, repeated until the store takes it.

        For background executions, whose caller does not wait. Raises `StoreConflict` if the
        execution has started before: then it must not run.
        """
        await _at_last(partial(self.started, execution_id))

    # -- the end ---------------------------------------------------------------------------

    def foresee(self, record: ExecutionRecord) -> None:
        """Count an estimate of the end's size against the tenant, before its place is freed."""
        if self.store is not None:
            record.foreseen_bytes = record.cost_bytes + _written_before(record)
            self._kept.keep(record.owner, record.foreseen_bytes, steady())

    async def ended(self, record: ExecutionRecord, *, is_forgettable: bool) -> None:
        """Write the execution's end; it is reported only after this. Never raises `CellwallError`.

        `is_forgettable`: the idempotency key may be used again, since nothing was started.
        """
        self._kept.waits_no_more(record.id)
        store = self.store
        if store is None:
            return
        value = record.final()
        text = one_line(value)
        record.text = text if len(text) <= _TOLD_BYTES else ""
        chunks = await _chunks(record)
        end = Ended(record.id, record.ended_at or steady(), value, chunks, text)
        more = size_of(end) + _written_before(record) - record.foreseen_bytes
        if record.foreseen_bytes == 0:
            self._kept.keep(record.owner, more, end.at)
        elif more > 0:
            self._kept.keep_more(record.owner, more, end.at)
        changes: list[Change] = [end]
        changes += self.recorder.ended(record, value)
        if is_forgettable and record.replay is not None:
            changes.append(DropReplay(record.owner, record.replay.key))
        try:
            await store.write(*changes)
        except StoreConflict:
            raise
        except CellwallError:
            record.notes.append(_NOT_WRITTEN)
            record.text = ""
            self._unwritten[record.id] = (record, tuple(changes))
            self._unwritten_bytes += record.cost_bytes
            if self._writing is None:
                self._writing = self._tasks.spawn(self._write_later())

    async def _write_later(self) -> None:
        try:
            while self._unwritten:
                await asyncio.sleep(_AGAIN_S)
                await self.write_unwritten()
        finally:
            self._writing = None

    async def write_unwritten(self) -> None:
        """Try to write the ends that could not be written before, oldest first."""
        store = self.store
        while store is not None and self._unwritten:
            execution_id, (record, changes) = next(iter(self._unwritten.items()))
            try:
                # The change may have been written although the store answered with an error.
                with contextlib.suppress(StoreConflict):
                    await store.write(*changes)
            except CellwallError:
                return
            self._unwritten.pop(execution_id, None)
            self._unwritten_bytes -= record.cost_bytes
            record.notes.remove(_NOT_WRITTEN)
            if record.replay is not None and any(isinstance(it, DropReplay) for it in changes):
                # not earlier: the store would have returned the key's use again
                record.replay.drop()

    # -- reading ---------------------------------------------------------------------------

    async def find(self, execution_id: str) -> ExecutionRow | None:
        """Return the execution's row, or None if it is not on disk."""
        return None if self.store is None else await self.store.execution(execution_id)

    async def waiting_at_last(self, execution_id: str) -> tuple[ExecutionRow, bytes]:
        """Return a waiting execution's row and body, repeated until the store answers.

        For background executions, whose caller does not wait. Raises another `CellwallError` if the
        row or the store is missing.
        """
        row = await _at_last(partial(self.find, execution_id))
        if self.store is None or row is None:
            raise CellwallError(f"execution {execution_id}: what it was asked for is gone")
        return row, await _at_last(partial(self.store.body, execution_id))


def _written_before(record: ExecutionRecord) -> int:
    """Return the number of bytes of the execution's events that the store has."""
    overflow = record.spool.overflow
    return 0 if overflow is None else overflow.written_bytes


async def _at_last(do: Callable[[], Awaitable[_T]]) -> _T:
    """Return what `do` returns; repeat it as long as it raises `CapacityError`."""
    while True:
        try:
            return await do()
        except CapacityError as error:
            await asyncio.sleep(min(error.retry_after_s, _AGAIN_S))


def _row(execution_id: str, order: Order, seq: int, *, is_started: bool) -> ExecutionRow:
    now = time.time()
    body = order.body if order.outlives and not is_started else None
    asked = dict(order.asked)
    if body is not None:
        asked["body_bytes"] = len(body)
    return ExecutionRow(
        id=execution_id,
        tenant=order.owner,
        seq=seq,
        sandbox_id=order.asked.get("sandbox_id"),
        state="running" if is_started else "queued",
        request_id=order.request_id,
        asked=asked,
        body=body,
        on_disconnect=order.on_disconnect if order.outlives else "cancel",
        created_at=now,
        started_at=now if is_started else None,
    )


async def _chunks(record: ExecutionRecord) -> tuple[EventChunk, ...]:
    """Return the events that are not on disk yet, the last one included."""
    spool, content = record.spool, record.end_content()
    value = (
        event_line(content) if isinstance(content, Event) else {"seq": spool.last + 1, **content}
    )
    last = Line(spool.last + 1, "end", one_line(value))
    waited: Sequence[Line] = [] if spool.overflow is None else await spool.overflow.rest()
    runs: list[list[Line]] = []
    for line in (*waited, *spool.lines(), last):
        if not runs or line.seq != (runs[-1][-1].seq or 0) + 1:
            runs.append([])
        runs[-1].append(line)
    return tuple(chunk_of(record.id, run) for run in runs)
