"""Holds the memory of sandboxes where no cgroup does: looks at each, and kills.

Not how memory is counted (`jail.inspect.usage_sums`). A look takes 0.05 ms of the event loop where
nothing inside has touched memory, and 1 ms where something has; so the longer nothing happens in a
sandbox the less often it is looked at, and most of the time is for other work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Protocol
from weakref import WeakKeyDictionary


class Watched(Protocol):
    """What it asks of a sandbox."""

    @property
    def is_closing(self) -> bool:
        """Whether it is on its way out."""

    @property
    def idle_looks(self) -> int:
        """How many looks in a row found that nothing inside touched memory."""

    def kill_above_limit(self) -> None:
        """Look, and kill it if it has more memory than it may have. Raises OSError."""


_ROUND_S = 0.05
_MOST_S = 0.2
"""Between two looks at a sandbox in which nothing happens."""
_STRETCH_S = 0.002
"""Of looks, until other work gets its turn."""
_REST = 2.0
"""As long as the looks of a round took, so many times, is the pause after it at least: a program of
a hundred processes makes each look at it dear, and must not have the event loop for itself."""


class Watchdog:
    """Of one runtime; at work while there are sandboxes."""

    def __init__(self, live: Collection[Watched]) -> None:
        """Look at whatever is in `live` at the time."""
        self._live = live
        self._seen_s: WeakKeyDictionary[Watched, float] = WeakKeyDictionary()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Begin, unless it is at work."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def aclose(self) -> None:
        """Stop."""
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
        """Look at whoever is due; returns how long the looks took."""
        now = asyncio.get_running_loop().time
        whole_s = stretch_s = 0.0
        for sandbox in tuple(self._live):
            begun = now()
            if sandbox.is_closing or not self._is_due(sandbox, begun):
                continue
            self._seen_s[sandbox] = begun
            with contextlib.suppress(OSError):  # of no descriptors, say: there is a next round
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
