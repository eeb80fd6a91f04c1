"""How many one-shots hold a sandbox at once, and who waits for a place.

Not the pool (`engine.pool`): more than a few dozen programs on a few processors only make each
other slow. First come, first served. The invariant: a place is given back whatever happens, and
a refusal costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from cellwall.model.errors import CapacityError


class Admission:
    """The places."""

    def __init__(self, places: int, most_waiting: int) -> None:
        """`places` at once, `most_waiting` behind them."""
        self._free = places
        self._most_waiting = most_waiting
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.running = 0

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def check(self) -> None:
        """Raise `CapacityError` if nobody more may even wait."""
        if self._free <= 0 and len(self._waiting) >= self._most_waiting:
            raise CapacityError(
                "execute: too many programs wait already", retry_after_s=2, remedy="try again later"
            )

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold one place."""
        self.check()
        if self._free > 0:
            self._free -= 1
        else:
            await self._queue()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._give_back()

    async def _queue(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back()  # it was ours already
            else:
                self._waiting.remove(future)
            raise

    def _give_back(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
