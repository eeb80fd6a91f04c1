"""The way of one request through the gateway: to its node and back, in pieces.

Begun by `front` for each request. The invariants: an answer's bytes come from one node alone, and
once a byte of it was passed on, that node's end is the answer's end; only what certainly did not
begin is sent to another node; a client that leaves ends what it had asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.book import lost, unreachable
from cellwall.cluster.gateway.heads import (
    LAST_CHUNK,
    chunk,
    framing_for,
    request_bytes,
    response_bytes,
    switching_bytes,
)
from cellwall.model.errors import CellwallError, NodeUnreachable
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.front import ClientLink
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.heads import Headers, RequestHead, ResponseHead
    from cellwall.cluster.gateway.node_link import NodeLink
    from cellwall.cluster.gateway.routing import Way

_KEPT_BYTES = 8 << 20
"""Bytes of a request's body that are kept so that another node can have it."""
_TRIES = 3
_FULL = frozenset({b"capacity"})


class _Gone(Exception):
    """The client has left."""


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        gateway: Gateway,
        client: ClientLink,
        head: RequestHead,
        way: Way,
        caller: Caller | None,
    ) -> None:
        self._gateway = gateway
        self._client = client
        self._head = head
        self._way = way
        self._caller = caller
        self.request_id = gateway.request_id_of(head)
        self._pieces: list[bytes] = []
        self._kept_bytes = 0
        self._can_repeat = True
        """Whether all of the body so far is in `_pieces`."""
        self._is_whole = head.length == 0 or bool(head.upgrade)
        self._node: Node | None = None
        self._link: NodeLink | None = None
        self._is_tunnel = False
        self._in_chunks = False
        self._has_begun = False
        """Whether a byte of an answer was passed on."""
        self._is_gone = False
        self._answer: ResponseHead | None = None
        self._turned_away = bytearray()
        self._over: asyncio.Future[bool] | None = None
        """Whether the answer of this try is whole; False: another node may be asked."""

    # -- of the client ---------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """Pass a piece of the body on, and keep it while another node may need it."""
        if self._is_tunnel:
            self._send(data)
            return
        if self._can_repeat:
            self._kept_bytes += len(data)
            self._can_repeat = self._kept_bytes <= _KEPT_BYTES
            if self._can_repeat:
                self._pieces.append(data)
        if self._link is not None:
            if not self._can_repeat:
                self._pieces.clear()
            self._send(data)
        elif not self._can_repeat:
            self._pieces.append(data)
            self._client.hold()  # until there is a connection

    def on_whole(self) -> None:
        """Note that the request is whole."""
        self._is_whole = True
        if self._link is not None:
            self._link.end()

    def on_full(self) -> None:
        """Let the node wait: the client is slow."""
        if self._link is not None:
            self._link.hold()

    def on_room(self) -> None:
        """Go on with whichever side has room again."""
        if self._link is not None:
            self._link.go_on()
        self._client.go_on()

    def on_gone(self) -> None:
        """End what the client had asked for."""
        self._is_gone = True
        if self._link is not None:
            self._link.abort()
        self._settle(is_whole=True)

    def _send(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(data)
            if self._link.is_full:
                self._client.hold()

    # -- the whole way ---------------------------------------------------------------------

    async def run(self) -> None:
        """Bring the request to a node, and its answer back."""
        try:
            if self._way.kind == "object":
                await self._at_its_node()
            elif self._way.kind == "any":
                await self._ask(self._gateway.book.choose(None, frozenset()), is_last=True)
            else:
                await self._at_a_chosen_node()
        except _Gone:
            pass
        except CellwallError as error:
            self._fail(error)
        finally:
            self._client.done()

    async def _at_its_node(self) -> None:
        way = self._way
        node = self._gateway.book.of(way.node, way.thing, way.name)
        await self._ask(node, is_last=True)

    async def _at_a_chosen_node(self) -> None:
        """Ask nodes for new work until one takes it."""
        asked: set[Node] = set()
        for left in reversed(range(_TRIES)):
            node = self._gateway.book.choose(None, asked)
            asked.add(node)
            others = any(n.state == "ready" and n not in asked for n in self._gateway.book.nodes)
            if await self._ask(node, is_last=left == 0 or not others):
                return

    async def _ask(self, node: Node, *, is_last: bool) -> bool:
        """Ask one node; False if it refused before anything began, and another may be asked."""
        self._node, self._answer = node, None
        node.in_flight += 1
        try:
            try:
                link = await node.links.take()
            except OSError as error:
                return self._refused(node, error, is_last=is_last)
            if self._is_gone:
                node.links.give_back(link)
                raise _Gone
            self._over = asyncio.get_running_loop().create_future()
            self._is_last = is_last
            self._begin(node, link)
            return await self._over
        finally:
            node.in_flight -= 1
            link_used, self._link = self._link, None
            if link_used is not None:
                node.links.give_back(link_used)

    def _refused(self, node: Node, error: OSError, *, is_last: bool) -> bool:
        """Take a connection that was refused: nothing has begun there."""
        if not is_last and self._can_repeat:
            return False
        raise NodeUnreachable(
            f"node {node.name}: connect: {error.strerror or error}; nothing has begun",
            retry_after_s=1.0,
            remedy="try again",
        ) from None

    def _begin(self, node: Node, link: NodeLink) -> None:
        """Send what there is of the request."""
        head = self._head
        said: Headers = [(b"cellwall-request-id", self.request_id.encode())]
        dropped: frozenset[bytes] = frozenset()
        if self._caller is not None:
            said += self._caller.said
            dropped = self._caller.dropped
        if self._way.kind == "new":
            said.append((b"cellwall-id", new_id(node.name).encode()))
        host = str(node.links.address).encode()
        data = request_bytes(head, host, said, dropped)
        has_body = head.method != b"HEAD"
        length = 0 if head.upgrade else head.length
        link.ask(self, data, length, has_answer_body=has_body)
        self._link = link
        for piece in self._pieces:
            link.send(piece)
        if not self._can_repeat:
            self._pieces.clear()
            self._client.go_on()
        if self._is_whole and length != 0:
            link.end()

    # -- of the node -----------------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        """Pass the head on, unless the node turns the request away and another may have it."""
        self._answer = head
        if head.status == 101:
            self._is_tunnel = True
            self._has_begun = True
            self._client.write(switching_bytes(head))
            self._client.switch()
            return
        if head.status == 503 and not self._is_last and self._can_repeat:
            return  # the body says whether it is full
        self._pass_head(head)

    def _pass_head(self, head: ResponseHead) -> None:
        self._has_begun = True
        has_chunks = self._client.has_chunks
        framing = framing_for(head.length, has_chunks=has_chunks)
        self._in_chunks = head.length is None and has_chunks
        is_kept = self._client.is_kept and (head.length is not None or has_chunks)
        if not is_kept:
            self._client.is_closing = True
        self._client.write(response_bytes(head, is_kept=is_kept, framing=framing))

    def on_data(self, data: bytes) -> None:
        """Pass a piece of the answer on."""
        self._client.write(chunk(data) if self._in_chunks else data)

    def on_end(self) -> None:
        """Take the end of the answer."""
        answer = self._answer
        if answer is not None and not self._has_begun:
            if _is_full(bytes(self._turned_away)):
                self._turned_away.clear()
                self._settle(is_whole=False)
                return
            self._pass_head(answer)
            self.on_data(bytes(self._turned_away))
        if self._in_chunks:
            self._client.write(LAST_CHUNK)
        self._settle(is_whole=True)

    def on_lost(self) -> None:
        """Take the end of the connection before that of the answer."""
        if self._is_tunnel:
            self._client.close()
            self._settle(is_whole=True)
        elif self._has_begun:
            self._client.abort()
            self._settle(is_whole=True)
        elif self._over is not None and not self._over.done():
            self._over.set_exception(self._unknown())

    def _unknown(self) -> CellwallError:
        """Return the error for a request whose node ended under it."""
        node = self._node
        assert node is not None  # noqa: S101  a connection has one
        if node.name in self._gateway.book.lost:
            return lost(node.name)
        return unreachable(node.name)

    def _settle(self, *, is_whole: bool) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(is_whole)

    def _fail(self, error: CellwallError) -> None:
        """Answer with an error, if nothing was answered yet."""
        if self._is_gone:
            return
        if self._has_begun:
            self._client.abort()
            return
        self._gateway.refuse(self._client, self._head, error, self.request_id)


def _is_full(body: bytes) -> bool:
    """Report whether an answer's body says that a node has no room."""
    return any(b'"code":"%s"' % code in body for code in _FULL)
