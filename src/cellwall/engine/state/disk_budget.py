"""The bytes on disk that sessions may take which are written down, for one engine.

`copies` has it. What writes takes its bytes as they come, from any thread. So forks at the same
time, and a session that writes without end, stay below the bound together.
"""

from __future__ import annotations

import threading


class DiskBudget:
    """The bytes of all sessions that are written down."""

    def __init__(self, most_bytes: int) -> None:
        """Nothing is taken yet."""
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self.used_bytes = 0

    def begin(self, most_bytes: int) -> SessionBudget:
        """Return what one session may take of it, at most that much."""
        return SessionBudget(self, most_bytes)

    def change(self, count: int) -> bool:
        """Take `count` bytes, or give them back if negative; report whether there are so many."""
        with self._lock:
            if self.used_bytes + count > self._most_bytes:
                return False
            self.used_bytes += count
            return True


class SessionBudget:
    """The bytes of one session."""

    def __init__(self, whole: DiskBudget, most_bytes: int) -> None:
        """Called by `DiskBudget.begin`."""
        self._whole = whole
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Take `count` bytes more; report whether there are so many."""
        with self._lock:
            if self._taken_bytes + count > self._most_bytes or not self._whole.change(count):
                return False
            self._taken_bytes += count
            return True

    def give_back(self) -> None:
        """Give all of them back; idempotent."""
        with self._lock:
            count, self._taken_bytes = self._taken_bytes, 0
        self._whole.change(-count)
