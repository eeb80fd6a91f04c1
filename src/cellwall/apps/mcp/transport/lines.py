"""Lines: messages on two pipes, one a line, on the event loop; with the SDK's file interface.

It neither interprets them (`direct`, the SDK) nor owns the pipes (`stdio`). The invariant: an
outgoing line is written whole, whichever task writes.
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
    """Incoming messages; those that `take` declines go to the SDK."""

    def __init__(self, reader: asyncio.StreamReader, take: Take) -> None:
        """`take` returns whether it has handled a message."""
        self._reader = reader
        self._take = take

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield messages until the end, or until one is too large."""
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
    """Writer of outgoing messages."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        """Use `writer`, which its owner closes."""
        self._writer = writer

    async def write(self, text: str) -> None:
        """Send text of the SDK."""
        self._writer.write(text.encode())

    async def flush(self) -> None:
        """Wait until the client has read enough."""
        with contextlib.suppress(ConnectionError):  # the client has disconnected; stdin ends, too
            await self._writer.drain()

    def send(self, message: bytes) -> None:
        """Send one direct message; it waits in memory while the client does not read."""
        self._writer.write(message + b"\n")
