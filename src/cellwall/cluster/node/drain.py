"""Drain: a node takes nothing new, and what began on it comes to its end.

Asked for by SIGTERM, after which the process ends once the node is empty, or by an operator through
a gateway, after which the node stays and waits. What is on disk goes on in the node's next server:
background work that has not begun after `drain_s`, and hibernated sandboxes. The invariant: what
began is never cut off before its time, and the guard hears the node all the while.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import CapacityError, Conflict
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.server.state import State

BECAUSE = "its node was drained"
"""Why a sandbox ended that outlived `drain_s`."""
_LOOK_S = 0.1
_NS = 1_000_000_000


class Left(NamedTuple):
    """What is on a node and has to end before the node may."""

    executions: int
    sandboxes: int


class Drain:
    """The drain of one server's run."""

    def __init__(self, drain_s: float, fence_s: float) -> None:
        """`drain_s`: seconds for which sandboxes live on; `fence_s`: those of the guard."""
        self._drain_s = drain_s
        self._patience_s = fence_s / 2
        """A gateway that asks no longer is waited for so long: the guard must not come before."""
        self._ends_process = False
        self._heard: dict[str, tuple[float, int]] = {}
        """Of each gateway: when it asked last, and the time of the answer that it had before, of
        CLOCK_BOOTTIME in nanoseconds."""
        self._began_s: float | None = None
        self._empty_s: float | None = None
        """Since when nothing is left; None: something is."""
        self._timer: asyncio.TimerHandle | None = None
        self._state: State
        self._stop: Callable[[], None]
        self._loop: asyncio.AbstractEventLoop

    def open(self, state: State, stop: Callable[[], None]) -> None:
        """Begin to listen to signals; `stop` ends the server."""
        self._state, self._stop = state, stop
        self._loop = asyncio.get_running_loop()

    def probed(self, gateway: str, beat: str) -> None:
        """Note that a gateway asks, and which answer it says to have heard."""
        now_s = self._loop.time()
        at_ns = int(beat) if beat.isascii() and beat.isdecimal() and len(beat) < 19 else 0
        self._heard[gateway] = (now_s, at_ns)
        for each, (asked_s, _) in list(self._heard.items()):
            if now_s - asked_s > self._patience_s:
                del self._heard[each]

    @property
    def is_draining(self) -> bool:
        """Whether the node takes nothing new."""
        return self._began_s is not None or self._state.is_stopping

    @property
    def left(self) -> Left:
        """What has to end."""
        executions, sandboxes = self._state.executions, self._state.sandboxes
        return Left(executions.running + executions.waiting, sandboxes.unstored)

    def may_stop(self, number: int) -> bool:
        """Take a signal; report whether the server stops by it now. Called in its handler."""
        if number != signal.SIGTERM or self._ends_process:
            return True
        self._ends_process = True
        self._loop.call_soon_threadsafe(self.begin)
        return False

    def begin(self) -> None:
        """Take nothing new from now on; idempotent."""
        if self._began_s is None:
            self._began_s = self._loop.time()
            self._state.check_new(_refuse)
        self._look()

    def undo(self) -> None:
        """Take new work again. Raises Conflict if the process is about to end."""
        if self._ends_process:
            raise Conflict(
                "node: it was told to end, and takes no work again",
                remedy="start it again once it has ended",
            )
        self._began_s = self._empty_s = None
        self._state.check_new(_nothing)
        self._state.executions.hold("drain", is_held=False)

    def _look(self) -> None:
        """Look what is left, and again after a while."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._began_s is None or self._state.is_stopping:
            return
        now_s = self._loop.time()
        if now_s - self._began_s >= self._drain_s:
            self._state.executions.hold("drain", is_held=True)
            for record in list(self._state.sandboxes.all.values()):
                if record.is_unstored:
                    self._state.tasks.spawn(record.close(BECAUSE))
        if any(self.left):
            self._empty_s = None
        elif self._empty_s is None:
            self._empty_s = now_s
        if self._ends_process and self._is_known(now_s):
            self._stop()
            return
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _is_known(self, now_s: float) -> bool:
        """Report whether the node is empty, and each of its gateways has heard that.

        So each sends it no work, and knows that nothing was on it when it ended.
        """
        if self._empty_s is None:
            return False
        since_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int((now_s - self._empty_s) * _NS)
        return all(
            at_ns > since_ns or now_s - asked_s > self._patience_s
            for asked_s, at_ns in self._heard.values()
        )

    # -- of gateways -----------------------------------------------------------------------

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The routes by which gateways ask for it, which they alone reach."""
        told = {200: Answer("What is left on it.")}
        return (
            Endpoint(
                "POST",
                "/node/drain",
                self._drain,
                "Take nothing new, for gateways",
                told,
                access="public",
                tags=("server",),
            ),
            Endpoint(
                "POST",
                "/node/undrain",
                self._undrain,
                "Take new work again, for gateways",
                told,
                access="public",
                tags=("server",),
            ),
        )

    async def _drain(self, request: Request) -> None:
        self.begin()
        await request.answer(self.left._asdict())

    async def _undrain(self, request: Request) -> None:
        self.undo()
        await request.answer(self.left._asdict())


def _refuse() -> None:
    raise CapacityError(
        "node: it is drained, and begins nothing new",
        retry_after_s=1,
        remedy="try again: another node takes it",
    )


def _nothing() -> None:
    """Let new work begin."""
