"""Session: the sandboxes and calls of one client, from its first message to its last.

It does not know the protocol. Both interfaces make one for each client. The invariants: a client
reaches only its own sandboxes, and when it leaves, its running work is stopped and all its
sandboxes are destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cellwall.model.errors import CellwallError, Conflict, NotFound, UsageError
from cellwall.model.execution import DEFAULT_BUDGET_CHARS
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence

    from cellwall.apps.mcp.direct import Spoken
    from cellwall.apps.mcp.library import Library
    from cellwall.apps.mcp.tools.catalog import Catalog
    from cellwall.model.snapshot import Fork, Threads
    from cellwall.surface.sync.protocols import AnySandbox

_log = logging.getLogger("cellwall.mcp")
_T = TypeVar("_T")
MOST_SANDBOXES = 64
"""Maximum number of sandboxes of one client; a model that makes one for each step is told to end
some."""
_MOST_ENDED = 64
"""Maximum number of ended sandboxes that are remembered, so that a call gets the reason of the
end."""


class UnderWay(Generic[_T]):
    """Work of a session that has begun."""

    def __init__(self, task: asyncio.Task[None], done: asyncio.Future[_T]) -> None:
        self._task = task
        self.done = done
        """Future of its result; cancelled when the work was, or when the session has ended."""
        self.is_given_up = False
        """Whether the client has cancelled it."""

    def cancel(self) -> None:
        """Cancel the work; a second call does nothing."""
        self.is_given_up = True
        _cancel_once(self._task)


class Session:
    """The session of one client."""

    def __init__(
        self, library: Library, catalog: Catalog, budget_chars: int = DEFAULT_BUDGET_CHARS
    ) -> None:
        """`budget_chars` is the maximum size of one answer in characters."""
        self.library = library
        self.catalog = catalog
        self.budget_chars = budget_chars
        self.spoken: Spoken | None = None
        """Protocol version and metadata of the client, once it has called a tool."""
        self._sandboxes: dict[str, AnySandbox] = {}
        self._tasks = Tasks()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_open = True
        self._making = 0

    # -- calls -----------------------------------------------------------------------------

    def begin(self, work: Coroutine[Any, Any, _T]) -> UnderWay[_T]:
        """Run `work` in a task of its own, which is cancelled once at most.

        `Conflict` if the session has ended.
        """
        self._check_open(work)
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        task = self._tasks.spawn(_settling(work, done))
        self._calls.add(task)

        def over(task: asyncio.Task[None]) -> None:
            # A task that is cancelled before its first step never starts its work.
            self._calls.discard(task)
            work.close()
            done.cancel()

        task.add_done_callback(over)
        return UnderWay(task, done)

    async def perform(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` and return its result; cancelling this call cancels the work.

        The protocol's own tasks are cancelled again at every `await`, which would cut the end of a
        program short.
        """
        under_way = self.begin(work)
        try:
            return await asyncio.shield(under_way.done)
        except asyncio.CancelledError:
            if under_way.done.cancelled():  # by the session's end, not by the caller
                raise ended() from None
            under_way.cancel()
            raise

    def _check_open(self, work: Coroutine[Any, Any, Any]) -> None:
        if not self._is_open:
            work.close()
            raise ended()

    # -- sandboxes -------------------------------------------------------------------------

    async def create(self, options: Mapping[str, Any]) -> AnySandbox:
        """Create a sandbox that belongs to this client."""
        async with self._room("create_sandbox", 1) as own:
            sandbox = await self.library.create_sandbox(options)
            own.append(sandbox)
        return sandbox

    async def restore(self, snapshot: str, *, reseed: bool) -> AnySandbox:
        """Make a sandbox of a snapshot; it belongs to this client."""
        async with self._room("restore_snapshot", 1) as own:
            sandbox = await self.library.restore(snapshot, reseed=reseed)
            own.append(sandbox)
        return sandbox

    async def fork(
        self, sandbox_id: str, count: int, *, reseed: bool, threads: Threads = "refuse"
    ) -> Sequence[Fork[AnySandbox]]:
        """Copy a sandbox of this client; the copies belong to it too."""
        source = self.sandbox(sandbox_id)
        async with self._room("fork_sandbox", count) as own:
            forks = await source.fork(count, reseed=reseed, threads=threads)
            own.extend(each.made for each in forks if each.made is not None)
        return forks

    @contextlib.asynccontextmanager
    async def _room(self, tool: str, count: int) -> AsyncIterator[list[AnySandbox]]:
        """Hold places for `count` sandboxes; those that the block lists belong to this client.

        `UsageError` if it has too many; `Conflict` if the session ended meanwhile, and they end
        with it.
        """
        for each in self.running:
            if self._free >= count:
                break
            # over HTTP the session is not told that a sandbox ended by itself
            await self.library.refresh(each)
        if self._free < count:
            raise UsageError(
                f"{tool}: this session has {len(self.running)} sandboxes, and may have "
                f"{MOST_SANDBOXES}",
                remedy="end some with destroy_sandbox, or use one again",
            )
        made: list[AnySandbox] = []
        self._making += count
        try:
            yield made
        finally:
            self._making -= count
        if not self._is_open:
            for sandbox in made:
                await sandbox.close()
            raise ended()
        self._forget_ended()
        self._sandboxes.update({each.id: each for each in made})

    @property
    def _free(self) -> int:
        return MOST_SANDBOXES - len(self.running) - self._making

    def _forget_ended(self) -> None:
        ended = [key for key, each in self._sandboxes.items() if each.status == "stopped"]
        for key in ended[:-_MOST_ENDED]:
            del self._sandboxes[key]

    def sandbox(self, sandbox_id: str) -> AnySandbox:
        """Return a sandbox of this client; `NotFound` lists those it has."""
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
        """Sandboxes that are alive."""
        return [each for each in self._sandboxes.values() if each.status != "stopped"]

    async def destroy(self, sandbox_id: str) -> None:
        """Destroy one sandbox."""
        await self.sandbox(sandbox_id).close()
        self._sandboxes.pop(sandbox_id, None)

    # -- its end ---------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop running work and destroy all sandboxes; idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        closing = Tasks()
        for sandbox in self._sandboxes.values():
            closing.spawn(_close(sandbox))
        await closing.wait_empty()  # the work in them ends with them
        for call in list(self._calls):
            _cancel_once(call)
        await self._tasks.wait_empty()
        for sandbox in self.running:  # one may have been made meanwhile
            await _close(sandbox)
        self._sandboxes.clear()
        await self.library.aclose()


def ended() -> Conflict:
    """Return the error for a call that comes after the end."""
    return Conflict("session: it has ended", remedy="connect again")


def _cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task unless it was cancelled before: a second time would cut its end short."""
    if not task.cancelling():
        task.cancel()


async def _settling(work: Coroutine[Any, Any, _T], done: asyncio.Future[_T]) -> None:
    try:
        value = await work
    except asyncio.CancelledError:
        done.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - the waiting caller gets it
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
