"""Ticket: one thing that was asked of a fleet, from the request to its result."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

from cellwall.fleet.wire.items import Json
from cellwall.model.ids import new_id

OnLost = Literal["report", "retry"]
ALONE_S = 0.005
"""`linger_s` of what a caller waits for by itself."""
AMONG_MANY_S = 0.1
"""`linger_s` of one of many: what a letter costs is shared by more of them."""
MOST_TRIES = 3
"""Number of nodes that are asked, one after the other."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One item; its future gets the result of the node that did it."""

    id: str
    item: bytes
    """Item as JSON, see `items`."""
    may_move: bool
    """Whether another node may do it, as long as nothing of it has begun."""
    on_lost: OnLost = "report"
    """`retry`: another node may do it even if it may have begun."""
    done: asyncio.Future[tuple[str, Json]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Name of the node, and its result with `value` or `failure`; or an error of the fleet."""
    linger_s: float = ALONE_S
    """Seconds for which its result may wait on the node for others to travel with."""
    tries: int = 0
    """Number of nodes it was given to."""
    refusal: tuple[str, Json] | None = None
    """Node and result of the last refusal, if it said why."""

    @property
    def is_over(self) -> bool:
        """Whether it has a result, or its caller has left."""
        return self.done.done()

    def renew(self) -> None:
        """Give it another id, before another node does it: the old one is barred for ever where a
        letter with it may still arrive."""
        fresh = new_id()
        self.item = self.item.replace(self.id.encode("ascii"), fresh.encode("ascii"), 1)
        self.id = fresh

    def end(self, node: str, result: Json) -> None:
        """Set the result."""
        if not self.done.done():
            self.done.set_result((node, result))

    def fail(self, error: Exception) -> None:
        """Set an error of the fleet."""
        if not self.done.done():
            self.done.set_exception(copy(error))  # each is raised with a traceback of its own
