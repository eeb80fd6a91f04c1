"""The loop interface that parts of init expect, on asyncio, and called later and less often.

Runs in the engine process; used by `channel`, which does for a sandbox of one program what init
does for others. Most such programs end before anything is watched here, and a stream that is
written to all the time wakes this loop once in a millisecond, not for each line. It reads nothing
itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cellwall.guest.channel.loop import READ
from cellwall.runtimes.channel.loop_share import Hearing

_FIRST_S = 0.003
"""Seconds until the first look at a program's output; the program's end is noticed at once."""
_GATHER_S = 0.001
_FLOOD_S = 0.0025
"""Seconds between two reads after `slow_down`, multiplied by the number of loops that slowed down.
A wide pipe passes 300 MB a second that way, which costs the loop 9 % of its time, and more floods
cost it no more."""


class LateLoop:
    """Watches the reading ends of one sandbox; callbacks get an event mask, as init's do."""

    _floods = 0
    """Number of all loops that have slowed down."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._registered: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._alarms: dict[object, asyncio.TimerHandle] = {}
        self._is_paused = False
        self._is_flooded = False
        self._hearing = Hearing()
        self._deaf_until = 0.0
        self._unheard: set[int] = set()
        """Descriptors with data that their callback has not been told of."""

    def watch(self, fd: int, _events: int, callback: Callable[[int], None]) -> None:
        """Call `callback` whenever `fd` can be read, soon."""
        self._callbacks[fd] = callback
        self._arm(_FIRST_S)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`; harmless when it is not watched."""
        self._callbacks.pop(fd, None)
        self._unheard.discard(fd)
        self._unregister(fd)

    def come_back(self, fd: int) -> None:
        """Call the descriptor's callback at the next opportunity, even without new data."""
        self._unheard.add(fd)
        self._arm(self.pause_s)

    def spend(self, spent_s: float, frames: int, nbytes: int, apart_s: float) -> None:
        """Account for what a callback has read; this may delay the next one."""
        now = time.perf_counter()
        self._deaf_until = now + self._hearing.spend(now, spent_s, frames, nbytes, apart_s)

    def set_alarm(self, whose: object, after_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` once after `after_s` seconds, unless this is closed before."""
        self._alarms[whose] = self._loop.call_later(after_s, callback)

    def slow_down(self) -> None:
        """Read more slowly: from now on all output is above its bound and is thrown away."""
        if not self._is_flooded:
            self._is_flooded = True
            LateLoop._floods += 1

    @property
    def pause_s(self) -> float:
        """Seconds until the next callback."""
        gather_s = _FLOOD_S * LateLoop._floods if self._is_flooded else _GATHER_S
        if not self._deaf_until:
            return gather_s
        return max(gather_s, self._deaf_until - time.perf_counter())

    def pause(self) -> None:
        """Call no callback until `resume`."""
        self._is_paused = True
        for fd in tuple(self._registered):
            self._unregister(fd)

    def resume(self) -> None:
        """Undo `pause`."""
        self._is_paused = False
        if self._callbacks:
            self._arm(self.pause_s)

    def close(self) -> None:
        """Stop watching everything; the descriptors stay with their owners."""
        for fd in tuple(self._registered):
            self._unregister(fd)
        self._callbacks.clear()
        self._unheard.clear()
        self._hearing.close()
        for timer in (self._timer, *self._alarms.values()):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._alarms.clear()
        if self._is_flooded:
            self._is_flooded = False
            LateLoop._floods -= 1

    def abandon(self) -> None:
        """Forget what is watched, in a forked child, and leave the loop alone."""
        self._registered.clear()
        self._callbacks.clear()

    def _arm(self, after_s: float) -> None:
        if self._timer is None and not self._is_paused:
            self._timer = self._loop.call_later(after_s, self._register)

    def _register(self) -> None:
        self._timer = None
        if self._is_paused:
            return
        if self._deaf_until > time.perf_counter():
            self._arm(self.pause_s)  # too much was read since this was scheduled
            return
        for fd in self._callbacks:
            if fd in self._unheard:
                self._loop.call_soon(self._on_readable, fd)
            elif fd not in self._registered:
                self._registered.add(fd)
                self._loop.add_reader(fd, self._on_readable, fd)

    def _unregister(self, fd: int) -> None:
        if fd in self._registered:
            self._registered.discard(fd)
            self._loop.remove_reader(fd)

    def _on_readable(self, fd: int) -> None:
        if self._is_paused:
            return
        self._unregister(fd)
        self._unheard.discard(fd)
        callback = self._callbacks.get(fd)
        if callback is not None:
            callback(READ)
        if self._callbacks:
            self._arm(self.pause_s)
