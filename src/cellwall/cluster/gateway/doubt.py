"""What became of a request whose connection to its node ended before an answer began.

The node is asked once it answers again: gateways give the ids of new work, so it knows whether
that began. The invariant: what is not known is never called "not begun".
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.book import lost
from cellwall.cluster.gateway.wire.asking import ask
from cellwall.model.errors import CellwallError, Interrupted, NodeUnreachable
from cellwall.server.executions.idempotency import gone

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.wire.heads import Headers

_IDS = b"/node/ids/"
_ASK_S = 2.0


class Doubt:
    """The doubt about one request, from before it is sent."""

    def __init__(self, book: Book, node: Node) -> None:
        """Note which node it is now; it may have another name afterwards."""
        self._book = book
        self._node = node
        self._name = node.name
        self._generation = "" if node.told is None else node.told.generation
        self._goes_on = False
        """Whether the node has said that the program goes on, or has its answer."""

    async def until_heard(self) -> None:
        """Wait until the node answers again.

        Raises NodeLost if it is lost instead, NodeUnreachable if it ended empty: it may be away
        for long, and took nothing new before; and if neither is known after twice the time of a
        loss, or the node is probed no longer.
        """
        try:
            async with asyncio.timeout(2 * self._book.lost_after_s):
                await self._until_heard()
        except TimeoutError:
            raise self._unknown() from None

    async def _until_heard(self) -> None:
        heard_s = self._node.answered_s
        while self._node.answered_s == heard_s or self._is_another:
            if self._name in self._book.lost:
                raise lost(self._name)
            ended_empty = self._node.is_empty and self._node.state == "unreachable"
            if ended_empty or self._node.is_over:
                raise self._unknown()
            await self._node.turned()
        if self._name in self._book.lost:
            raise lost(self._name)

    @property
    def _is_another(self) -> bool:
        """Whether another node answers there: of the former the loss is still to be told."""
        return self._node.name != self._name

    @property
    def has_restarted(self) -> bool:
        """Whether the node's server is another one now: what the former had begun is over."""
        told = self._node.told
        return told is None or told.generation != self._generation

    async def has_begun(self, offered: str, named: Headers, age_s: float) -> bool:
        """Report whether anything began, or may yet, under the id that was offered to the node.

        `named`: the caller and the idempotency key, if there is one; the id was first offered
        `age_s` seconds ago. Of what did not begin the node has refused the id. Raises HttpError if
        the node keeps it no longer, or cannot remember; NodeUnreachable if it does not say.
        """
        try:
            async with asyncio.timeout(_ASK_S):
                answer = await ask(self._node.links, _IDS + offered.encode(), named)
            facts = json.loads(answer.body)
            has_begun, is_gone = bool(facts["has_begun"]), bool(facts.get("is_gone"))
            knows_s = float(facts.get("knows_s", 0.0))  # an older node does not say
            self._goes_on = bool(facts.get("goes_on"))
        except (OSError, ValueError, KeyError):
            raise self._unknown() from None
        if is_gone or (not has_begun and age_s > knows_s):
            raise gone()
        return has_begun

    def broken(self) -> CellwallError:
        """Return the error for what had begun, or may have."""
        if self._name in self._book.lost:
            return lost(self._name)
        if self.has_restarted and self._goes_on:
            return NodeUnreachable(
                f"node {self._name}: its server ended while this request waited in its queue, and "
                "has taken it up again: it goes on there",
                retry_after_s=1.0,
                remedy="send it again with its idempotency key for the answer; without one it "
                "would run twice",
            )
        if self.has_restarted:
            return Interrupted(
                f"node {self._name}: its server ended during this request",
                remedy="it is not run again by itself; send it anew if that does no harm",
            )
        return self._unknown()

    def not_begun(self) -> NodeUnreachable:
        """Return the error for what certainly did not begin, and that no other node can have."""
        return NodeUnreachable(
            f"node {self._name}: the connection to it broke; nothing has begun",
            retry_after_s=1.0,
            remedy="send it again",
        )

    def _unknown(self) -> NodeUnreachable:
        return NodeUnreachable(
            f"node {self._name}: the connection to it broke; how far the request came is not known",
            retry_after_s=1.0,
            remedy="look at what it should have done before you send it again",
        )
