"""The executions of this server: waiting, running and recently ended.

Code runs in `engine`, answers are sent by `streams`, and `ledger` has what is on disk. An execution
belongs to an owner and, in a session, to a sandbox; never to a connection. The invariants: code is
handed over only when its acceptance is on disk, and an end is reported only when that is on disk;
an accepted execution is found until its retention is over; a waiting background execution costs
little more memory than its id.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.engine.scheduling.admission import Cost
from cellwall.model.errors import Conflict
from cellwall.model.ids import accepted_id
from cellwall.server.core.errors import stopping
from cellwall.server.core.request_context import ORIGIN, Origin
from cellwall.server.core.times import steady
from cellwall.server.executions.ledger import Acceptance
from cellwall.server.executions.record import ExecutionRecord, KeptExecution
from cellwall.server.executions.turns import Queued, Turn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from cellwall.engine.attempts.attempt import BeforeCode
    from cellwall.engine.scheduling.fair_queue import FairQueue, Place
    from cellwall.model.secret import Secret
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.executions.ledger import Ledger
    from cellwall.server.executions.order import Order
    from cellwall.store.records.rows import ExecutionRow
    from cellwall.surface.shared.tasks import Tasks

    OnEnded = Callable[[str, Mapping[str, Any], Callable[[], Mapping[str, Any]]], None]
    """Called with the owner, the request's fields (`asked`), and a function that returns the
    answer."""
    Revive = Callable[[ExecutionRow, bytes], Order]

_INTERRUPT_S = 5.0
"""Seconds that interrupted executions get to write their ends to disk."""


class Executions:
    """All executions of this server, by id."""

    def __init__(
        self,
        settings: ServerSettings,
        tasks: Tasks,
        queue: FairQueue,
        ledger: Ledger,
        revive: Revive,
        node: str = "",
    ) -> None:
        """`revive` rebuilds an order from its row and body on disk. `node` begins the ids."""
        self._node = node
        self._settings = settings
        self._tasks = tasks
        self._queue = queue
        self._ledger = ledger
        self._revive = revive
        self._all: dict[str, ExecutionRecord] = {}
        self._queued: dict[str, Queued] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._ended_bytes = 0
        self._is_stopping = False
        self._holds: set[str] = set()
        """Why background executions do not begin now."""
        self.check_new: Callable[[], None] = lambda: None
        """Raises if no one-shot may begin now."""
        self.on_ended: OnEnded | None = None
        """Called for every execution whose end is durable."""
        self._latest: asyncio.Future[None] | None = None
        """Done when the background execution whose turn came last is about to be started."""
        self.total = 0

    @property
    def all(self) -> Mapping[str, ExecutionRecord]:
        """Executions in memory: all that a caller waits for or that run, and some that ended."""
        return self._all

    @property
    def running(self) -> int:
        """Number of executions in memory that have not ended."""
        return len(self._all) - len(self._ended)

    @property
    def waiting(self) -> int:
        """Number of background executions that may begin here, and have not."""
        return 0 if self._holds else len(self._queued)

    # -- beginning -------------------------------------------------------------------------

    def start(self, order: Order) -> ExecutionRecord:
        """Begin `order`, or let it wait for its turn, for a caller that waits for the answer.

        Raises as `FairQueue.ask`, at once and without cost, when the queue has no room for it.
        """
        self._check_open(order)
        execution_id = self._id_of(order)
        turn = Turn()
        if order.cost is None:
            turn.is_given = True
        else:
            turn.waiting = self._queue.ask(order.owner, order.cost, turn.give)
        record = self._add(execution_id, order.owner, order.request_id, order.asked)
        record.replay = order.replay
        record.tools = order.tools
        record.turn = turn
        self.total += 1
        record.task = self._tasks.spawn(self._run(record, self._perform(record, order, turn)))
        return record

    async def submit(self, order: Order) -> str:
        """Accept `order` for the background and return its id once the acceptance is on disk.

        Raises as `start`, or the error of the store; in both cases nothing runs.
        """
        if self._ledger.store is None or order.cost is None:
            return self.start(order).id
        self._check_open(order)
        item = Queued(self._id_of(order), order.owner, self._on_turn)
        origin = ORIGIN.get()
        item.lent = None if origin is None else origin.lent
        item.waiting = self._queue.ask(order.owner, order.cost, item.on_turn)
        self._queued[item.id] = item
        try:
            await self._ledger.accept(self._ledger.acceptance(item.id, order, is_started=False))
        except BaseException:
            del self._queued[item.id]
            item.leave()
            self._ledger.not_accepted(item.id)
            raise
        self.total += 1
        item.is_accepted = True
        if item.place is not None:
            self._begin(item, item.place)
        return item.id

    def restore(self, row: ExecutionRow) -> None:
        """Queue an execution that an earlier server accepted.

        Must be called in the order of acceptance.
        """
        item = Queued(row.id, row.tenant, self._on_turn)
        item.is_accepted = True
        self._queued[item.id] = item
        self._ledger.restored(row)
        cost = Cost(*row.asked.get("cost", ()))
        item.waiting = self._queue.restore(row.tenant, cost, item.on_turn)

    def _on_turn(self, item: Queued, place: Place) -> None:
        item.place = place
        if item.is_accepted:
            self._begin(item, place)

    def _begin(self, item: Queued, place: Place) -> None:
        if self._is_stopping or self._holds:
            return  # the execution stays on disk for the next server, and keeps its place here
        del self._queued[item.id]
        record = item.record
        if record is None:
            record = self._add(item.id, item.owner, "", {})
        record.turn = Turn(place)
        record.task = self._tasks.spawn(self._run(record, self._resume(record, item.lent)))

    def _add(
        self, execution_id: str, owner: str, request_id: str, asked: Mapping[str, Any]
    ) -> ExecutionRecord:
        size = self._settings.spool_bytes
        record = ExecutionRecord(execution_id, owner, request_id, size, asked)
        record.spool.overflow = self._ledger.overflow(execution_id)
        record.on_tool_call = partial(self._ledger.recorder.tool_called, record)
        self._all[execution_id] = record
        return record

    def _id_of(self, order: Order) -> str:
        """Return the id of an order that is about to begin; raises UsageError, `Conflict`.

        An id that only the disk has is not looked for, which would cost each program a read: who
        offers ids draws them anew each time.
        """
        execution_id = accepted_id(order.offered_id, self._node)
        if execution_id in self._all or execution_id in self._queued:
            raise _used(execution_id)
        return execution_id

    def hold(self, why: str, *, is_held: bool) -> None:
        """Leave background executions that wait where they are, or let them begin again.

        `why` names the reason; they begin once there is none.
        """
        if is_held:
            self._holds.add(why)
        elif why in self._holds:
            self._holds.discard(why)
            for item in list(self._queued.values()):
                if item.is_accepted and item.place is not None:
                    self._begin(item, item.place)

    def _check_open(self, order: Order) -> None:
        if self._is_stopping:
            raise stopping()
        if order.cost is not None:
            self.check_new()
        self._ledger.check(order)

    # -- doing -----------------------------------------------------------------------------

    async def _run(self, record: ExecutionRecord, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` and finish the record, whatever happens."""
        try:
            await work
        except asyncio.CancelledError:
            if not record.is_cancelled and record.failure is None:
                record.fail(stopping())
                record.settle()
                raise
        except Exception as error:  # noqa: BLE001 - it belongs to the execution's caller
            record.fail(error)
        finally:
            record.turn.leave()
        await self._finish(record)

    async def _perform(self, record: ExecutionRecord, order: Order, turn: Turn) -> None:
        if turn.is_given:
            await self._accept_and_work(record, order)
            return
        changes = self._ledger.acceptance(record.id, order, is_started=False)
        accepted = asyncio.ensure_future(self._ledger.accept(changes))
        written = [accepted]
        try:
            await asyncio.shield(accepted)
            await turn.wait()
            written.append(asyncio.ensure_future(self._ledger.started(record.id)))
            await self._work(record, order, partial(_passed, written[-1]))
        finally:
            # However the work ended, the pending writes decide what is found on disk. An execution
            # that could not be started is on disk all the same, and so is its key: its end must be
            # written, too.
            await asyncio.wait(written)
            record.is_on_disk = accepted.exception() is None

    async def _accept_and_work(self, record: ExecutionRecord, order: Order) -> None:
        if self._ledger.store is None:
            await self._work(record, order, None)
            return
        # The change is built when it is to be written: by then the guest has its program, and
        # prepares.
        changes = partial(self._ledger.acceptance, record.id, order, is_started=True)
        acceptance = Acceptance(self._ledger.store, changes)
        try:
            await self._work(record, order, acceptance.write)
        finally:
            # Also for an execution that was refused a sandbox: its end must be found.
            record.is_on_disk = await acceptance.settled()

    async def _resume(self, record: ExecutionRecord, lent: tuple[Secret, ...] | None) -> None:
        """Do an execution that is on disk only, but for the secrets that came with it."""
        # The task that gave up a place begins this one, so the context is another request's.
        ORIGIN.set(Origin("", record.owner, lent=lent))
        record.is_on_disk = True
        before, mine = self._latest, asyncio.get_running_loop().create_future()
        self._latest = mine
        try:
            order = await self._read(record)
            if before is not None:
                await asyncio.shield(before)  # reads may overtake each other, starts must not
            started = asyncio.ensure_future(self._ledger.started_at_last(record.id))
        finally:
            mine.set_result(None)
        record.tools = order.tools
        await started
        await self._work(record, order, None)

    async def _read(self, record: ExecutionRecord) -> Order:
        row, body = await self._ledger.waiting_at_last(record.id)
        record.asked, record.request_id = row.asked, row.request_id
        return self._revive(row, body)

    async def _work(
        self, record: ExecutionRecord, order: Order, before_code: BeforeCode | None
    ) -> None:
        execution = await order.work(record.on_event, record.on_start, before_code)
        record.keep(execution)
        self._queue.tenants.spend_output(record.owner, execution.kept_bytes)
        self._ledger.foresee(record)

    async def _finish(self, record: ExecutionRecord) -> None:
        """Write the execution's end, then report it."""
        record.ended_at = steady()
        self._ledger.recorder.seen(record)
        is_refused = not record.has_begun and record.error is not None
        try:
            if record.is_on_disk and not record.is_left:
                await self._ledger.ended(record, is_forgettable=is_refused)
            elif not record.is_on_disk:
                self._ledger.not_accepted(record.id)
        finally:
            is_known = record.is_left or self._ledger.is_unwritten(record.id)
            if is_refused and record.replay is not None and not is_known:
                record.replay.drop()
            record.settle()
            self._retain(record)
        if self.on_ended is not None and not record.is_left:
            self.on_ended(record.owner, record.asked, record.as_json)

    def _cancel_queued(self, item: Queued, record: ExecutionRecord) -> None:
        """End an execution that waits and has no task."""
        if self._queued.pop(item.id, None) is None:
            return
        item.leave()
        record.is_on_disk = True
        self._all[record.id] = record
        record.task = self._tasks.spawn(self._finish(record))

    # -- finding ---------------------------------------------------------------------------

    def has(self, execution_id: str) -> bool:
        """Report whether an execution of that id, of any owner, waits or is in memory."""
        return execution_id in self._all or execution_id in self._queued

    async def find(self, owner: str, execution_id: str) -> ExecutionRecord | KeptExecution | None:
        """Return the owner's execution of that id, or None."""
        record = self._all.get(execution_id)
        if record is not None and record.owner == owner:
            return record
        # Another owner's execution costs the same look-up as one that does not exist.
        row = await self._ledger.find(execution_id)
        if row is not None and row.state == "running" and execution_id not in self._all:
            row = await self._ledger.find(execution_id)  # it ended during the look-up
        record = self._all.get(execution_id)
        if record is not None:
            return record if record.owner == owner else None
        return None if row is None or row.tenant != owner else KeptExecution(row)

    def followed(self, found: ExecutionRecord | KeptExecution) -> ExecutionRecord | KeptExecution:
        """Return an object that can be waited for, read live and cancelled, if it has not ended."""
        if isinstance(found, ExecutionRecord):
            return found
        item = self._queued.get(found.id)
        if item is None:
            return self._all.get(found.id, found)
        if item.record is None:
            record = self._add(found.id, found.owner, found.row.request_id, found.row.asked)
            record.on_cancel = partial(self._cancel_queued, item, record)
            item.record = record
        return item.record

    # -- the end ---------------------------------------------------------------------------

    def _retain(self, record: ExecutionRecord) -> None:
        cost = record.cost_bytes
        self._ended[record.id] = cost
        self._ended_bytes += cost
        settings = self._settings
        most, most_bytes = settings.retained_executions, settings.retained_bytes
        while len(self._ended) > most or self._ended_bytes > most_bytes:
            if not self._forget(next(iter(self._ended))):
                return

    def expire(self) -> None:
        """Forget executions whose retention is over; called periodically."""
        limit = steady() - self._settings.retention_s
        for record_id in list(self._ended):
            ended_at = self._all[record_id].ended_at
            if ended_at is not None and ended_at > limit:
                return
            self._forget(record_id)

    def _forget(self, record_id: str) -> bool:
        """Forget one ended execution; False if memory has the only copy of its end."""
        if self._ledger.is_unwritten(record_id):
            return False
        self._ended_bytes -= self._ended.pop(record_id)
        del self._all[record_id]
        return True

    async def drain(self, wait_s: float, is_forced: Callable[[], bool]) -> None:
        """Accept nothing new, let running executions end for `wait_s` seconds, interrupt the rest.

        Executions that wait for their turn stay on disk for the next server, or are cancelled
        there.
        """
        self._is_stopping = True
        for record in self._open():
            if not record.turn.is_given:
                record.leave(stopping())
        end = time.monotonic() + wait_s
        while (running := self._open()) and time.monotonic() < end and not is_forced():
            await _wait_some(running, min(0.2, max(0.0, end - time.monotonic())))
        for record in self._open():
            record.interrupt("the server was stopped while it ran")
        if running := self._open():
            await asyncio.wait([each.ended for each in running], timeout=_INTERRUPT_S)
        await self._ledger.write_unwritten()

    def _open(self) -> list[ExecutionRecord]:
        return [
            each for each in self._all.values() if each.task is not None and not each.ended.done()
        ]


def _used(execution_id: str) -> Conflict:
    return Conflict(
        f"execution {execution_id}: there is one of this id",
        remedy="ask for that one, or offer a fresh id",
    )


async def _wait_some(records: list[ExecutionRecord], timeout_s: float) -> None:
    await asyncio.wait(
        [each.ended for each in records],
        timeout=timeout_s,
        return_when=asyncio.FIRST_COMPLETED,
    )


async def _passed(written: asyncio.Future[None]) -> None:
    """Wait until `written` is on disk; cancelling the waiting task does not stop the write."""
    await asyncio.shield(written)
