"""The watches of a synchronous sandbox; the asynchronous `watches` say what each call does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.surface.shared.closing import Closing
from cellwall.surface.sync.part import Part

if TYPE_CHECKING:
    from cellwall.model.files import Change
    from cellwall.surface.sync.loop_thread import LoopThread
    from cellwall.surface.sync.protocols import AnySandbox, AnyWatch


class SyncWatch(Closing, Part):
    """Iterator over changes; it ends when it is closed, and with its directory or sandbox."""

    def __init__(self, thread: LoopThread[Any], sandbox: AnySandbox, watch: AnyWatch) -> None:
        """`SyncFiles.watch` makes this object of a started watch."""
        super().__init__(thread, sandbox)
        self._watch = watch

    def __iter__(self) -> SyncWatch:
        """Return the watch itself, which yields changes."""
        return self

    def __next__(self) -> Change:
        """Wait for the next change and return it."""
        change = self._do(self._next)
        if change is None:
            raise StopIteration
        return change

    async def _next(self) -> Change | None:
        try:
            return await self._watch.__anext__()
        except StopAsyncIteration:
            return None

    def close(self) -> None:
        """Stop watching; a thread that waits for a change is woken. Idempotent."""
        self._do(self._watch.aclose)
