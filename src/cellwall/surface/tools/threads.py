"""Threads for functions that are not `async`: daemons, kept warm, one for each call under way.

Used by `calls`, which bounds their number (`ToolBox.seats`). It is not an executor of the standard
library: at its end the interpreter waits for the threads of executors, and a function that hangs
would delay it for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_IDLE_S = 10.0

Work = Callable[[], Callable[[], object]]
"""Does a piece of work, and returns the function that reports it."""


class _Worker:
    """One thread."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Work] = SimpleQueue()
        threading.Thread(target=self._main, name="cellwall-tool", daemon=True).start()

    def _main(self) -> None:
        while True:
            try:
                work = self.queue.get(timeout=_IDLE_S)
            except Empty:
                if _retire(self):
                    return
                continue
            tell = work()
            del work
            # Become idle before reporting: the next call comes at once, and finds this worker.
            with _lock:
                _idle.append(self)
            tell()
            del tell


_lock = threading.Lock()
_idle: list[_Worker] = []


def submit(work: Work) -> None:
    """Run `work`, which must not raise, on a thread."""
    with _lock:
        worker = _idle.pop() if _idle else None
    (worker or _Worker()).queue.put(work)


def _retire(worker: _Worker) -> bool:
    """Return whether the worker may end; a caller may have just taken it from the idle list."""
    with _lock:
        if worker not in _idle:
            return False
        _idle.remove(worker)
        return True


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_after_fork)
