"""One request and its answer: to which nodes it goes, and what a loss on the way means.

Begun by `gateway` for each request; `passage` moves the bytes. The invariants: only what certainly
did not begin is sent to another node; a client that leaves ends what it had asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.doubt import Doubt
from cellwall.cluster.gateway.wire.heads import request_bytes
from cellwall.cluster.gateway.wire.passage import Passage
from cellwall.model.errors import CapacityError, NodeUnreachable
from cellwall.model.ids import new_id
from cellwall.server.core.body_budget import Held

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.routing import Way
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import Headers, RequestHead
    from cellwall.cluster.gateway.wire.node_link import NodeLink
    from cellwall.cluster.gateway.wire.passage import End
    from cellwall.cluster.gateway.work.turns import Turn

_KEPT_BYTES = 8 << 20
"""Bytes of a request's body that are kept so that another node can have it."""
_TOGETHER_BYTES = 64 * 1024
"""Largest body that is joined to its head: a larger one is not copied to save a system call."""
_TRIES = 3
_PROGRAM = "/execute"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REQUEST_ID = b"x-request-id"
_SAFE = frozenset({b"GET", b"HEAD"})
"""Methods that change nothing, so that they may be sent twice."""


class Exchange:
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        client: ClientLink,
        head: RequestHead,
        way: Way,
        caller: Caller | None,
    ) -> None:
        """`caller`: None where a token stands for a key, or none is needed."""
        self._gateway = gateway
        self._client = client
        self._head = head
        self._way = way
        self._caller = caller
        self.request_id = gateway.request_id_of(head)
        self._pieces: list[bytes] = []
        self._held = Held(gateway.bodies, "" if caller is None else caller.principal.tenant)
        self._can_repeat = True
        """Whether all of the body so far is in `_pieces`."""
        self._is_whole = head.length == 0 or bool(head.upgrade)
        self._waits = head.first(b"expect").lower() == "100-continue"
        self._passage: Passage | None = None
        self._turn: Turn | None = None
        self._status = 0
        """Status of the answer that was passed on; 0: none was."""
        self._node = ""
        """Name of the node that was asked last."""
        self._is_gone = False

    # -- of the client ---------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """Pass a piece of the body on, and keep it while another node may need it."""
        passage = self._passage
        if passage is not None and passage.is_tunnel:
            passage.send(data)
            return
        self._keep(data)
        if passage is not None:
            passage.send(data)
        elif not self._can_repeat:
            self._client.hold()  # until there is a connection

    def _keep(self, data: bytes) -> None:
        if self._can_repeat:
            self._can_repeat = self._has_room(len(data))
        if self._passage is None or self._can_repeat:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def _has_room(self, more: int) -> bool:
        """Count bytes that are kept; False: they are too many, and the body goes to one node."""
        try:
            self._held.resize(self._held.size + more)
        except CapacityError:
            return False
        return self._held.size <= _KEPT_BYTES

    def on_whole(self) -> None:
        """Note that the request is whole."""
        self._is_whole = True
        if self._passage is not None:
            self._passage.whole()

    def on_full(self) -> None:
        """Let the node wait: the client is slow."""
        if self._passage is not None:
            self._passage.hold()

    def on_room(self) -> None:
        """Read the node's answer again."""
        if self._passage is not None:
            self._passage.go_on()

    def on_gone(self) -> None:
        """End what the client had asked for."""
        self._is_gone = True
        if self._turn is not None:
            self._turn.leave()
        if self._passage is not None:
            self._passage.leave()

    # -- the whole way ---------------------------------------------------------------------

    async def run(self) -> None:
        """Bring the request to a node, and its answer back."""
        try:
            if self._way.kind == "new":
                await self._in_turn()
            else:
                await self._at_one_node()
        except Exception as error:  # noqa: BLE001 - a defect has to be an answer, too
            if not self._is_gone:
                self._gateway.refuse(self._client, self._head, error, self.request_id)
        finally:
            if self._turn is not None:
                self._turn.leave()
            self._note()
            self._held.release()
            self._client.done()

    async def _at_one_node(self) -> None:
        """Ask the node that has the object, or any; twice, if that can do no harm."""
        tries = 2 if self._head.method in _SAFE else 1
        while True:
            tries -= 1
            node = self._its_node()
            doubt = Doubt(self._gateway.book, node)
            if await self._ask(node, "", may_turn_away=False) != "lost":
                return
            await doubt.until_heard()
            if not tries or not self._can_repeat:
                raise doubt.broken()

    def _its_node(self) -> Node:
        way, book = self._way, self._gateway.book
        if way.kind == "any":
            return book.choose()
        return book.of(way.node, way.thing, way.name)

    def _note(self) -> None:
        """Count the answer, and write down what may have changed something."""
        gateway = self._gateway
        if self._status:
            gateway.counted(self._head, self._status)
        if gateway.trail is not None and self._head.method not in _SAFE:
            gateway.trail.passed(
                self._caller,
                self._client.peer,
                self._way,
                self._node,
                self._status,
                self.request_id,
            )

    async def _in_turn(self) -> None:
        """Ask nodes once it is the tenant's turn; the body counts in the budget meanwhile."""
        tenant = "" if self._caller is None else self._caller.principal.tenant
        self._turn = turn = self._gateway.turns.ask(tenant)
        if turn.has_come or await turn.come():
            await self._at_a_chosen_node()

    async def _at_a_chosen_node(self) -> None:
        """Ask nodes for new work until one takes it, or certainly has begun it."""
        book, asked = self._gateway.book, _no_nodes()
        known = self._gateway.replayed(self._head, self._caller)
        left = 1 if known else _TRIES
        while True:
            left -= 1
            node = book.of(known, "request", "") if known else book.choose(asked)
            asked.add(node)
            has_more = left > 0 and any(
                each.state == "ready" and each not in asked for each in book.nodes
            )
            if not await self._was_refused(node, has_more=has_more):
                return

    async def _was_refused(self, node: Node, *, has_more: bool) -> bool:
        """Ask a node for new work; report whether it did not begin it, and another may."""
        if self._turn is not None:
            self._turn.at(node)
        name, doubt, offered = node.name, Doubt(self._gateway.book, node), new_id(node.name)
        self._gateway.goes(self._head, self._caller, name)
        try:
            end = await self._ask(node, offered, may_turn_away=has_more)
        except NodeUnreachable:
            self._gateway.book.on_try("refused")
            self._gateway.did_not(self._head, self._caller, name)
            if has_more:
                return True
            raise
        if end == "lost":
            await doubt.until_heard()
            if await doubt.has_begun(offered):
                raise doubt.broken()
        elif end != "full":
            return False
        self._gateway.did_not(self._head, self._caller, name)
        if not has_more or not self._can_repeat:
            raise doubt.not_begun()
        return True

    async def _ask(self, node: Node, offered: str, *, may_turn_away: bool) -> End:
        """Ask one node. Raises NodeUnreachable if nothing has begun there."""
        node.in_flight += 1
        self._node = node.name
        link: NodeLink | None = None
        began_s = asyncio.get_running_loop().time()
        try:
            link = await _connected(node)
            if self._is_gone:
                return "gone"
            may = may_turn_away and self._can_repeat
            passage = Passage(self._client, link, may_turn_away=may)
            first, rest = self._first(offered), self._pieces
            if self._length and len(rest) == 1 and len(rest[0]) <= _TOGETHER_BYTES:
                first, rest = first + rest[0], []
            has_body = self._head.method != b"HEAD"
            link.ask(passage, first, self._length, has_answer_body=has_body)
            self._begin(passage, rest)
            end = await passage.end
            self._status = passage.status
            self._gateway.book.on_try(end)
            if end == "whole" and passage.is_success and self._way.path == _PROGRAM:
                now_s = asyncio.get_running_loop().time()
                node.pace.took(now_s - began_s, now_s)
            return end
        finally:
            self._passage = None
            node.in_flight -= 1
            if link is not None:
                node.links.give_back(link)

    @property
    def _length(self) -> int | None:
        return 0 if self._head.upgrade else self._head.length

    def _first(self, offered: str) -> bytes:
        """Return the head for a node."""
        said: Headers = [(_REQUEST_ID, self.request_id.encode())]
        dropped = frozenset({_REQUEST_ID})
        if self._caller is not None:
            said += self._caller.said
            dropped |= self._caller.dropped
        if offered:
            said.append((b"cellwall-id", offered.encode()))
        return request_bytes(self._head, said, dropped)

    def _begin(self, passage: Passage, pieces: list[bytes]) -> None:
        """Send what there is of the body, and ask a client for it that waits to be asked."""
        self._passage = passage
        if self._waits and not self._is_whole:
            self._waits = False
            self._client.write(_CONTINUE)
        for piece in pieces:
            passage.send(piece)
        if not self._can_repeat:
            self._pieces.clear()
            self._client.go_on()
        if self._is_whole and self._length != 0:
            passage.whole()


def _no_nodes() -> set[Node]:
    return set()


async def _connected(node: Node) -> NodeLink:
    """Return a connection to a node. Raises NodeUnreachable."""
    try:
        return await node.links.take()
    except OSError as error:
        raise NodeUnreachable(
            f"node {node.name}: connect: {error.strerror or error}; nothing has begun",
            retry_after_s=1.0,
            remedy="try again",
        ) from None


class Listing:
    """A request for a list over all nodes."""

    def __init__(self, work: asyncio.Task[None]) -> None:
        """`work` answers it."""
        self._work = work

    def on_body(self, data: bytes) -> None:
        """Leave it: such a request has none."""

    def on_whole(self) -> None:
        """Nothing waits for it."""

    def on_room(self) -> None:
        """Nothing waits for it."""

    def on_full(self) -> None:
        """Nothing more comes."""

    def on_gone(self) -> None:
        """Ask no further."""
        self._work.cancel()
