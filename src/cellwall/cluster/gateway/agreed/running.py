"""Programs of a tenant that are under way at all gateways together, within its quota.

A gateway has a share of the quota, which grows by need and is given back when it is idle. Programs
beyond it wait here, in their order. The invariant: no more of a tenant's programs have a place here
than its share says, and a share that was not renewed in time gives no places.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from cellwall.cluster.directory.connection import away
from cellwall.cluster.directory.shares import LEASE_S
from cellwall.engine.scheduling.quotas import exceeded
from cellwall.model.errors import CellwallError

if TYPE_CHECKING:
    from cellwall.cluster.directory.shares import Shares
    from cellwall.engine.scheduling.quotas import Tenants
    from cellwall.surface.shared.tasks import Tasks

_IDLE_S = 0.5
"""A place that had no program for so long is given back."""
_AGAIN_S = 0.1
"""How often a gateway asks whether others have given something back."""
_RENEW_S = 2.0
_MARGIN_S = 2.0
_PATIENCE_S = 1.0
"""Programs wait so long for a directory that does not answer: a lock, or a slow disk, is no end."""


class Running:
    """See the module."""

    def __init__(self, shares: Shares, tenants: Tenants, tasks: Tasks) -> None:
        """`tenants` knows each one's quotas."""
        self._shares = shares
        self._tenants = tenants
        self._tasks = tasks
        self._lines: dict[str, _Line] = {}

    @contextlib.asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Hold one of a tenant's places for the length of a block, after waiting for it.

        Raises QuotaExceeded if as many wait as may, StoreBusy if the directory is away.
        """
        quotas = self._tenants.use(tenant).quotas
        if quotas.running is None:
            yield
            return
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line(self._shares, tenant, quotas.running)
            self._tasks.spawn(line.run(lambda: self._lines.pop(tenant)))
        await line.enter(quotas.queued)
        try:
            yield
        finally:
            line.leave()


class _Line:
    """The programs of one tenant at this gateway, while there are any."""

    def __init__(self, shares: Shares, tenant: str, most: int) -> None:
        self._shares = shares
        self._tenant = tenant
        self._most = most
        self._share = self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._news = asyncio.Event()
        self._renewed_s = self._used_s = asyncio.get_running_loop().time()
        self._answered_s = self._renewed_s
        """When the directory answered last, or could first be asked."""

    async def enter(self, most_waiting: int | None) -> None:
        """Wait for a place."""
        if self._has_place and not self._waiting:
            self._held += 1
            return
        if most_waiting is not None and len(self._waiting) >= most_waiting:
            raise exceeded("queued", len(self._waiting), most_waiting, "let some end", wait_s=1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._news.set()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place up."""
        self._held -= 1
        self._used_s = asyncio.get_running_loop().time()
        self._admit()

    @property
    def _has_place(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self._held < self._share and now_s - self._renewed_s < LEASE_S - _MARGIN_S

    def _admit(self) -> None:
        while self._waiting and self._has_place:
            turn = self._waiting.popleft()
            if not turn.done():
                self._held += 1
                turn.set_result(None)

    async def run(self, done: Callable[[], object]) -> None:
        """Keep the share as large as is needed, until nothing is; then call `done`."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or self._held or self._share:
                try:
                    await self._adjust(loop.time())
                    self._answered_s = loop.time()
                except CellwallError as error:
                    if loop.time() - self._answered_s > _PATIENCE_S:
                        self._refuse(error)
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_S):
                        await self._news.wait()
        finally:
            done()
            self._refuse(away("quota running"))

    async def _adjust(self, now_s: float) -> None:
        if self._share and now_s - self._renewed_s > _RENEW_S:
            self._share = await self._shares.renew(self._tenant)
            self._renewed_s = now_s
        wanted = self._held + len(self._waiting)  # held, too: a lease that was over has no places
        while self._share < min(self._most, wanted):
            asked_s = asyncio.get_running_loop().time()
            if not await self._shares.take(self._tenant, self._most):
                break
            self._share += 1
            self._renewed_s = asked_s
            self._admit()
        self._admit()
        idle = self._share - self._held
        if idle > 0 and not self._waiting and now_s - self._used_s > _IDLE_S:
            self._share -= idle  # first: what is given back has no place any more
            await self._shares.give_back(self._tenant, idle)

    def _refuse(self, error: CellwallError) -> None:
        """Refuse what waits: how much others have is not known."""
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_exception(error)
