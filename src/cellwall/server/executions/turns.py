"""Waiting for a place in the queue: for a connected caller, or in the background.

The order of turns is decided by `engine.scheduling.fair_queue`. The invariant: a place that was
given is given back exactly once, also when the waiting task is cancelled at that moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.engine.scheduling.fair_queue import Place, Waiting
    from cellwall.model.secret import Secret
    from cellwall.server.executions.record import ExecutionRecord

    OnTurn = Callable[["Queued", Place], None]


class Turn:
    """The turn of an execution that has a task."""

    __slots__ = ("_arrival", "_place", "given_at", "is_given", "waiting")

    def __init__(self, place: Place | None = None) -> None:
        """`place` is set if it was given already."""
        self.waiting: Waiting | None = None
        self.is_given = place is not None
        self.given_at = time.time()
        """When the turn came, in seconds since the epoch."""
        self._place = place
        self._arrival: asyncio.Future[None] | None = None

    def give(self, place: Place) -> None:
        """Take the place; the queue calls this when the turn comes."""
        self._place = place
        self.is_given = True
        self.given_at = time.time()
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def wait(self) -> None:
        """Return when the turn has come."""
        if not self.is_given:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival

    def leave(self) -> None:
        """Stop waiting, or give the place back; idempotent."""
        if self.waiting is not None:
            self.waiting.cancel()
        if self._place is not None:
            self._place.release()


class Queued:
    """An execution that waits in the background, without a task; its body is in the store."""

    __slots__ = ("_on_turn", "id", "is_accepted", "lent", "owner", "place", "record", "waiting")

    def __init__(self, execution_id: str, owner: str, on_turn: OnTurn) -> None:
        self.id = execution_id
        self.owner = owner
        self.waiting: Waiting | None = None
        self.place: Place | None = None
        self.record: ExecutionRecord | None = None
        """Record of the execution if a caller follows it."""
        self.is_accepted = False
        self.lent: tuple[Secret, ...] | None = None
        """Secrets that came with its request (`Origin.lent`), which are in no store."""
        self._on_turn = on_turn

    def on_turn(self, place: Place) -> None:
        """Pass the place on; the queue calls this when the turn comes."""
        self._on_turn(self, place)

    def leave(self) -> None:
        """Stop waiting, or give the place back."""
        if self.waiting is not None:
            self.waiting.cancel()
        if self.place is not None:
            self.place.release()
