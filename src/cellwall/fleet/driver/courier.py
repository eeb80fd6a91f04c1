"""Courier: the tickets that one node has been given, and the letters that carry them.

One letter is under way as a rule; its reply brings what has ended, and the next one takes what has
come meanwhile. Not whether the node is alive (`member`). The invariant: a ticket is in exactly one
place, and one that was in a letter leaves only with a result, with the node's word that it never
began, or with its loss.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cellwall.fleet.driver.link import NoAnswer
from cellwall.fleet.wire.letters import MOST_RESULTS, Letter, Reply, reply_of

if TYPE_CHECKING:
    from cellwall.fleet.driver.link import Link
    from cellwall.fleet.driver.ticket import Ticket
    from cellwall.surface.shared.tasks import Tasks

_MERGE_S = 0.005
"""Seconds for which a ticket waits for a letter that is under way to come back."""


class Courier:
    """The courier of one node."""

    def __init__(
        self,
        node: str,
        link: Link,
        tasks: Tasks,
        on_change: Callable[[], None],
        on_refused: Callable[[Ticket], None],
        on_trouble: Callable[[NoAnswer], None],
    ) -> None:
        """`on_change` is called when there is more room, `on_refused` with a ticket of which the
        node says that nothing has begun, `on_trouble` when a letter got no reply."""
        self._node = node
        self._link = link
        self._tasks = tasks
        self._on_change = on_change
        self._on_refused = on_refused
        self._on_trouble = on_trouble
        self._outbox: deque[Ticket] = deque()
        self._in_hand: dict[str, Ticket] = {}
        self._have: list[str] = []
        self._cancelled: list[str] = []
        self._under_way = 0
        self._soon: asyncio.Handle | None = None
        self._is_held = False

    @property
    def load(self) -> int:
        """Number of tickets without results."""
        return len(self._outbox) + len(self._in_hand)

    def give(self, ticket: Ticket) -> None:
        """Have the next letter carry a ticket."""
        ticket.tries += 1
        self._outbox.append(ticket)
        self._stir()

    def forget(self, ticket: Ticket) -> None:
        """Drop a ticket whose caller has left; the node is told to end it."""
        if ticket.id in self._in_hand:
            del self._in_hand[ticket.id]
            self._cancelled.append(ticket.id)
            self._stir()
        elif ticket in self._outbox:
            self._outbox.remove(ticket)

    # -- doubt -----------------------------------------------------------------------------

    def hold(self) -> list[Ticket]:
        """Send nothing from now on; return the tickets that no letter has carried."""
        self._is_held = True
        kept = [*self._outbox]
        self._outbox.clear()
        return kept

    async def settle(self) -> None:
        """Ask the node about every ticket it was given, and go on. Raises NoAnswer."""
        letter = Letter((), 0, expect=list(self._in_hand))
        data = await self._link.exchange(letter.encoded())
        self._is_held = False
        self._take(reply_of(data))
        self._flush()

    def surrender(self) -> list[Ticket]:
        """Return the tickets that the node was given, once it is lost."""
        self._is_held = True
        left = [*self._in_hand.values()]
        self._in_hand.clear()
        return left

    # -- letters ---------------------------------------------------------------------------

    def _stir(self) -> None:
        if self._soon is None and not self._is_held:
            loop = asyncio.get_running_loop()
            if self._under_way:
                self._soon = loop.call_later(_MERGE_S, self._flush)
            else:  # what is given in the same turn of the loop goes together
                self._soon = loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._is_held:
            return
        count = min(len(self._outbox), MOST_RESULTS)
        tickets = [self._outbox.popleft() for _ in range(count)]
        is_needed = tickets or self._cancelled or (self._in_hand and not self._under_way)
        if not is_needed:
            return
        self._in_hand.update((ticket.id, ticket) for ticket in tickets)
        # The last quarter keeps every processor of the node busy while letters travel.
        want = min(max(1, len(self._in_hand) * 3 // 4), MOST_RESULTS)
        items = [ticket.item for ticket in tickets]
        have, self._have = self._have, []
        cancel, self._cancelled = self._cancelled, []
        self._under_way += 1
        linger_s = min((ticket.linger_s for ticket in self._in_hand.values()), default=0.0)
        self._tasks.spawn(self._send(Letter(items, want, linger_s, have, cancel=cancel)))
        if self._outbox:
            self._stir()

    async def _send(self, letter: Letter) -> None:
        try:
            data = await self._link.exchange(letter.encoded())
        except NoAnswer as error:
            self._have += letter.have
            self._cancelled += letter.cancel
            self._on_trouble(error)
            return
        finally:
            self._under_way -= 1
        self._take(reply_of(data))
        self._flush()
        self._on_change()

    def _take(self, reply: Reply) -> None:
        for result in reply.results:
            ticket = self._in_hand.pop(result["id"], None)
            self._have.append(result["id"])
            if ticket is None:
                continue
            if result.get("refused") and not ticket.is_over:
                ticket.refusal = (self._node, result)
                self._on_refused(ticket)
            else:
                ticket.end(self._node, result)
        for name in (*reply.refused, *reply.missing):
            ticket = self._in_hand.pop(name, None)
            if ticket is not None:
                self._on_refused(ticket)
