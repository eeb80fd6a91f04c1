"""Messages on two pipes, one a line, on the event loop itself; what the SDK asks of its files.

Not what they say (`direct`, the SDK), and not whose the pipes are (`stdio`). The invariant: a line
that goes out goes out whole, whoever writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Take = Callable[[bytes], bool]

_MOST_LINE_BYTES = 64 * 1024 * 1024
STEP_BYTES = 256 * 1024


class Lines:
    """Messages as they come; those that `take` does not take go to the SDK."""

    def __init__(self, reader: asyncio.StreamReader, take: Take) -> None:
        """`take` returns whether a message was its own."""
        self._reader = reader
        self._take = take

    def __aiter__(self) -> AsyncIterator[str]:
        """Yield messages until the end, or until one is too large."""
        return self._each()

    async def _each(self) -> AsyncIterator[str]:
        parts: list[bytes] = []
        size = 0
        while data := await self._reader.read(STEP_BYTES):
            *lines, rest = data.split(b"\n")
            for line in lines:
                whole = b"".join((*parts, line))
                parts.clear()
                size = 0
                if not self._take(whole):
                    yield whole.decode(errors="replace")
            parts.append(rest)
            size += len(rest)
            if size > _MOST_LINE_BYTES:
                sys.stderr.write(f"cellwall mcp: a message above {_MOST_LINE_BYTES} bytes\n")
                return


class Sink:
    """Where messages go."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        """The writer is its owner's to close."""
        self._writer = writer

    async def write(self, text: str) -> None:
        """Send what the SDK says."""
        self._writer.write(text.encode())

    async def flush(self) -> None:
        """Wait until the client takes it."""
        with contextlib.suppress(ConnectionError):  # the client is gone; stdin ends, too
            await self._writer.drain()

    def send(self, message: bytes) -> None:
        """Send one message of ours; a client that does not read has it wait in memory."""
        self._writer.write(message + b"\n")
