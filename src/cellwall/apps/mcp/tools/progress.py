"""Progress: reports on a long program, once a second, with its time and amount of output.

The output itself comes with the answer. Sent only to a client that asked for it.
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
"""Function called with the seconds so far and a sentence."""


class Progress:
    """Counter of one program's output."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._bytes = 0
        self._last = ""

    def on_event(self, event: Event) -> None:
        """Count one event."""
        if event.text:
            self._bytes += len(event.text.encode(errors="replace"))
            self._last = event.text[-_MOST_LINE * 2 :]

    @property
    def seconds(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._began_s

    def sentence(self) -> str:
        """Return a sentence on the progress."""
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
    """Yield the event callback for a run in the block; None if the client asked for no reports."""
    if report is None:
        yield None
        return
    progress, tasks = Progress(), Tasks()
    tasks.spawn(progress.tell(report))
    try:
        yield progress.on_event
    finally:
        await tasks.cancel()
