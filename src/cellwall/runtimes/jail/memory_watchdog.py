"""A task that enforces the memory limit of sandboxes where no cgroup does: it looks, and it kills.

Runs on asyncio in the engine process. How memory is counted is in `jail.inspect.usage_sums`. A look
takes 0.05 ms of the event loop if nothing inside has used memory, and 1 ms otherwise. So the longer
a sandbox is idle, the less often the watchdog looks at it, and most of the time is for other work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Protocol
from weakref import WeakKeyDictionary


class Watched(Protocol):
    """The part of a sandbox that the watchdog uses."""

    @property
    def is_closing(self) -> bool:
        """Whether the sandbox is being closed."""

    @property
    def idle_looks(self) -> int:
        """Number of consecutive looks that found no use of memory inside."""

    def kill_above_limit(self) -> None:
        """Look at the sandbox, and kill if it has more memory than it may have. Raises OSError."""


_ROUND_S = 0.05
_MOST_S = 0.2
"""Most seconds between two looks at a sandbox in which nothing happens."""
_STRETCH_S = 0.002
"""Seconds of looks after which other work of the loop gets its turn."""
_REST = 2.0
"""Minimum pause after a round, as a multiple of the time its looks took. A look at a program of a
hundred processes is expensive, and such a program must not have the event loop for itself."""


class Watchdog:
    """The memory watchdog of one runtime; it runs while there are sandboxes."""

    def __init__(self, live: Collection[Watched]) -> None:
        """Watch the sandboxes that are in `live` at the time of each round."""
        self._live = live
        self._seen_s: WeakKeyDictionary[Watched, float] = WeakKeyDictionary()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Start the watchdog's task unless it runs."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def aclose(self) -> None:
        """Stop the watchdog."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        try:
            while self._live:
                looking_s = await self._look_at_all()
                await asyncio.sleep(max(_ROUND_S, _REST * looking_s))
        finally:
            self._task = None

    async def _look_at_all(self) -> float:
        """Look at every sandbox that is due; return the seconds that the looks took."""
        now = asyncio.get_running_loop().time
        whole_s = stretch_s = 0.0
        for sandbox in tuple(self._live):
            begun = now()
            if sandbox.is_closing or not self._is_due(sandbox, begun):
                continue
            self._seen_s[sandbox] = begun
            with contextlib.suppress(OSError):  # no descriptor left, for example; retried later
                sandbox.kill_above_limit()
            took = now() - begun
            whole_s += took
            stretch_s += took
            if stretch_s > _STRETCH_S:
                stretch_s = 0.0
                await asyncio.sleep(0)
        return whole_s

    def _is_due(self, sandbox: Watched, now_s: float) -> bool:
        pause_s = min(_MOST_S, _ROUND_S * sandbox.idle_looks)
        return now_s - self._seen_s.get(sandbox, 0.0) >= pause_s
