"""The cgroup work of one runtime: on the event loop while the kernel is quick, else on a thread.

Called by the jail and by gVisor in the engine process. The files that are written are in
`linux.cgroups.sandbox_groups`. A hop to a thread and back costs as much as the work itself. So
where workers move themselves, and the kernel waits for no grace period, directories are made on the
loop; those of ended sandboxes are removed along with the next move, or soon after if nothing moves.
The invariant: a kernel that is slow, for example because another program moves processes, blocks
the loop only rarely and not for long.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

from cellwall.linux import owner_label
from cellwall.linux.cgroups import hierarchies, sandbox_groups
from cellwall.linux.cgroups.engine_tree import EngineGroups
from cellwall.model.limits import Limits

_THREADS = 2
_REMOVE_TRIES = 100
_RETRY_S = 0.01
_QUARANTINE_FIRST_S = 1.0
_QUARANTINE_MOST_S = 60.0
_LINGER_S = 0.005
"""Seconds that an ended sandbox's directories wait for a move to be removed along with."""
_FEW = 4
"""Ended sandboxes whose directories are removed on the loop beside a move; more go to a thread."""
_SLOW_S = 0.002
"""Average seconds of recent moves above which a thread is cheaper for the other users of the loop.
"""
_REST_S = 1.0
_WEIGHT = 1 / 8
"""Weight of the latest move in the average."""


_Tell = Callable[[Callable[[], None]], object]
"""A function that has the loop call another function."""


class Mover(Protocol):
    """A process that enters the cgroups of a future sandbox before that sandbox is cloned."""

    def move(self, groups: sandbox_groups.Groups) -> None:
        """Put the process into `groups` at once."""

    def open_next_cgroups(self, groups: sandbox_groups.Groups) -> None:
        """Open the files of `groups` through which the process will move itself."""


class _Ended(NamedTuple):
    groups: sandbox_groups.Groups
    removed: asyncio.Future[bool]


class GroupKeeper:
    """Makes, hands out and removes the cgroup directories of one runtime's sandboxes."""

    def __init__(self, layout: hierarchies.Layout, owner: int = 0) -> None:
        """`owner`: pid of the process whose end makes them leftovers; 0: this one."""
        self._groups = EngineGroups(layout, owner_label.new_label(owner))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cellwall-cgroup")
        self._ended: list[_Ended] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._quarantine: list[sandbox_groups.Groups] = []
        self._retry: asyncio.TimerHandle | None = None
        self._pause_s = _QUARANTINE_FIRST_S
        self._usual_s = self._rests_until = 0.0
        barrier = threading.Barrier(_THREADS + 1)
        for _ in range(_THREADS):
            # Start the threads now. Later, with no process number free, ended sandboxes could not
            # be removed.
            self._threads.submit(barrier.wait)
        barrier.wait()

    @property
    def tree(self) -> EngineGroups:
        """The engine's directories."""
        return self._groups

    @property
    def name(self) -> str:
        """Name of the engine's directory in each hierarchy."""
        return self._groups.name

    @property
    def workers_move_themselves(self) -> bool:
        """Whether workers move themselves, so that `move_on` only opens the files for it."""
        return self._groups.layout.lets_move_itself

    def move_at_once(self, worker: Mover) -> bool:
        """Do what `move_on` does, on the loop; return False if the kernel may be slow."""
        began = time.monotonic()
        if not self.workers_move_themselves or began < self._rests_until:
            return False
        try:
            self._work(asyncio.get_running_loop().call_soon, worker, self._take_few())
        finally:
            self._note(time.monotonic() - began)
        return True

    async def move_on(self, worker: Mover) -> None:
        """Put a worker into the directories of a future sandbox, or open them for it."""
        await asyncio.wrap_future(self._submit(worker))

    def _note(self, took_s: float) -> None:
        self._usual_s += _WEIGHT * (took_s - self._usual_s)
        if self._usual_s > _SLOW_S:
            self._usual_s = _SLOW_S / 2
            self._rests_until = time.monotonic() + _REST_S

    async def make(self, limits: Limits) -> sandbox_groups.Groups:
        """Make directories with `limits` set, for a sandbox that moves itself there."""
        return await asyncio.wrap_future(self._threads.submit(self._groups.create, limits))

    async def remove(self, groups: sandbox_groups.Groups) -> None:
        """Remove or reuse an ended sandbox's directories.

        rmdir fails with EBUSY until the kernel has released the last task. Retry for a second, and
        after that at growing intervals.
        """
        for _ in range(_REMOVE_TRIES):
            if await self._try_to_remove(groups):
                return
            await asyncio.sleep(_RETRY_S)
        self._isolate(groups)

    @property
    def quarantined(self) -> int:
        """Number of ended sandboxes whose directories could not be removed yet."""
        return len(self._quarantine)

    def _isolate(self, groups: sandbox_groups.Groups) -> None:
        self._quarantine.append(groups)
        if self._retry is None and not self._is_closed:
            self._pause_s = _QUARANTINE_FIRST_S
            self._retry_later()

    def _retry_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(self._pause_s, self._try_quarantined)
        self._pause_s = min(_QUARANTINE_MOST_S, 2 * self._pause_s)

    def _try_quarantined(self) -> None:
        self._retry = None
        loop, waiting = asyncio.get_running_loop(), list(self._quarantine)

        def answer(removed: list[sandbox_groups.Groups]) -> None:
            self._quarantine = [each for each in self._quarantine if each not in removed]
            if self._quarantine and not self._is_closed:
                self._retry_later()

        def work() -> None:
            removed = [each for each in waiting if not self._groups.take_back(each)]
            loop.call_soon_threadsafe(answer, removed)

        self._threads.submit(work)

    def close(self) -> None:
        """Remove the engine's own directories; no sandbox may be left."""
        self._is_closed = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._groups.remove()
        self._threads.shutdown(wait=False)

    def _try_to_remove(self, groups: sandbox_groups.Groups) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        ended = _Ended(groups, loop.create_future())
        self._ended.append(ended)
        if self._timer is None:
            self._timer = loop.call_later(_LINGER_S, self._submit, None)
        return ended.removed

    def _submit(self, worker: Mover | None) -> Future[None]:
        tell = asyncio.get_running_loop().call_soon_threadsafe
        return self._threads.submit(self._work, tell, worker, self._take_ended())

    def _take_few(self) -> list[_Ended]:
        """Return what ended, unless that is so much that it is left to a thread."""
        return self._take_ended() if len(self._ended) <= _FEW else []

    def _take_ended(self) -> list[_Ended]:
        ended, self._ended = self._ended, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return ended

    def _work(self, tell: _Tell, worker: Mover | None, ended: list[_Ended]) -> None:
        """Do the move first, because a caller waits for it, and then the removals."""
        try:
            if worker is not None:
                self._move(tell, worker)
        finally:
            results = [not self._groups.take_back(each.groups) for each in ended]
            if ended:
                tell(partial(_answer, ended, results))

    def _move(self, tell: _Tell, worker: Mover) -> None:
        groups = self._groups.create(Limits(), guests=1)  # room for the worker itself
        try:
            if self.workers_move_themselves:
                worker.open_next_cgroups(groups)
            else:
                worker.move(groups)
        except BaseException:
            if groups.remove():  # the worker is in some of them until its fork-server ends
                tell(partial(self._isolate, groups))
            raise


def _answer(ended: list[_Ended], results: list[bool]) -> None:
    for each, is_removed in zip(ended, results, strict=True):
        if not each.removed.done():
            each.removed.set_result(is_removed)
