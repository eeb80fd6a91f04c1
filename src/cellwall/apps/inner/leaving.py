"""Leaving: how the server sees that the caller of an inner request is gone.

It stands where a connection's transport stands, which a handler asks while it reads nothing.
"""

from __future__ import annotations

import asyncio


class Leaving:
    """One inner request's transport, as far as `server.core.disconnects` asks it."""

    def __init__(self) -> None:
        """The caller is there."""
        self._has_left = asyncio.Event()

    def is_closing(self) -> bool:
        """Report whether the caller has left."""
        return self._has_left.is_set()

    def get_extra_info(self, name: str) -> None:
        """Return None for every name: there is no socket that the kernel could be asked about."""
