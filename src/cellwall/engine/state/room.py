"""The room on disk for sessions that are written down: those that are kept, and those under way.

`copies` has one for its engine. What writes takes its bytes as they come, from any thread, so that
forks at the same time, and a session that writes without end, stay below the bound together.
"""

from __future__ import annotations

import threading


class Room:
    """The bytes of all sessions that are written down."""

    def __init__(self, most_bytes: int) -> None:
        """Nothing is taken yet."""
        self._most_bytes = most_bytes
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken now."""
        return self._used_bytes

    def begin(self, most_bytes: int) -> Share:
        """Return the share of one session, at most that much of the room."""
        return Share(self, most_bytes)

    def _take(self, count: int) -> bool:
        with self._lock:
            if self._used_bytes + count > self._most_bytes:
                return False
            self._used_bytes += count
            return True


class Share:
    """The bytes of one session."""

    def __init__(self, room: Room, most_bytes: int) -> None:
        """Called by `Room.begin`."""
        self._room = room
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Take `count` bytes more; report whether there is room for them."""
        with self._lock:
            if self._taken_bytes + count > self._most_bytes or not self._room._take(count):
                return False
            self._taken_bytes += count
            return True

    def give_back(self) -> None:
        """Give all of them back; idempotent."""
        with self._lock:
            count, self._taken_bytes = self._taken_bytes, 0
        self._room._take(-count)
