"""Byte streams: the engine's end of one stream to and from the sandbox (design/0004).

Terminals, connections to ports and watches use it; it knows neither their frames nor the transport:
bytes and grants pass through the methods below. The invariant: the sandbox can send no more than
was granted, and no more is granted than is held here, so an unread stream costs one window and
stops its own producer, not other streams.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.runtimes.channel.frames import FrameError

if TYPE_CHECKING:
    from cellwall.runtimes.channel.channel import GuestChannel

WINDOW_BYTES = 256 * 1024
"""Maximum bytes of one stream that may wait here for their reader."""

_STEP_BYTES = 64 * 1024
_MOST_CREDIT_BYTES = 1 << 30


class ByteStream:
    """One stream. Any number of writers, one reader at a time."""

    def __init__(self, channel: GuestChannel, *, slack_bytes: int = 0) -> None:
        """`slack_bytes` may come beyond what was granted, once, at the end."""
        self._channel = channel
        self.number = 0
        """Number of the stream's request, as soon as there is one."""
        self._buffer = bytearray()
        self._expected_bytes = WINDOW_BYTES + slack_bytes
        self._read_bytes = 0
        self._credit_bytes = 0
        self._has_ended = False
        self._takes_input = True
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._writing = asyncio.Lock()

    # -- from the guest ------------------------------------------------------------------------

    def feed(self, body: bytes) -> None:
        """Accept bytes that the guest sent; `FrameError` if it may not send that many."""
        if not body or len(body) > self._expected_bytes:
            raise FrameError(f"stream: {len(body)} bytes where {self._expected_bytes} were granted")
        self._expected_bytes -= len(body)
        if not self._has_ended:
            self._buffer += body
            self._news.set()

    def credit(self, count: int) -> None:
        """Record that the guest has room for `count` more bytes."""
        self._credit_bytes = min(self._credit_bytes + count, _MOST_CREDIT_BYTES)
        self._room.set()

    def end(self, error: Exception | None = None) -> None:
        """Record the end of the stream; buffered bytes can still be read. The first call counts."""
        if not self._has_ended:
            self._has_ended = True
            self._error = error
            self._news.set()

    def end_input(self) -> None:
        """Record that the guest takes no more input, and wake writers."""
        self._takes_input = False
        self._room.set()

    # -- for the owner -------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the guest's side has ended; there may still be buffered bytes."""
        return self._has_ended

    async def read(self, most_bytes: int = _STEP_BYTES) -> bytes:
        """Return buffered bytes, at least one; `b""` at the end, or raise the error of the end."""
        while not self._buffer and not self._has_ended:
            self._news.clear()
            await self._news.wait()
        if self._buffer:
            return self._take(most_bytes)
        if self._error is not None:
            raise self._error
        return b""

    def discard(self) -> None:
        """Drop buffered and future bytes; nothing is granted any more."""
        self.end()
        self._buffer.clear()
        self._error = None

    async def write(self, data: bytes) -> bool:
        """Send bytes as the guest takes them; False if it ended after only a part."""
        async with self._writing:
            position = 0
            while position < len(data):
                if not await self._wait_credit():
                    return False
                size = min(self._credit_bytes, _STEP_BYTES, len(data) - position)
                self._credit_bytes -= size
                step = bytes(data[position : position + size])
                self._channel.send({"op": "stdin", "id": self.number}, step)
                await self._channel.wait_writable(_STEP_BYTES)
                position += size
        return True

    async def _wait_credit(self) -> bool:
        while self._takes_input and not self._credit_bytes:
            self._room.clear()
            await self._room.wait()
        return self._takes_input

    def _take(self, most_bytes: int) -> bytes:
        data = bytes(self._buffer[:most_bytes])
        del self._buffer[:most_bytes]
        self._read_bytes += len(data)
        # In large steps: reading one line must not cost a frame in return.
        if self._read_bytes >= WINDOW_BYTES // 4 and not self._has_ended:
            self._channel.send({"op": "credit", "id": self.number, "bytes": self._read_bytes})
            self._expected_bytes += self._read_bytes
            self._read_bytes = 0
        return data
