"""An event loop whose time stands still until the test moves it.

Not a loop that jumps to its next timer when it has nothing to do: at the other end of a socket, a
pipe or a thread is real work here, which would miss every deadline then. Sockets, processes and
threads are the real ones and take no loop time. A wait that only time ends, and that nothing moves,
hangs until the test's own timeout: a deadline in a test is then the wrong tool.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

_MOST_TURNS = 100_000
Result = TypeVar("Result")
Ts = TypeVarTuple("Ts")


class _Counting(selectors.DefaultSelector):
    """Counts what it finds."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        self.found += len(events)
        return events


class StillLoop(asyncio.SelectorEventLoop):
    """The loop; a test that runs on it gets it from `clock`."""

    def __init__(self) -> None:
        """Begin at a time of its own, so that another clock's is noticed."""
        self._files = _Counting()
        super().__init__(self._files)
        self._now_s = 1_000_000.0
        self._soon = 0
        self._timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        """See `AbstractEventLoop`; it is moved by `advance` only."""
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """See `AbstractEventLoop`; counted, because `settle` has to know."""
        self._soon += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `AbstractEventLoop`; noted, because `advance` stops at each of them."""
        timer = super().call_at(when, callback, *args, context=context)
        self._timers.append(timer)
        return timer

    async def settle(self) -> None:
        """Let everything run that can: what is left waits for time, a thread or a process.

        What lies in a socket or a pipe already is read.
        """
        quiet = 0
        for _ in range(_MOST_TURNS):
            before = self._soon + self._files.found
            await asyncio.sleep(0)
            # One of them is this coroutine. What a timer begins is ready a turn later.
            quiet = quiet + 1 if self._soon + self._files.found == before + 1 else 0
            if quiet == 2:
                return
        raise AssertionError(f"the loop is not at rest after {_MOST_TURNS} turns")

    async def advance(self, seconds: float) -> None:
        """Let time pass, from timer to timer; what each of them begins runs before the next."""
        until_s = self._now_s + seconds
        await self.settle()
        while (next_s := self._next_timer_s()) <= until_s:
            self._now_s = max(self._now_s, next_s)
            await self.settle()
        self._now_s = until_s

    def _next_timer_s(self) -> float:
        self._timers = [
            timer for timer in self._timers if timer.when() > self._now_s and not timer.cancelled()
        ]
        return min((timer.when() for timer in self._timers), default=math.inf)


def clock() -> StillLoop:
    """The loop of this test, which `run` has begun."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    return loop


async def passing(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work` while a minute passes, on a loop of either kind: for the end of a test."""
    task = asyncio.ensure_future(work)
    if isinstance(loop := asyncio.get_running_loop(), StillLoop):
        await loop.advance(60)
    return await task


def run(body: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, on a loop whose time stands still."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(body)
