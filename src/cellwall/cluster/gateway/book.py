"""The nodes as one gateway knows them: their names, their states, and which gets new work.

Pure; `probing` tells it what nodes say, `exchange` what it has sent. The invariant: a name that was
lost stays lost, so no id ever has two truths; and a node gets new work only while it answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cellwall.model.errors import CapacityError, NodeLost, NodeUnreachable, NotFound

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from cellwall.cluster.gateway.wire.links import Links

State = Literal["unknown", "ready", "draining", "unreachable", "refused"]
"""`unknown`: it has not answered yet; `refused`: it says a name that it cannot have."""
_UNLISTED = "its address is no longer named"
_MISSES = 2
"""Probes without an answer after which a node is unreachable."""
_CHOICES = 2


@dataclass(slots=True)
class Told:
    """What a node said of itself."""

    name: str
    generation: str
    """A word that differs for each run of its server."""
    is_draining: bool
    beat: str
    """Its clock, which the next probe says back to it."""
    fence_s: float
    """Seconds without a gateway that hears it after which it ends everything in it."""


@dataclass(slots=True, eq=False)
class Node:
    """One node."""

    links: Links
    state: State = "unknown"
    told: Told | None = None
    in_flight: int = 0
    """This gateway's own requests to it that have no whole answer yet."""
    is_listed: bool = True
    """Whether a provider names its address now."""
    misses: int = 0
    answered_s: float = 0.0
    """When it last answered, on the event loop's clock."""
    why: str = ""
    """Why it is not ready."""
    used_up: str = ""
    """The lost name that it still says; empty: it says none."""
    _turn: asyncio.Future[None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Its name; empty if it has said none, or has lost it."""
        return "" if self.told is None else self.told.name

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to probe it for: no provider names it, and it has no name."""
        return not self.is_listed and self.told is None

    def mark(self, *, is_listed: bool) -> None:
        """Take whether a provider names its address; it gets new work only while one does."""
        self.is_listed = is_listed
        if not is_listed and self.state == "ready":
            self.state, self.why = "draining", _UNLISTED

    async def turned(self) -> None:
        """Wait until a probe of it has ended, well or not."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._turn)

    def turn(self) -> None:
        """Wake what waits for a probe."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.set_result(None)


@dataclass(slots=True)
class Book:
    """See the module."""

    lost_after_s: float
    """Seconds without an answer after which a node is lost: it has fenced itself before that."""
    nodes: list[Node] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    """Why each lost name was lost."""

    # -- what probes find ------------------------------------------------------------------

    def answered(self, node: Node, told: Told, now_s: float) -> None:
        """Take what a node says of itself."""
        node.misses, node.answered_s = 0, now_s
        before = node.told
        if before is not None and before.name not in ("", told.name):
            self._bury(before.name, "it has taken another name")
        node.used_up = told.name if told.name in self.lost else ""
        why = self._why_not(node, told)
        if why:
            node.state, node.told, node.why = "refused", None, why
            return
        if node.state in ("unreachable", "unknown", "refused"):
            node.links.drop_idle()
        node.told, node.why = told, ""
        node.state = "draining" if told.is_draining else "ready"
        node.mark(is_listed=node.is_listed)

    def _why_not(self, node: Node, told: Told) -> str:
        """Return why a node cannot be one of this gateway's; empty: it can."""
        name = told.name
        if not told.fence_s < self.lost_after_s:
            # It could be told to be lost while it goes on.
            return f"its fence_s = {told.fence_s:g} is longer than that of this gateway"
        if name in self.lost:
            return f"its name {name} was lost: {self.lost[name]}"
        if not node.is_listed and name != node.name:
            return f"{_UNLISTED}, and it is another node"
        for other in self.nodes:
            if other is not node and other.name == name:
                return f"its name {name} is that of {other.links.address}"
        return ""

    def missed(self, node: Node, why: str, now_s: float) -> bool:
        """Note a probe without an answer; report whether the node is lost by that."""
        node.misses += 1
        if node.misses >= _MISSES and node.state != "unknown":
            node.state, node.why = "unreachable", why
        is_over = node.name != "" and now_s - node.answered_s > self.lost_after_s
        if is_over:
            self._bury(node.name, f"it did not answer for {self.lost_after_s:g} s: {why}")
            node.told = None
            node.state = "unknown"
        return is_over

    def _bury(self, name: str, why: str) -> None:
        self.lost[name] = why

    # -- where requests go -----------------------------------------------------------------

    def of(self, name: str, kind: str, shown: str) -> Node:
        """Return the node of that name, which answers now.

        `kind` and `shown` are the object's, for the message. Raises NodeLost, NodeUnreachable, and
        NotFound for a name that no node has.
        """
        if name in self.lost:
            raise lost(name)
        for node in self.nodes:
            if name and node.name == name:
                if node.state == "unreachable":
                    raise unreachable(name)
                return node
        raise NotFound(
            f"{kind} {shown[:64]!r}: there is none", remedy="look at your own; it may have expired"
        )

    def choose(self, without: AbstractSet[Node] = frozenset()) -> Node:
        """Return the node for new work: of two by chance, the one with less of ours in flight.

        Raises CapacityError if no node is ready.
        """
        ready = [node for node in self.nodes if node.state == "ready" and node not in without]
        if not ready:
            raise CapacityError(
                "nodes: none of them is ready for new work",
                retry_after_s=1.0,
                remedy="try again; the operator sees their states with `cellwall cluster status`",
            )
        pair = random.sample(ready, min(_CHOICES, len(ready)))
        return min(pair, key=lambda node: node.in_flight)

    def answering(self) -> Iterable[Node]:
        """Return the nodes that have objects and answer now."""
        return [node for node in self.nodes if node.state in ("ready", "draining")]

    def silent(self) -> list[str]:
        """Return the names of nodes that have objects and do not answer now."""
        return [node.name for node in self.nodes if node.state == "unreachable" and node.name]

    def shown(self) -> list[dict[str, Any]]:
        """Return all nodes for the operator."""
        return [
            {
                "address": str(node.links.address),
                "name": node.name,
                "state": node.state,
                "in_flight": node.in_flight,
                "why": node.why,
            }
            for node in self.nodes
        ] + [{"name": name, "state": "lost", "why": why} for name, why in self.lost.items()]


def lost(name: str) -> NodeLost:
    """Return the error for everything that a lost node had."""
    return NodeLost(
        f"node {name}: it is lost with everything on it; the program was not the reason",
        remedy="create a new sandbox, or send the program again if that does no harm",
    )


def unreachable(name: str) -> NodeUnreachable:
    """Return the error for an object whose node does not answer now."""
    return NodeUnreachable(
        f"node {name}: it does not answer now, and may come back with all that it has",
        retry_after_s=2.0,
        remedy="try again in a few seconds",
    )
