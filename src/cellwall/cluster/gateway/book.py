"""The nodes as one gateway knows them: their names, their states, and which gets new work.

Pure; `probing` tells it what nodes say, `exchange` what it has sent. The invariant: a name that was
lost stays lost, so no id ever has two truths; and a node gets new work only while it answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cellwall.cluster.gateway.work.outliers import TRIAL_EVERY, Pace
from cellwall.model.errors import CapacityError, NodeLost, NodeUnreachable, NotFound
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from cellwall.cluster.gateway.wire.links import Links
    from cellwall.cluster.gateway.wire.node_link import NodeLink

State = Literal["unknown", "ready", "draining", "unreachable", "refused"]
"""`unknown`: it has not answered yet; `refused`: it says a name that it cannot have."""
_UNLISTED = "its address is no longer named"
_NEW = "the directory does not know it yet"
_MISSES = 2
"""Probes without an answer after which a node is unreachable."""
_EMPTY_S = 600.0
"""Seconds that a node which ended empty has to come back: what was on it has an end of its own."""
_PART = 3
"""One node of so many may get no new work because it missed a probe."""


class NoConnection(NodeUnreachable):
    """A node takes no connection, so it has begun nothing."""


@dataclass(slots=True)
class Size:
    """How large a node is, and what is on it; for windows, metrics and words, never for a choice
    by load."""

    cores: int = 1
    sandboxes: int = 0
    most_sandboxes: int = 0
    left: int = 0
    """Executions and sandboxes that have to end before it is empty."""
    metrics_port: int | None = None


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
    size: Size = field(default_factory=Size)


@dataclass(slots=True, eq=False)
class Node:
    """One node."""

    links: Links
    state: State = "unknown"
    told: Told | None = None
    in_flight: int = 0
    """This gateway's own requests to it that have no whole answer yet."""
    programs: int = 0
    """Those of them that are fresh programs."""
    is_listed: bool = True
    """Whether a provider names its address now."""
    misses: int = 0
    answered_s: float = 0.0
    """When it last answered, on the event loop's clock."""
    why: str = ""
    """Why it is not ready."""
    used_up: str = ""
    """The lost name that it still says; empty: it says none."""
    noted: str = ""
    """Its clock in the latest answer of which the directory knows; empty: of none."""
    cores: int = 1
    """Its processors, as it says."""
    young: int = 0
    """New work of this gateway's that reached it a moment ago."""
    window: int = 1 << 40
    """How much of that it may have."""
    pace: Pace = field(default_factory=Pace)
    _turn: asyncio.Future[None] | None = field(default=None, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether it was drained and empty when it last answered."""
        return self.told is not None and self.told.is_draining and not self.told.size.left

    @property
    def name(self) -> str:
        """Its name; empty if it has said none, or has lost it."""
        return "" if self.told is None else self.told.name

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to probe it for: no provider names it, and it has no name."""
        return not self.is_listed and self.told is None

    async def connected(self) -> NodeLink:
        """Return a connection to it. Raises NoConnection."""
        try:
            return await self.links.take()
        except OSError as error:
            raise NoConnection(
                f"node {self.name}: connect: {error.strerror or error}; nothing has begun",
                retry_after_s=1.0,
                remedy="try again",
            ) from None

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
    has_directory: bool = False
    """Whether gateways agree on losses (`agreed.losses`): this one alone tells none."""
    grants: bool = False
    """Whether gateways count memory, CPUs and files over nodes (`agreed.granting`)."""
    is_alone: bool = True
    """Whether nodes are told at once that they were heard: there is no directory, or the one in
    which this gateway is noted does not answer."""
    known: frozenset[str] = frozenset()
    """Names of nodes in the directory that are not lost; some may be out of this one's reach."""
    gateway: str = field(default_factory=new_id)
    """What nodes tell this gateway from others by."""
    on_change: Callable[[], None] = lambda: None
    """Called when a node has another state or size."""
    on_try: Callable[[str], None] = lambda _end: None
    """Called with how each request to a node ended, of those for new work and for objects."""
    _since_trial: int = 0

    # -- what is agreed on -----------------------------------------------------------------

    def take_known(self, known: frozenset[str]) -> None:
        """Take the names that the directory knows; nodes among them may have new work from now on.

        Of what a gateway began at a node that no other gateway can know of, nothing would be left
        with it: its id would be that of no node.
        """
        self.known = known
        for node in self.nodes:
            if node.why == _NEW and node.is_listed and node.name in known:
                node.state, node.why = "ready", ""
                self.on_change()

    def may_have_new(self, name: str) -> bool:
        """Report whether the directory, if there is one, knows a node, so that it may have work."""
        return not self.has_directory or name in self.known

    # -- what probes find ------------------------------------------------------------------

    def answered(self, node: Node, told: Told, now_s: float) -> None:
        """Take what a node says of itself."""
        was = node.state, node.cores
        self._answered(node, told, now_s)
        if was != (node.state, node.cores):
            self.on_change()

    def _answered(self, node: Node, told: Told, now_s: float) -> None:
        node.misses, node.answered_s = 0, now_s
        before = node.told
        if before is None or before.generation != told.generation:
            node.pace = Pace()
        is_another = before is not None and before.name not in ("", told.name)
        if before is not None and is_another and not self.has_directory:
            self.bury(before.name, "it has taken another name")
        node.used_up = told.name if told.name in self.lost else ""
        why = self._why_not(node, told)
        if why:
            node.state, node.told, node.why = "refused", None, why
            return
        if node.state in ("unreachable", "unknown", "refused"):
            node.links.drop_idle()
        node.told, node.why, node.cores = told, _left(told), told.size.cores
        node.state = "draining" if told.is_draining else "ready"
        node.mark(is_listed=node.is_listed)
        if node.state == "ready" and not self.may_have_new(told.name):
            node.state, node.why = "draining", _NEW

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
            self.on_change()
        is_over = node.name != "" and now_s - node.answered_s > self.patience_s(node)
        if is_over and not self.has_directory:
            self.bury(node.name, f"it did not answer for {self.patience_s(node):g} s: {why}")
            node.told = None
            node.state = "unknown"
            return True
        return False

    def patience_s(self, node: Node) -> float:
        """Return the seconds without an answer after which a node is lost."""
        return _EMPTY_S if node.is_empty else self.lost_after_s

    def may_return(self, name: str, now_s: float) -> bool:
        """Report whether a node of that name ended empty, and has time to come back."""
        return any(
            node.name == name and node.is_empty and now_s - node.answered_s <= _EMPTY_S
            for node in self.nodes
        )

    def bury(self, name: str, why: str) -> None:
        """Take a name's loss up, for ever."""
        self.lost[name] = why

    def beat(self, node: Node) -> str:
        """Return the clock that is said back to a node: that of an answer that all know of."""
        if node.told is None:
            return ""
        return node.told.beat if self.is_alone else node.noted

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
        if name in self.known:
            raise unreachable(name)
        raise NotFound(
            f"{kind} {shown[:64]!r}: there is none", remedy="look at your own; it may have expired"
        )

    def has_had(self, name: str) -> bool:
        """Report whether a node has that name, or had it before it was lost."""
        is_known = name in self.lost or name in self.known
        return is_known or any(node.name == name for node in self.nodes if name)

    @property
    def has_several(self) -> bool:
        """Whether things may be at more than one node, also at one that has not answered yet."""
        return len(self.nodes) > 1

    def choose(self, without: AbstractSet[Node] = frozenset()) -> Node:
        """Return the node for new work: of two by chance, the one with less of ours in flight.

        Raises CapacityError if no node is ready.
        """
        ready = [node for node in self.nodes if node.state == "ready" and node not in without]
        if not ready:
            raise none_ready()
        fit = [
            node
            for node in ready
            if not (node.pace.why or node.misses or node.young >= node.window)
        ]
        if len(fit) < len(ready):
            fit = self._fit(ready)
        one, other = _two_of(fit)
        return one if _load(one) <= _load(other) else other

    def _fit(self, ready: list[Node]) -> list[Node]:
        """Return the nodes to choose from, where not all are well and have room."""
        well = [node for node in ready if not node.pace.why]
        if len(well) < len(ready):
            trial = self._trial(ready)
            if trial is not None:
                return [trial]
        heard = _heard(well) or ready
        return [node for node in heard if node.young < node.window] or heard

    def _trial(self, ready: list[Node]) -> Node | None:
        """Return a slow node once in a while, if no trial is under way there."""
        self._since_trial += 1
        if self._since_trial < TRIAL_EVERY:
            return None
        idle = [node for node in ready if node.pace.why and node.pace.may_try(node.programs)]
        if not idle:
            return None
        self._since_trial = 0
        return random.sample(idle, 1)[0]

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
                "state": "slow" if node.state == "ready" and node.pace.why else node.state,
                "in_flight": node.in_flight,
                "left": 0 if node.told is None else node.told.size.left,
                "why": node.why or node.pace.why,
            }
            for node in self.nodes
        ] + [{"name": name, "state": "lost", "why": why} for name, why in self.lost.items()]


def _two_of(nodes: list[Node]) -> tuple[Node, Node]:
    """Return two nodes by chance; the same twice if there is but one."""
    count = len(nodes)
    one = int(random.random() * count)  # noqa: S311 - no secret; `sample` takes ten times as long
    other = int(random.random() * (count - 1))  # noqa: S311 - as above
    return nodes[one], nodes[other if count == 1 or other < one else other + 1]


def _load(node: Node) -> float:
    return (node.in_flight + 1) / node.cores


def _heard(nodes: list[Node]) -> list[Node]:
    """Return the nodes without those that missed the latest probe, unless these are many."""
    heard = [node for node in nodes if not node.misses]
    return heard if _PART * (len(nodes) - len(heard)) <= len(nodes) else nodes


def _left(told: Told) -> str:
    """Return what is left on a node that drains, in words."""
    if not told.is_draining:
        return ""
    return f"it is drained: {told.size.left} executions and sandboxes are left on it"


def none_ready() -> CapacityError:
    """Return the error for new work that no node may take."""
    return CapacityError(
        "nodes: none of them is ready for new work",
        retry_after_s=1.0,
        remedy="try again; the operator sees their states with `cellwall cluster status`",
    )


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
