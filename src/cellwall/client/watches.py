"""Watching a directory of a sandbox on a server; the engine's `watches` say what a change is.

The invariant: once `start` has returned, nothing that happens is missed or the loss is said. A
lost connection ends it with an error: what happened meanwhile nobody knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx

from cellwall.client.attempts import objects
from cellwall.client.transport import NDJSON, Ask
from cellwall.wire.reading import change_of

if TYPE_CHECKING:
    from types import TracebackType

    from cellwall.client.live import Live
    from cellwall.client.transport import Json
    from cellwall.model.files import Change


class Watch:
    """Changes as they come: `async with files.watch("src") as watch`, then `async for`."""

    def __init__(self, live: Live, path: str, *, recursive: bool) -> None:
        """Made by `Files.watch`; nothing is asked yet."""
        self.path = path
        self._live = live
        self._recursive = recursive
        self._connection = contextlib.AsyncExitStack()
        self._lines: AsyncIterator[Json] | None = None
        self._closing: asyncio.Event = asyncio.Event()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Return once everything that happens from now on is seen; idempotent.

        Raises FileError, CapacityError, SandboxUnavailable.
        """
        async with self._starting:
            if self._lines is not None or self._closing.is_set():
                return
            params = {"path": self.path, "recursive": self._recursive}
            path = self._live.path("/files/watch")
            ask = Ask("GET", path, params, accept=NDJSON, is_held=True)
            response = await self._connection.enter_async_context(self._live.transport.stream(ask))
            self._lines = objects(response)

    def __aiter__(self) -> Watch:
        """Yield changes."""
        return self

    async def __anext__(self) -> Change:
        """Return the next change. Raises ServerUnreachable if the connection is lost."""
        await self.start()
        line = await self._next()
        if line is None:
            await self.aclose()
            raise StopAsyncIteration
        return change_of(line)

    async def _next(self) -> Json | None:
        """Return the next line; None at the end, also at the one `aclose` makes."""
        if self._closing.is_set() or self._lines is None:
            return None
        reading = asyncio.ensure_future(anext(self._lines, None))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            return None if self._closing.is_set() else reading.result()
        except httpx.TransportError as error:
            raise self._live.transport.unreachable(error) from error
        finally:
            for task in (reading, closing):
                task.cancel()
            await asyncio.gather(reading, closing, return_exceptions=True)

    async def aclose(self) -> None:
        """Watch no more; whoever waits for a change learns it. Idempotent."""
        self._closing.set()
        await self._connection.aclose()

    async def __aenter__(self) -> Watch:
        """Begin to watch."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.aclose()
