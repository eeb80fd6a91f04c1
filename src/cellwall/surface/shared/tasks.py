"""The one place where background tasks start: a group whose owner awaits its end.

It is not a scheduler. It is used for destroying sandboxes after the answer, refilling the pool and
reaping. An error in a task is logged and counted, never lost; `cancel` leaves no task behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

_log = logging.getLogger("cellwall")


class Tasks:
    """A supervised group of tasks on one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self.failed = 0

    def __len__(self) -> int:
        """Return how many tasks are under way."""
        return len(self._running)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work` in the background; its error is logged and counted."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed += 1
            _log.error("background task failed: %s", error, exc_info=error)

    async def wait_below(self, count: int) -> None:
        """Return when fewer than `count` tasks are under way."""
        while len(self._running) >= count:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def wait_empty(self) -> None:
        """Return when no task is under way."""
        await self.wait_below(1)

    async def cancel(self) -> None:
        """Cancel every task and wait until each has ended."""
        for task in self._running:
            task.cancel()
        await self.wait_empty()
