"""Send buffer: bytes for a guest that its socket did not take yet.

`channel` owns one for each sandbox. It sets no bound: callers that send a lot check its size and
wait. The invariant: the memory it holds is about the size it reports, even when a guest that does
not read makes it queue many small frames.
"""

from __future__ import annotations

from collections import deque

_SMALL_BYTES = 4096
_BLOCK_BYTES = 64 * 1024


class Backlog:
    """A queue of bytes. Small parts are joined: one object for each would cost far more memory."""

    def __init__(self) -> None:
        self._parts: deque[memoryview] = deque()
        self._gathered = bytearray()
        self.nbytes = 0

    def add(self, part: bytes | memoryview) -> None:
        """Queue one part; a large one is kept as it is, not copied."""
        size = memoryview(part).nbytes
        self.nbytes += size
        if size > _SMALL_BYTES:
            self._seal()
            self._parts.append(memoryview(part))
            return
        self._gathered += part
        if len(self._gathered) >= _BLOCK_BYTES:
            self._seal()

    def _seal(self) -> None:
        if self._gathered:
            self._parts.append(memoryview(self._gathered))
            self._gathered = bytearray()

    def first(self) -> memoryview:
        """Return the bytes to send next; there must be some."""
        if not self._parts:
            self._seal()
        return self._parts[0]

    def drop(self, count: int) -> None:
        """Drop the first `count` bytes of `first()`: they are sent."""
        self.nbytes -= count
        rest = self._parts[0][count:]
        if rest.nbytes:
            self._parts[0] = rest
        else:
            self._parts.popleft()

    def clear(self) -> None:
        """Drop everything."""
        self._parts.clear()
        self._gathered = bytearray()
        self.nbytes = 0
