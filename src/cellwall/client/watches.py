"""Watches: change notifications of a sandbox's directory on a server; see the engine's `watches`.

The invariant: once `start` has returned, every change is reported, or its loss is. A lost
connection ends the watch with an error: changes in the meantime are unknown. A slow reader stops
the server's reading, and finally that of the kernel inside, which reports `overflow`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

import httpx

from cellwall.client.connection.streaming import objects
from cellwall.client.connection.transport import NDJSON, Ask
from cellwall.model.errors import CellwallError
from cellwall.surface.shared.closing import AsyncClosing
from cellwall.wire.reading import change_of

if TYPE_CHECKING:
    from cellwall.client.live import RemoteSandboxHandle
    from cellwall.model.files import Change

_MOST_HELD = 1000
"""Maximum number of changes that wait here for their reader."""


class Watch(AsyncClosing):
    """Iterator over changes: `async with files.watch("src") as watch`, then `async for`."""

    def __init__(self, live: RemoteSandboxHandle, path: str, *, recursive: bool) -> None:
        self.path = path
        self._live = live
        self._recursive = recursive
        self._changes: deque[Change] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._opened: asyncio.Future[None] | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._is_over = False
        self._error: CellwallError | None = None

    # -- what comes ------------------------------------------------------------------------

    async def _pump(self, opened: asyncio.Future[None]) -> None:
        params = {"path": self.path, "recursive": self._recursive}
        path = self._live.path("/files/watch")
        ask = Ask("GET", path, params, accept=NDJSON, is_held=True)
        try:
            async with self._live.transport.stream(ask) as response:
                opened.set_result(None)
                async for value in objects(response):
                    await self._put(change_of(value))
        except CellwallError as error:
            self._error = error
        except httpx.TransportError as error:
            self._error = self._live.transport.unreachable(error)
        finally:
            self._is_over = True
            self._news.set()
            if not opened.done():
                opened.set_result(None)

    async def _put(self, change: Change) -> None:
        while len(self._changes) >= _MOST_HELD:
            self._room.clear()
            await self._room.wait()
        self._changes.append(change)
        self._news.set()

    # -- for the owner ---------------------------------------------------------------------

    async def start(self) -> None:
        """Start watching: every change after the return is reported. Idempotent.

        Raises FileError, CapacityError, SandboxUnavailable.
        """
        if self._is_over:
            return
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._pumping = self._live.transport.tasks.spawn(self._pump(self._opened))
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        self._raise_error()

    def __aiter__(self) -> Watch:
        """Return the watch itself, an iterator over changes."""
        return self

    async def __anext__(self) -> Change:
        """Return the next change. Raises ServerUnreachable if the connection is lost."""
        await self.start()
        while not self._changes and not self._is_over:
            self._news.clear()
            await self._news.wait()
        if self._changes:
            self._room.set()
            return self._changes.popleft()
        self._raise_error()
        raise StopAsyncIteration

    def _raise_error(self) -> None:
        if self._error is not None and not self._changes:
            error, self._error = self._error, None
            raise error

    async def aclose(self) -> None:
        """Stop watching and end the iteration of a waiting caller. Idempotent."""
        self._is_over = True
        self._changes.clear()
        self._news.set()
        if self._pumping is not None:
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)
        self._error = None

    async def __aenter__(self) -> Self:
        """Start watching."""
        await self.start()
        return self
