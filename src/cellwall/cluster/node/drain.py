"""Drain: a node takes nothing new, and what began on it comes to its end.

Asked for by SIGTERM, after which the process ends once the node is empty, or by an operator through
a gateway, after which the node stays and waits. What is on disk goes on in the node's next server:
background work that has not begun after `drain_s`, and hibernated sandboxes. The invariant: what
began is never cut off before its time, and the guard hears the node all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import CapacityError, Conflict
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.cluster.node.guard import Heart
    from cellwall.server.core.request import Request
    from cellwall.server.state import State

BECAUSE = "its node was drained"
"""Why a sandbox ended that outlived `drain_s`."""
_LOOK_S = 0.1
_PROBES = 2
"""For so many probes of its gateways a node goes on at least: each has heard of the drain by then,
and sends no work to what is about to end."""
_EVERY_S = 1.0
_MOST_EVERY_S = 30.0


class Left(NamedTuple):
    """What is on a node and has to end before the node may."""

    executions: int
    sandboxes: int


class Drain:
    """The drain of one server's run."""

    def __init__(self, drain_s: float, heart: Heart) -> None:
        """`drain_s`: seconds for which sandboxes live on; `heart` knows whether gateways hear."""
        self._drain_s = drain_s
        self._heart = heart
        self._ends_process = False
        self._every_s = 0.0
        """How often gateways probe; 0: they have not said it."""
        self._began_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._state: State
        self._stop: Callable[[], None]
        self._loop: asyncio.AbstractEventLoop

    def open(self, state: State, stop: Callable[[], None]) -> None:
        """Begin to listen to signals; `stop` ends the server."""
        self._state, self._stop = state, stop
        self._loop = asyncio.get_running_loop()

    def probed(self, every: str) -> None:
        """Note that a gateway asks, which says how often it does, in seconds."""
        with contextlib.suppress(ValueError):
            self._every_s = max(self._every_s, min(float(every), _MOST_EVERY_S))

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
        self._began_s = None
        self._state.check_new(_nothing)
        self._state.executions.hold(is_held=False)

    def _look(self) -> None:
        """Look what is left, and again after a while."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._began_s is None or self._state.is_stopping:
            return
        since_s = self._loop.time() - self._began_s
        if since_s >= self._drain_s:
            self._state.executions.hold(is_held=True)
            for record in list(self._state.sandboxes.all.values()):
                if record.is_unstored:
                    self._state.tasks.spawn(record.close(BECAUSE))
        notice_s = _PROBES * (self._every_s or _EVERY_S)
        is_known = since_s >= notice_s or not self._heart.has_begun
        if self._ends_process and is_known and not any(self.left):
            self._stop()
            return
        self._timer = self._loop.call_later(_LOOK_S, self._look)

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
