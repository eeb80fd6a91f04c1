"""Freezing: pause and resume of sandboxes by cgroups, on threads of their own.

Used by the jail and by gVisor. One `Freezing` for each sandbox; the threads are a runtime's. They
are not those that start and remove sandboxes, because a process that does not stop makes a pause
wait for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from cellwall.model.errors import CellwallError, SandboxBroken

if TYPE_CHECKING:
    from cellwall.linux.cgroups.engine_tree import EngineGroups
    from cellwall.linux.cgroups.sandbox_groups import Groups


class FreezerThreads:
    """The threads of one runtime on which sandboxes are frozen and thawed; none before the first.

    A resume does not queue behind pauses.
    """

    @cached_property
    def pausing(self) -> ThreadPoolExecutor:
        """The threads that freeze."""
        return ThreadPoolExecutor(2, thread_name_prefix="cellwall-freeze")

    @cached_property
    def resuming(self) -> ThreadPoolExecutor:
        """The thread that thaws."""
        return ThreadPoolExecutor(1, thread_name_prefix="cellwall-thaw")

    def close(self) -> None:
        """End the threads; no sandbox may be left."""
        for name in ("pausing", "resuming"):
            if name in vars(self):
                vars(self).pop(name).shutdown(wait=False)


class Freezing:
    """Pause and resume of one sandbox."""

    def __init__(self, tree: EngineGroups, threads: FreezerThreads, groups: Groups) -> None:
        self._tree = tree
        self._threads = threads
        self._groups = groups
        self._under_way: asyncio.Future[None] | None = None
        self._is_ended = False

    def check(self) -> None:
        """Raise HostUnsupported if processes cannot be frozen here."""
        self._tree.check_freezing()

    async def pause(self) -> None:
        """Freeze its processes; return when they stand still."""
        await self._do(self._threads.pausing, self._freeze)

    async def resume(self) -> None:
        """Let its processes go on."""
        await self._do(self._threads.resuming, self._thaw)

    async def _do(self, threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        if self._is_ended:
            raise SandboxBroken("pause: the sandbox has ended")
        self._under_way = asyncio.get_running_loop().run_in_executor(threads, work)
        await asyncio.shield(self._under_way)

    def _freeze(self) -> None:
        self._tree.add_freezer(self._groups).freeze(self._groups.members)

    def _thaw(self) -> None:
        if self._groups.freezer is not None:
            self._groups.freezer.thaw()

    async def end(self) -> None:
        """Wait for what is under way and begin nothing more; the sandbox has been killed."""
        self._is_ended = True
        if self._under_way is not None:
            with contextlib.suppress(CellwallError, asyncio.CancelledError):
                await self._under_way
