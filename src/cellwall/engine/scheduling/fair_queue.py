"""Fair queue: places for one-shots, shared fairly between tenants.

It neither runs them (`engine`) nor stores those that wait (the server's store). Pure: no I/O, one
event loop, no task and no future for an item that waits. The invariant: tenants take turns by the
cost of their runs, each tenant's items are first come first served, and every place given comes
back through `Place.release`.

The order is start-time fair queueing: each tenant has a tag, which grows by the weight of every
item it starts; the tenant with the lowest tag is next. A tenant that arrives late or could not use
its turns starts at the current tag, so it waits for one turn of each other tenant and cannot make
up for the past.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from cellwall.engine.scheduling.admission import NOTHING, Cost, Machine, Overcommit
from cellwall.engine.scheduling.quotas import Tenants
from cellwall.model.errors import CapacityError, QuotaExceeded

if TYPE_CHECKING:
    from cellwall.engine.scheduling.quotas import Use

_log = logging.getLogger("cellwall.engine")
_ALWAYS = 16
"""Number of items that each tenant may queue even when the whole queue is full: other tenants
cannot lock it out."""
_PATIENCE = 64
"""Number of other tenants' turns after which an item too large for the free capacity holds the
queue until it fits."""
_WEIGHT_MB = 512
"""MiB of memory that weigh as much as one turn."""
_LONGEST_ADVICE_S = 60.0

OnTurn = Callable[["Place"], None]


async def _is_known(_tenant: str, _cost: Cost) -> None:
    """Return at once: this machine alone holds the tenants' quotas."""


class Place:
    """The right to run one item, and the cost promised with it."""

    __slots__ = ("_at", "_cost", "_line", "_queue")

    def __init__(self, queue: FairQueue, line: _Line, cost: Cost) -> None:
        self._queue: FairQueue | None = queue
        self._line = line
        self._cost = cost
        self._at = queue.clock()

    def release(self) -> None:
        """Give the place back; idempotent."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue._ended(self._line, self._cost, queue.clock() - self._at)


class Promise:
    """The cost promised to a sandbox for its whole life, but the times that it gives it back."""

    __slots__ = ("_cost", "_counted", "_is_held", "_line", "_queue")

    def __init__(
        self, queue: FairQueue, line: _Line, cost: Cost, counted: Cost, *, is_held: bool = True
    ) -> None:
        self._queue: FairQueue | None = queue
        self._is_held = is_held
        self._line = line
        self._cost = cost
        self._counted = counted

    def release(self) -> None:
        """Give the promise back for good; idempotent."""
        self.give_back()
        self._queue = None

    def give_back(self) -> None:
        """Give the promise back until `take_again`; idempotent."""
        if self._queue is not None and self._is_held:
            self._is_held = False
            self._queue._left(self._line, self._cost, self._counted)

    async def room(self) -> None:
        """Wait as `FairQueue.room` does before `take_again`."""
        if self._queue is not None and not self._is_held:
            await self._queue.room(self._line.use.tenant, self._cost)

    def take_again(self) -> None:
        """Hold it again, unless it is held, or given back for good. Raises as `FairQueue.hold`."""
        if self._queue is not None and not self._is_held:
            self._queue.machine.check_ever(self._cost)
            self._queue._take(self._line, self._cost, self._counted, is_new=False)
            self._is_held = True


class Waiting:
    """One item that waits, or has had its turn."""

    __slots__ = ("_cost", "_line", "_on_turn", "_queue", "_seq")

    def __init__(self, queue: FairQueue, line: _Line, cost: Cost, on_turn: OnTurn) -> None:
        self._queue = queue
        self._line = line
        self._cost = cost
        self._on_turn: OnTurn | None = on_turn
        self._seq = line.next_seq

    @property
    def position(self) -> int:
        """Maximum number of turns until its own, 1 for the next; 0 after it or if cancelled."""
        return 0 if self._on_turn is None else self._queue._position(self)

    def cancel(self) -> bool:
        """Leave the queue; report whether the item still waited. Idempotent."""
        if self._on_turn is None:
            return False
        self._on_turn = None
        self._queue._cancelled(self._line)
        return True


class _Line:
    """One tenant's items, in order."""

    __slots__ = ("items", "live", "next_seq", "passed", "tag", "use")

    def __init__(self, use: Use) -> None:
        self.use = use
        self.items: deque[Waiting] = deque()
        """Items in order of arrival. Cancelled items stay until they come up or are more than
        half."""
        self.live = 0
        self.next_seq = 0
        self.tag = 0.0
        self.passed = 0
        """Number of other tenants' turns since this tenant's first item did not fit the machine."""

    def first(self) -> Waiting | None:
        """Return the first item that waits, dropping cancelled ones before it."""
        while self.items and self.items[0]._on_turn is None:
            self.items.popleft()
        return self.items[0] if self.items else None


class FairQueue:
    """Queue of all tenants (see the module). All methods except `place` return at once."""

    def __init__(
        self,
        places: int,
        most_queued: int,
        machine: Machine,
        tenants: Tenants,
        overcommit: Overcommit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`places` bounds the running one-shots, `most_queued` the waiting; `clock` has seconds."""
        self.machine = machine
        self.tenants = tenants
        self.clock = clock
        self._overcommit = overcommit or Overcommit()
        self._places = places
        self._most_queued = most_queued
        self._lines: dict[str, _Line] = {}
        self._waiting: dict[str, _Line] = {}
        """Tenants with waiting items; among equal tags, the first is next."""
        self._now = 0.0
        """Tag of the item that started last."""
        self._runs = NOTHING
        """Sum of the costs promised to running one-shots."""
        self._mean_s = 1.0
        """Recent mean of the seconds that a place is held."""
        self._is_serving = False
        self.running = 0
        self.queued = 0
        self.room: Callable[[str, Cost], Awaitable[None]] = _is_known
        """Function that returns once it is known whether a tenant's quotas have room for a cost,
        which is then held or refused at once; several machines may share the quotas."""

    # -- one-shots -------------------------------------------------------------------------

    def ask(self, tenant: str, cost: Cost, on_turn: OnTurn) -> Waiting:
        """Call `on_turn` with a place: now if one is free, else when it is `tenant`'s turn.

        Raises `UsageError` for a cost that could never run, `QuotaExceeded` or `CapacityError`
        (with `retry_after_s` and `position`) when no further item may wait. `on_turn` must not
        raise.
        """
        line = self._possible(tenant, cost)
        waiting = self._enter(line, cost, on_turn)
        self._serve()
        if waiting._on_turn is not None:
            refusal = self._overfull(line, line.live - 1, self.queued - 1)
            if refusal is not None:
                waiting.cancel()
                raise refusal
        return waiting

    def check(self, tenant: str, cost: Cost) -> None:
        """Raise the error that `ask` would raise now, before the caller prepares anything."""
        line = self._possible(tenant, cost)
        has_place = not line.live and self.running < self._places
        if has_place and line.use.may_run(cost) and self.machine.lacks(cost) is None:
            return
        refusal = self._overfull(line, line.live, self.queued)
        if refusal is not None:
            raise refusal

    def _possible(self, tenant: str, cost: Cost) -> _Line:
        line = self._line(tenant)
        self.machine.check_ever(cost)
        line.use.check_ever(cost)
        self.tenants.check_output(tenant)
        return line

    def resize(self, places: int) -> None:
        """Set the number of places; those that are given stay until they come back."""
        self._places = places
        self._serve()

    def look_again(self) -> None:
        """Start waiting items that may run now that quotas have room again."""
        self._serve()

    def restore(self, tenant: str, cost: Cost, on_turn: OnTurn) -> Waiting:
        """Queue like `ask` an item that was accepted before a restart: it is never refused."""
        line = self._line(tenant)
        waiting = self._enter(line, line.use.within(self.machine.within(cost)), on_turn)
        self._serve()
        return waiting

    @contextlib.asynccontextmanager
    async def place(self, tenant: str, cost: Cost) -> AsyncIterator[None]:
        """Wait for a place and hold it for the length of a block; raises like `ask`."""
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        waiting = self.ask(tenant, cost, turn.set_result)
        try:
            await asyncio.shield(turn)
            yield
        finally:
            waiting.cancel()
            if turn.done():
                turn.result().release()

    # -- sandboxes -------------------------------------------------------------------------

    def hold(self, tenant: str, cost: Cost) -> Promise:
        """Promise `cost` to a sandbox for its whole life, at once or not at all.

        Raises `UsageError` for a cost that can never fit, `QuotaExceeded` or `CapacityError`.
        """
        line = self._line(tenant)
        counted = self._overcommit.counted(cost)
        self.machine.check_ever(cost)
        self._take(line, cost, counted, is_new=True)
        return Promise(self, line, cost, counted)

    def expect(self, tenant: str, cost: Cost) -> Promise:
        """Return the promise to a sandbox that holds nothing before `take_again`."""
        counted = self._overcommit.counted(cost)
        return Promise(self, self._line(tenant), cost, counted, is_held=False)

    def _take(self, line: _Line, cost: Cost, counted: Cost, *, is_new: bool) -> None:
        tenant = line.use.tenant
        self.tenants.check_create(tenant, cost, is_new=is_new)
        name = self.machine.lacks(counted)
        if name is not None:
            raise CapacityError(
                f"admission: the server's {name} are promised to others",
                retry_after_s=5,
                remedy=f"wait, delete sandboxes that are not needed, or ask for less {name}",
            )
        if is_new:
            self.tenants.spend_create(tenant)
        self.machine.take(counted)
        line.use.held += cost
        line.use.sandboxes += 1

    def _left(self, line: _Line, cost: Cost, counted: Cost) -> None:
        self.machine.give_back(counted)
        line.use.held -= cost
        line.use.sandboxes -= 1
        self._serve()

    def waiting_of(self, tenant: str, most: int) -> list[Cost]:
        """Return the costs of a tenant's first waiting one-shots, at most so many."""
        line = self._line(tenant)
        costs = (each._cost for each in line.items if each._on_turn is not None)
        return list(itertools.islice(costs, most))

    # -- order -----------------------------------------------------------------------------

    def _line(self, tenant: str) -> _Line:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line(self.tenants.use(tenant))
        return line

    def _enter(self, line: _Line, cost: Cost, on_turn: OnTurn) -> Waiting:
        if not line.live:
            line.items.clear()
            line.tag = max(line.tag, self._now)
            self._waiting[line.use.tenant] = line
        waiting = Waiting(self, line, cost, on_turn)
        line.next_seq += 1
        line.items.append(waiting)
        self._count(line, 1)
        return waiting

    def _count(self, line: _Line, by: int) -> None:
        line.live += by
        line.use.queued = line.live
        self.queued += by
        if not line.live:
            line.passed = 0
            self._waiting.pop(line.use.tenant, None)

    def _cancelled(self, line: _Line) -> None:
        self._count(line, -1)
        if len(line.items) > 2 * line.live + 64:
            line.items = deque(each for each in line.items if each._on_turn is not None)
        self._serve()  # the cancelled item may have held up the others

    def _serve(self) -> None:
        """Start every item that can start; the loop also sees what callbacks change meanwhile."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while (waiting := self._next()) is not None:
                self._start(waiting)
        finally:
            self._is_serving = False

    def _next(self) -> Waiting | None:
        if self.running >= self._places:
            return None
        passed: list[_Line] = []
        for line in sorted(self._waiting.values(), key=lambda each: each.tag):
            waiting = line.first()
            if waiting is None or not line.use.may_run(waiting._cost):
                continue
            if self.machine.lacks(waiting._cost) is None:
                for each in passed:
                    each.passed += 1
                return waiting
            if line.passed >= _PATIENCE and not self.machine.lacks(waiting._cost, self._runs):
                return None
            passed.append(line)
        return None

    def _start(self, waiting: Waiting) -> None:
        line, cost, on_turn = waiting._line, waiting._cost, waiting._on_turn
        line.items.popleft()
        waiting._on_turn = None
        self._now = max(self._now, line.tag)
        line.tag = self._now + max(1.0, cost.memory_mb / _WEIGHT_MB, cost.cpus)
        line.passed = 0
        if self._waiting.pop(line.use.tenant, None) is not None:
            self._waiting[line.use.tenant] = line  # behind tenants with the same tag
        self._count(line, -1)
        self.running += 1
        line.use.running += 1
        line.use.held += cost
        self._runs += cost
        self.machine.take(cost)
        place = Place(self, line, cost)
        try:
            if on_turn is not None:
                on_turn(place)
        except Exception:  # noqa: BLE001 - one caller's fault must not end the others' turns
            _log.exception("queue: what was to run could not be told that it is its turn")
            place.release()

    def _ended(self, line: _Line, cost: Cost, held_s: float) -> None:
        self._mean_s += (held_s - self._mean_s) / 16
        self.running -= 1
        line.use.running -= 1
        line.use.held -= cost
        self._runs -= cost
        self.machine.give_back(cost)
        self._serve()

    # -- words -----------------------------------------------------------------------------

    def _position(self, waiting: Waiting) -> int:
        line = waiting._line
        first = line.first()
        before = 0 if first is None else min(waiting._seq - first._seq, line.live - 1)
        return self._turns_until(line, before)

    def _turns_until(self, line: _Line, before: int) -> int:
        """Return the maximum number of turns until an item with `before` of its tenant ahead."""
        others = (each for each in self._waiting.values() if each is not line)
        return 1 + before + sum(min(each.live, before + 1) for each in others)

    def _overfull(self, line: _Line, own: int, everybodys: int) -> CapacityError | None:
        """Return the refusal of one more item of `line` behind so many others, or None."""
        most = line.use.quotas.queued
        position = self._turns_until(line, own)
        advice_s = position / max(1, self._places) * self._mean_s
        advice_s = min(_LONGEST_ADVICE_S, max(1.0, advice_s))
        words = f"the next would be number {position}"
        refusal: CapacityError
        if most is not None and own >= most:
            refusal = QuotaExceeded(
                "queued",
                f"quota queued: {own} of {most} wait, {words}",
                retry_after_s=advice_s,
                remedy="wait for some of yours to end, or ask the operator for a larger tier",
            )
        elif everybodys >= self._most_queued and own >= min(_ALWAYS, self._most_queued):
            refusal = CapacityError(
                f"queue: {everybodys} programs wait already, {words}",
                retry_after_s=advice_s,
                remedy="try again later",
            )
        else:
            return None
        refusal.position = position
        return refusal
