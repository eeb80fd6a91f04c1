"""Base of the parts of a synchronous sandbox, which forward their calls.

`commands`, `contexts`, `files` and `ports` are parts. Each call is handed to the loop's thread. The
invariant: nothing here touches the asynchronous objects from the caller's thread, except to read
plain facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cellwall.surface.sync.loop_thread import LoopThread
    from cellwall.surface.sync.protocols import AnySandbox

T = TypeVar("T")


class Part:
    """A part of a sandbox whose calls are forwarded."""

    def __init__(self, thread: LoopThread[Any], sandbox: AnySandbox) -> None:
        """`Sandbox` makes its parts; they forward to `sandbox`, which lives on `thread`."""
        self._thread = thread
        self._inner = sandbox

    def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._thread.call(lambda _subject, _put: work())

    async def _ado(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` for a caller on an event loop, which goes on meanwhile."""
        return await self._thread.acall(lambda _subject: work())
