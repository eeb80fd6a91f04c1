"""Room for programs that are at nodes and have not begun there, shared between tenants.

What waits at a node is lost with it, so no more are there than nodes have room for. A program that
does not begin, because its tenant has no more of a quota, soon counts for its tenant alone. The
invariant: no tenant's programs keep another tenant's from nodes for longer than `_LONG_S`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

from cellwall.engine.scheduling.admission import UNBOUNDED

if TYPE_CHECKING:
    from cellwall.cluster.gateway.work.turns import Turns

_LONG_S = 5.0
"""Seconds after which a program that has not begun counts for its tenant alone."""
_PART = 4
"""A tenant's part of all room is one in so many, of such programs, while others wait."""


class Room:
    """The room of one program."""

    __slots__ = ("_aside", "_is_left", "_is_long", "_tenant", "_timer")

    def __init__(self, aside: Aside, tenant: str) -> None:
        self._aside = aside
        self._tenant = tenant
        self._is_left = self._is_long = False
        self._timer = asyncio.get_running_loop().call_later(_LONG_S, self._stay)

    def _stay(self) -> None:
        self._is_long = True
        self._aside.move(self._tenant, young=-1, long=1)

    def leave(self) -> None:
        """Give it back: the program has begun, or is at no node; idempotent."""
        if self._is_left:
            return
        self._is_left = True
        self._timer.cancel()
        if self._is_long:
            self._aside.move(self._tenant, long=-1)
        else:
            self._aside.move(self._tenant, young=-1)


class Aside:
    """See the module."""

    def __init__(self, turns: Turns) -> None:
        """`turns` knows the room of all nodes."""
        self._turns = turns
        self._young = 0
        """Programs of all tenants that came lately."""
        self._long: Counter[str] = Counter()
        """Each tenant's programs that did not begin for long."""
        self._lines: dict[str, deque[asyncio.Future[Room]]] = {}
        """What waits of each tenant, by the order of turns."""

    async def enter(self, tenant: str) -> Room:
        """Return room for one more program of a tenant, once there is some."""
        coming: asyncio.Future[Room] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tenant, deque()).append(coming)
        self._give()
        try:
            return await coming
        except asyncio.CancelledError:
            if coming.done() and not coming.cancelled():
                coming.result().leave()
            raise

    def move(self, tenant: str, *, young: int = 0, long: int = 0) -> None:
        """Count what a room was and is."""
        self._young += young
        self._long[tenant] += long
        if not self._long[tenant]:
            del self._long[tenant]
        self._give()

    def _give(self) -> None:
        """Give room to the first of each tenant in turn, for as long as there is some."""
        while may := [each for each in self._lines if self._has_room(each)]:
            line = self._lines.pop(may[0])
            coming = line.popleft()
            if line:
                self._lines[may[0]] = line  # behind those of others
            if not coming.done():
                self._young += 1
                coming.set_result(Room(self, may[0]))

    def _has_room(self, tenant: str) -> bool:
        places = self._turns.places
        most = places if 0 < places < UNBOUNDED else 1
        long = self._long[tenant]
        if len(self._lines) > 1:
            return self._young < most and long < max(1, most // _PART)
        return self._young + long < most
