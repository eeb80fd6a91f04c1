"""A request that a task answers here, and whose body is not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Listing:
    """A request for a list over all nodes, or an operator's order."""

    def __init__(self, work: asyncio.Task[None]) -> None:
        """`work` answers it."""
        self._work = work

    def on_body(self, data: bytes) -> None:
        """Leave it: such a request has none."""

    def on_whole(self) -> None:
        """Nothing waits for it."""

    def on_room(self) -> None:
        """Nothing waits for it."""

    def on_full(self) -> None:
        """Nothing more comes."""

    def on_gone(self) -> None:
        """Ask no further."""
        self._work.cancel()
