"""Closing: objects that close at the end of a `with`, in synchronous and asynchronous programs."""

from __future__ import annotations

import asyncio

from cellwall.surface.shared import closing


class Closing(closing.Closing, closing.AsyncClosing):
    """Base of objects that hold a sandbox; subclasses implement `close`."""

    async def aclose(self) -> None:
        """Do what `close` does for a caller on an event loop."""
        await asyncio.to_thread(self.close)
