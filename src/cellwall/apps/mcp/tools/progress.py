"""Word from a program that takes long: once a second, how long and how much it has said.

Not its output, which comes with the answer. Sent only to a client that asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from cellwall.model.excerpts import plain
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.model.execution import Event
    from cellwall.surface.shared.callbacks import OnEvent

EVERY_S = 1.0
_MOST_LINE = 120

Report = Callable[[float, str], Awaitable[None]]
"""Called with the seconds so far and a sentence."""


class Progress:
    """Counts what one program says."""

    def __init__(self) -> None:
        """It begins now."""
        self._began_s = time.monotonic()
        self._bytes = 0
        self._last = ""

    def on_event(self, event: Event) -> None:
        """Take one event."""
        if event.text:
            self._bytes += len(event.text.encode(errors="replace"))
            self._last = event.text[-_MOST_LINE * 2 :]

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    def sentence(self) -> str:
        """Say how far it is."""
        lines = plain(self._last).strip().rsplit("\n", 1)
        said = f"running for {self.seconds:.0f} s, {self._bytes} bytes of output"
        return f"{said}: {lines[-1][-_MOST_LINE:]}" if lines[-1] else said

    async def tell(self, report: Report) -> None:
        """Report once a second, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await report(round(self.seconds, 3), self.sentence())


@contextlib.asynccontextmanager
async def reported(report: Report | None) -> AsyncIterator[OnEvent | None]:
    """Give the callback of a run for the length of a block; None where nobody asked."""
    if report is None:
        yield None
        return
    progress, tasks = Progress(), Tasks()
    tasks.spawn(progress.tell(report))
    try:
        yield progress.on_event
    finally:
        await tasks.cancel()
