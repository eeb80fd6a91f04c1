"""Turns: which new work goes to the nodes next, fairly between tenants.

A gateway keeps a window of young work at each node, and the rest waits here: a node's own queue is
fair, too, but what has reached it cannot go elsewhere any more. The order is that of a server
(`engine.scheduling.fair_queue`). Work that has been at its node for a while leaves the window, so
programs that wait for long keep out no others; the node bounds those. The invariants: while there
is room nothing waits and nothing is scheduled; each turn is given back exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from cellwall.engine.scheduling.admission import NOTHING, UNBOUNDED, Cost, Machine
from cellwall.engine.scheduling.fair_queue import FairQueue
from cellwall.engine.scheduling.quotas import Quotas, Tenants

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Node
    from cellwall.engine.scheduling.fair_queue import Place, Waiting

_LONG_S = 1.0
"""Seconds after which work is no longer young: it has begun, or waits in its node's own queue."""
_A_CORE = 2
"""Young work at a node for each of its processors."""


class Turn:
    """The turn of one request or program."""

    __slots__ = ("_arrival", "_is_over", "_node", "_place", "_turns", "_waiting", "has_come")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: Waiting | None = None
        self._place: Place | None = None
        self._node: Node | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._is_over = False
        self.has_come = False

    async def come(self) -> bool:
        """Wait for the turn; False: it was left before."""
        if not self.has_come and not self._is_over:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self.has_come

    def at(self, node: Node) -> None:
        """Note the node that is asked, in place of the one before."""
        if self in self._turns.young:
            self._forget_node()
            self._node = node
            node.young += 1

    def leave(self) -> None:
        """Stop waiting, or give the turn back; idempotent."""
        self._is_over = True
        if self._waiting is not None:
            self._waiting.cancel()
        self.age()
        self._wake()

    def age(self) -> None:
        """Leave the window: others may have the room."""
        began_s = self._turns.young.pop(self, None)
        if began_s is None:
            return
        self._forget_node()
        place, self._place = self._place, None
        if place is not None:
            place.release()
        else:
            self._turns.gave_back()

    def take(self, place: Place | None) -> None:
        """Have the turn, with the queue's place if it waited."""
        self._place = place
        self.has_come = True
        self._turns.young[self] = asyncio.get_running_loop().time()
        self._wake()

    def _forget_node(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.young -= 1

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class Turns:
    """The turns of one gateway. All methods return at once."""

    def __init__(
        self,
        tiers: Mapping[str, Quotas],
        tenants: Mapping[str, str],
        most_queued: int,
        gateways: int = 1,
    ) -> None:
        """Of the quotas `queued` holds here, the others at the nodes; `gateways` share windows."""
        bounds = {name: Quotas(queued=quotas.queued) for name, quotas in tiers.items()}
        machine = Machine(Cost(UNBOUNDED, UNBOUNDED, UNBOUNDED))
        self._queue = FairQueue(UNBOUNDED, most_queued, machine, Tenants(bounds, tenants))
        self._gateways = gateways
        self._free = 0
        """Turns that were given without the queue."""
        self._timer: asyncio.TimerHandle | None = None
        self.places = UNBOUNDED
        """Room in the windows of all nodes that are ready; without bound if none is, so that what
        waits hears that."""
        self.young: dict[Turn, float] = {}
        """Turns in the windows, the oldest first, and when they came, on the loop's clock."""
        self.on_waited: Callable[[float], None] = lambda _seconds: None

    @property
    def queued(self) -> int:
        """How many wait."""
        return self._queue.queued

    @property
    def free_ratio(self) -> float:
        """Free part of the windows; 0 if no node is ready, as there is no place then."""
        if self.places >= UNBOUNDED:
            return 0.0
        return max(0.0, 1 - len(self.young) / self.places)

    def window_of(self, node: Node) -> int:
        """Return how much young work a node may have from this gateway."""
        return max(1, _A_CORE * node.cores // self._gateways)

    def resize(self, nodes: Iterable[Node]) -> None:
        """Take the nodes as they are now."""
        ready = [node for node in nodes if node.state == "ready"]
        for node in ready:
            node.window = self.window_of(node)
        self.places = sum(node.window for node in ready) if ready else UNBOUNDED
        if self.queued:
            self._queue.resize(self.places - self._free)

    def ask(self, tenant: str) -> Turn:
        """Return a turn, which has come if there is room.

        Raises QuotaExceeded or CapacityError if no more may wait.
        """
        turn = Turn(self)
        if not self._queue.queued and len(self.young) < self.places:
            self._free += 1
            turn.take(None)
            return turn
        self._queue.resize(self.places - self._free)
        began_s = asyncio.get_running_loop().time()

        def take(place: Place) -> None:
            turn.take(place)
            self.on_waited(asyncio.get_running_loop().time() - began_s)

        turn._waiting = self._queue.ask(tenant, NOTHING, take)
        self._watch()
        return turn

    def gave_back(self) -> None:
        """Take back a turn that was given without the queue."""
        self._free -= 1
        if self._queue.queued:
            self._queue.resize(self.places - self._free)

    def _watch(self) -> None:
        """While work waits, look when the oldest is no longer young."""
        if self._timer is None and self._queue.queued and self.young:
            oldest_s = next(iter(self.young.values()))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(oldest_s + _LONG_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._queue.queued:
            return
        limit_s = asyncio.get_running_loop().time() - _LONG_S
        for turn in [each for each, began_s in self.young.items() if began_s <= limit_s]:
            turn.age()
        self._watch()
