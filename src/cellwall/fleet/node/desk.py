"""Desk: the items that a node was given, what of them has ended, and what its driver has heard.

Not how an item is done (`work`). The invariants: an item begins once, however often it arrives; one
that the driver was told is missing never begins; a result is kept until the driver has it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cellwall.fleet.wire.items import Json
from cellwall.fleet.wire.letters import MOST_BYTES, MOST_RESULTS, reply
from cellwall.surface.shared.tasks import Tasks

Work = Callable[[Json], Awaitable[bytes]]
"""Does one item and returns its result as JSON; never raises but for cancellation."""

_MOST_WAIT_S = 10.0
"""Longest wait of a letter for a first result."""
_QUEUED = frozenset({"program"})
"""What waits for a place; all else begins at once."""


@dataclass(slots=True)
class _Waiting:
    """A letter whose reply waits for results."""

    want: int
    ready: asyncio.Event


class Desk:
    """The desk of one node."""

    def __init__(
        self, work: Work, at_once: int, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """`at_once`: number of programs under way together; the others wait.

        `is_over` tells whether the node's lease has ended, after which nothing begins.
        """
        self._work = work
        self._at_once = at_once
        self._is_over = is_over
        self._tasks = Tasks()
        self._queue: deque[Json] = deque()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._places = 0
        self._barred: set[str] = set()
        self._known: set[str] = set()
        """Tickets that were taken and whose result the driver has not."""
        self._ready: OrderedDict[str, bytes] = OrderedDict()
        """Results that no reply has carried yet."""
        self._carried: dict[str, bytes] = {}
        """Results that a reply has carried, until the driver has them."""
        self._letters: list[_Waiting] = []
        self._is_open = True
        self.begun = 0
        """Number of programs that have begun."""

    @property
    def running(self) -> int:
        """Number of items under way."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of programs that wait for a place."""
        return len(self._queue)

    async def exchange(self, letter: Json) -> bytes:
        """Take a letter's items, and reply with what has ended."""
        for ticket in letter["have"]:
            self._forget(ticket)
        self._cancel(letter["cancel"])
        missing = [ticket for ticket in letter["expect"] if not self._answers_for(ticket)]
        refused = [item["id"] for item in letter["items"] if not self._take(item)]
        if letter["want"] and not (refused or missing):
            await self._wait(letter["want"], letter["linger_s"])
        return reply(self._carry(), refused, missing)

    def close(self) -> None:
        """Take nothing any longer; programs that wait for a place never begin."""
        self._is_open = False
        self._queue.clear()
        for letter in self._letters:
            letter.ready.set()

    async def stop(self) -> None:
        """Close, and cancel what is under way."""
        self.close()
        await self._tasks.cancel()

    # -- items -----------------------------------------------------------------------------

    def _take(self, item: Json) -> bool:
        ticket = item["id"]
        if not self._is_open or self._is_over() or ticket in self._barred:
            return False
        if ticket in self._known:
            return True
        self._known.add(ticket)
        if item["op"] in _QUEUED:
            self._queue.append(item)
            self._fill()
        else:
            self._begin(item)
        return True

    def _fill(self) -> None:
        while self._queue and self._places < self._at_once and not self._is_over():
            self._places += 1
            self.begun += 1
            self._begin(self._queue.popleft())

    def _begin(self, item: Json) -> None:
        self._running[item["id"]] = self._tasks.spawn(self._do(item))

    async def _do(self, item: Json) -> None:
        ticket = item["id"]
        try:
            result = await self._work(item)
            if ticket in self._known:
                self._ready[ticket] = result
        finally:
            del self._running[ticket]
            if item["op"] in _QUEUED:
                self._places -= 1
                self._fill()
            self._tell()

    def _cancel(self, tickets: Iterable[str]) -> None:
        for ticket in tickets:
            self._forget(ticket)
            self._barred.add(ticket)
            self._queue = deque(item for item in self._queue if item["id"] != ticket)
            task = self._running.get(ticket)
            if task is not None:
                task.cancel()

    # -- results ---------------------------------------------------------------------------

    def _answers_for(self, ticket: str) -> bool:
        """Whether the ticket's result has come or will; a ticket that is not known is barred."""
        result = self._carried.pop(ticket, None)
        if result is not None:
            self._ready[ticket] = result
        if ticket in self._known:
            return True
        self._barred.add(ticket)
        return False

    def _forget(self, ticket: str) -> None:
        self._known.discard(ticket)
        self._carried.pop(ticket, None)
        self._ready.pop(ticket, None)

    def _tell(self) -> None:
        for letter in self._letters:
            if len(self._ready) >= letter.want or self._is_idle:
                letter.ready.set()

    @property
    def _is_idle(self) -> bool:
        return not self._running and not self._queue

    async def _wait(self, want: int, linger_s: float) -> None:
        """Wait for a result, then until there are `want` or `linger_s` seconds have passed."""
        for count, most_s in ((1, _MOST_WAIT_S), (min(want, MOST_RESULTS), linger_s)):
            if len(self._ready) >= count or self._is_idle or not self._is_open:
                continue
            waiting = _Waiting(count, asyncio.Event())
            self._letters.append(waiting)
            try:
                async with asyncio.timeout(most_s):
                    await waiting.ready.wait()
            except TimeoutError:
                pass
            finally:
                self._letters.remove(waiting)

    def _carry(self) -> list[bytes]:
        """Return results for one reply; they stay until the driver has them."""
        results: list[bytes] = []
        size = 0
        while self._ready and len(results) < MOST_RESULTS and size < MOST_BYTES:
            ticket, result = self._ready.popitem(last=False)
            self._carried[ticket] = result
            results.append(result)
            size += len(result)
        return results


def counts(desk: Desk) -> dict[str, Any]:
    """Return a desk's numbers as JSON."""
    return {"running": desk.running, "waiting": desk.waiting, "begun": desk.begun}
