"""Init's event loop: an epoll descriptor, a table of callbacks, and alarms.

Only init and the objects it owns call this. It is not asyncio, which costs pages and microseconds
that every sandbox would pay for.

Every watched descriptor must be non-blocking and must be forgotten *before* it is closed: a forked
child may still hold the same open file, and epoll would go on reporting it for ever.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Loop:
    """Waits for descriptors; after each round of callbacks, flushes what they produced."""

    def __init__(self, after_round: Callable[[], None]) -> None:
        """`after_round` flushes queued output; nothing is watched before `open`."""
        self._epoll: Any = None
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._after_round = after_round
        self._alarms: dict[object, tuple[float, Callable[[], None]]] = {}

    def open(self) -> None:
        """Open the epoll descriptor; not before the last fork that must not share it."""
        self._epoll = select.epoll()

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(events)` whenever `fd` is ready (hang-ups are always reported)."""
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def change(self, fd: int, events: int) -> None:
        """Wait for other events on a watched descriptor."""
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching; harmless when the descriptor is not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def set_alarm(self, whose: object, after_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` once after `after_s` seconds, in place of an earlier alarm of `whose`."""
        self._alarms[whose] = (time.monotonic() + after_s, callback)

    def clear_alarm(self, whose: object) -> None:
        """Clear the alarm of `whose`, if it has one."""
        self._alarms.pop(whose, None)

    def run(self) -> None:
        """Serve for ever."""
        callbacks = self._callbacks
        while True:
            # Flush before the first wait, too: output queued during start-up must not wait for an
            # event.
            self._after_round()
            for fd, events in self._epoll.poll(self._patience_s()):
                # A callback earlier in this round may have forgotten this one.
                callback = callbacks.get(fd)
                if callback is not None:
                    callback(events)
            self._ring()

    def _patience_s(self) -> float:
        if not self._alarms:
            return -1
        return max(0.0, min(at_s for at_s, _ in self._alarms.values()) - time.monotonic())

    def _ring(self) -> None:
        if not self._alarms:
            return
        now_s = time.monotonic()
        for whose, (at_s, callback) in list(self._alarms.items()):
            if now_s >= at_s:
                self._alarms.pop(whose, None)
                callback()
