"""Dispatcher: tickets that wait for a node, and the nodes they may go to.

Not how a node is spoken to (`member`, `courier`). The invariant: a ticket goes to a further node
only if nothing of it has begun, or if its caller has said `on_lost="retry"`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cellwall.fleet.driver import placing
from cellwall.fleet.driver.ticket import MOST_TRIES
from cellwall.model.errors import CapacityError, CellwallError, NodeUnreachable

if TYPE_CHECKING:
    from cellwall.fleet.driver.member import Member
    from cellwall.fleet.driver.ticket import Ticket

_RETRY_S = 1.0


class Dispatcher:
    """The tickets of one fleet that no node has yet."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a member's state or room has changed."""
        self.members: dict[str, Member] = {}
        self._waiting: deque[Ticket] = deque()
        self._on_change = on_change
        self._ended: CellwallError | None = None

    @property
    def waiting(self) -> int:
        """Number of tickets that no node has yet."""
        return len(self._waiting)

    @property
    def places(self) -> int:
        """Number of tickets that all nodes together may be given."""
        ready = [member for member in self.members.values() if member.state == "ready"]
        return sum(placing.WINDOW * member.room.at_once for member in ready)

    def submit(self, ticket: Ticket) -> None:
        """Give a ticket to a node, or keep it until one has room."""
        self._waiting.append(ticket)
        self.place()

    def again(self, ticket: Ticket) -> None:
        """Take back a ticket that its node has not done, before all that wait."""
        if ticket.is_over:
            return
        if not ticket.may_move:
            ticket.fail(
                NodeUnreachable(
                    "fleet: the node of this sandbox does not answer now; nothing was begun",
                    retry_after_s=_RETRY_S,
                    remedy="try again in some seconds: by then it is back, or lost",
                )
            )
        elif ticket.tries >= MOST_TRIES and ticket.refusal is not None:
            ticket.end(*ticket.refusal)
        elif ticket.tries >= MOST_TRIES:
            ticket.fail(_full(f"{ticket.tries} nodes have not taken it"))
        else:
            ticket.renew()
            self._waiting.appendleft(ticket)
            asyncio.get_running_loop().call_soon(self.place)

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a ticket whose caller has left."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        for member in self.members.values():
            member.courier.forget(ticket)

    def changed(self) -> None:
        """Look again, after a change of a member."""
        self.place()
        self._on_change()

    def place(self) -> None:
        """Give what waits to nodes that have room."""
        if self._ended is not None:
            self._refuse(self._ended)
        while self._waiting:
            ready = [each.room for each in self.members.values() if each.state == "ready"]
            room = placing.choose(ready, random.sample)
            if room is None:
                break
            ticket = self._waiting.popleft()
            if not ticket.is_over:
                self.members[room.name].courier.give(ticket)
        if self._waiting and all(each.is_final for each in self.members.values()):
            self._refuse(_full("no node is left"))

    def end(self, error: CellwallError) -> None:
        """Refuse all that waits, and all that comes."""
        self._ended = error
        self._refuse(error)

    def _refuse(self, error: CellwallError) -> None:
        while self._waiting:
            self._waiting.popleft().fail(error)


def _full(why: str) -> CapacityError:
    return CapacityError(
        f"fleet: {why}; nothing was begun",
        retry_after_s=_RETRY_S,
        remedy="look at fleet.nodes(), which says why",
    )
