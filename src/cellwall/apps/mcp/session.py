"""What belongs to one client: its sandboxes and its calls, from its first word to its last.

Not the protocol. Both doors make one for each client. The invariants: a client reaches only its
own sandboxes, and when it goes, what runs is stopped and every sandbox of it is destroyed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cellwall.model.errors import CellwallError, Conflict, NotFound, UsageError
from cellwall.model.execution import DEFAULT_BUDGET_CHARS
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from cellwall.apps.mcp.direct import Spoken
    from cellwall.apps.mcp.library import Library
    from cellwall.apps.mcp.tools.catalog import Catalog
    from cellwall.surface.sync.protocols import AnySandbox

_log = logging.getLogger("cellwall.mcp")
_T = TypeVar("_T")
MOST_SANDBOXES = 64
"""Of one client; a model that makes one for each step is told to end some."""
_MOST_ENDED = 64
"""Sandboxes that ended by themselves are remembered, so that a call can be told why."""


class UnderWay(Generic[_T]):
    """Work of a session that has begun."""

    def __init__(self, task: asyncio.Task[None], done: asyncio.Future[_T]) -> None:
        """Made by `Session.begin`."""
        self._task = task
        self.done = done
        """What it returns; cancelled when the work was, or when the session has ended."""
        self.is_given_up = False
        """Whether its client does not want it any more."""

    def cancel(self) -> None:
        """Give it up; it is not told twice."""
        self.is_given_up = True
        _cancel_once(self._task)


class Session:
    """One client."""

    def __init__(
        self, library: Library, catalog: Catalog, budget_chars: int = DEFAULT_BUDGET_CHARS
    ) -> None:
        """`budget_chars` is what one answer may say."""
        self.library = library
        self.catalog = catalog
        self.budget_chars = budget_chars
        self.spoken: Spoken | None = None
        """How its client speaks, once it has called a tool."""
        self._sandboxes: dict[str, AnySandbox] = {}
        self._tasks = Tasks()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_open = True
        self._making = 0

    # -- calls -----------------------------------------------------------------------------

    def begin(self, work: Coroutine[Any, Any, _T]) -> UnderWay[_T]:
        """Do `work` in a task of its own, which is cancelled once at most.

        `Conflict` if the session has ended.
        """
        self._check_open(work)
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        task = self._tasks.spawn(_settling(work, done))
        self._calls.add(task)

        def over(task: asyncio.Task[None]) -> None:
            # A task that is cancelled before its first step never looks at its work.
            self._calls.discard(task)
            work.close()
            done.cancel()

        task.add_done_callback(over)
        return UnderWay(task, done)

    async def perform(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do `work` and return what it returns; whoever is cancelled while waiting cancels it.

        The protocol's own tasks are cancelled again at every `await`, which would not leave a
        program's end the time it takes.
        """
        under_way = self.begin(work)
        try:
            return await asyncio.shield(under_way.done)
        except asyncio.CancelledError:
            if under_way.done.cancelled():  # by the session's end, not by our caller
                raise ended() from None
            under_way.cancel()
            raise

    def _check_open(self, work: Coroutine[Any, Any, Any]) -> None:
        if not self._is_open:
            work.close()
            raise ended()

    # -- sandboxes -------------------------------------------------------------------------

    async def create(self, options: Mapping[str, Any]) -> AnySandbox:
        """Make a sandbox that is this client's."""
        for each in self.running:
            if not self._is_full:
                break
            await self.library.refresh(each)  # over HTTP nobody has said that it ended by itself
        if self._is_full:
            raise UsageError(
                f"create_sandbox: this session has {MOST_SANDBOXES} sandboxes already",
                remedy="end some with destroy_sandbox, or use one again",
            )
        self._making += 1
        try:
            sandbox = await self.library.create_sandbox(options)
        finally:
            self._making -= 1
        if not self._is_open:
            await sandbox.close()
            raise ended()
        self._forget_ended()
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    @property
    def _is_full(self) -> bool:
        return len(self.running) + self._making >= MOST_SANDBOXES

    def _forget_ended(self) -> None:
        ended = [key for key, each in self._sandboxes.items() if each.status != "running"]
        for key in ended[:-_MOST_ENDED]:
            del self._sandboxes[key]

    def sandbox(self, sandbox_id: str) -> AnySandbox:
        """Return one of this client's; `NotFound` names those it has."""
        found = self._sandboxes.get(sandbox_id)
        if found is None:
            mine = [each.id for each in self.running][:10]
            raise NotFound(
                f"sandbox {sandbox_id[:60]!r}: this session has none of that id",
                remedy=f"use one of {', '.join(mine)}" if mine else "make one with create_sandbox",
            )
        return found

    @property
    def running(self) -> list[AnySandbox]:
        """Those that live."""
        return [each for each in self._sandboxes.values() if each.status == "running"]

    async def destroy(self, sandbox_id: str) -> None:
        """End one."""
        await self.sandbox(sandbox_id).close()
        self._sandboxes.pop(sandbox_id, None)

    # -- its end ---------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop what runs and destroy what is there; idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        closing = Tasks()
        for sandbox in self._sandboxes.values():
            closing.spawn(_close(sandbox))
        await closing.wait_empty()  # what runs in them ends with them
        for call in list(self._calls):
            _cancel_once(call)
        await self._tasks.wait_empty()
        for sandbox in self.running:  # one may have been made meanwhile
            await _close(sandbox)
        self._sandboxes.clear()
        await self.library.aclose()


def ended() -> Conflict:
    """Return what a call is told that comes too late."""
    return Conflict("session: it has ended", remedy="connect again")


def _cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task, unless it is on its way to its end: a second time would cut that short."""
    if not task.cancelling():
        task.cancel()


async def _settling(work: Coroutine[Any, Any, _T], done: asyncio.Future[_T]) -> None:
    try:
        value = await work
    except asyncio.CancelledError:
        done.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
        if not done.cancelled():
            done.set_exception(error)
            done.exception()  # the call may have been given up
    else:
        if not done.cancelled():
            done.set_result(value)


async def _close(sandbox: AnySandbox) -> None:
    try:
        await sandbox.close()
    except CellwallError as error:
        _log.warning("close sandbox %s: %s", sandbox.id, error)
