"""One request about things that are named without a node: its body, and the way to its answer.

Begun by `data.Data`, which says what is done with it. Either nodes are asked and their answers are
made one here, or the request goes whole to the node that was found (`exchange`). The invariant:
what may have changed something is seen to its end, also when its client leaves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.cluster.gateway.exchange import Exchange
from cellwall.cluster.gateway.lists import waits_of
from cellwall.cluster.gateway.wire.asking import answer_on
from cellwall.cluster.gateway.wire.heads import CONTINUE
from cellwall.model.errors import CapacityError, NodeUnreachable, UsageError
from cellwall.server.core.body_budget import Held
from cellwall.server.core.errors import HttpError, status_of

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.routing import Way
    from cellwall.cluster.gateway.wire.asking import Whole
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead

_BODY_BYTES = 64 * 1024
"""Longest body of those that are read whole here."""
_PEEK_BYTES = 9 << 20
"""Most of a body that is looked at for a name; a server takes no JSON of a template that is longer
than 8 MiB."""
_JSON = (b"content-type", b"application/json")
_SAFE = frozenset({b"GET", b"HEAD"})

_Found = TypeVar("_Found")
Work = Callable[["Visit"], Awaitable[None]]
"""What is done with a request."""


class Visit:
    """See the module."""

    def __init__(
        self, gateway: Gateway, client: ClientLink, head: RequestHead, way: Way, caller: Caller
    ) -> None:
        """Nothing of its body is there yet."""
        self._gateway = gateway
        self._client = client
        self.head = head
        self._way = way
        self.caller = caller
        self.tenant = caller.principal.tenant
        self.request_id = gateway.request_id_of(head)
        self.said = [*caller.said, (b"x-request-id", self.request_id.encode())]
        self._held = Held(gateway.bodies, self.tenant)
        self._body = bytearray()
        self._fault: CapacityError | None = None
        self._is_whole = head.length == 0
        self._is_gone = False
        self._news = asyncio.Event()
        self._exchange: Exchange | None = None
        self._node = ""

    def begin(self, work: Work) -> Visit:
        """Begin to answer."""
        self._gateway.tasks.spawn(self._run(work))
        return self

    # -- of the client ---------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self._exchange is not None:
            self._exchange.on_body(data)
            return
        if self._fault is not None:
            return  # it would have a hole
        try:
            self._held.resize(self._held.size + len(data))
            self._body += data
        except CapacityError as error:
            self._fault = error
        if len(self._body) > _PEEK_BYTES:
            self._client.hold()
        self._news.set()

    def on_whole(self) -> None:
        """Take the end of the body."""
        self._is_whole = True
        self._news.set()
        if self._exchange is not None:
            self._exchange.on_whole()

    def on_full(self) -> None:
        """Send no more for the moment."""
        if self._exchange is not None:
            self._exchange.on_full()

    def on_room(self) -> None:
        """Send again."""
        if self._exchange is not None:
            self._exchange.on_room()

    def on_gone(self) -> None:
        """Answer nothing; what was asked of nodes goes on."""
        self._is_gone = True
        self._news.set()
        if self._exchange is not None:
            self._exchange.on_gone()

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self._is_gone

    # -- the whole way ---------------------------------------------------------------------

    async def _run(self, work: Work) -> None:
        try:
            await work(self)
        except Exception as error:  # noqa: BLE001 - a defect has to be an answer, too
            if self._exchange is None:
                self._note(status_of(error))
                if not self._is_gone:
                    self._gateway.refuse(self._client, self.head, error, self.request_id)
        finally:
            self._held.release()
            if self._exchange is None:
                self._client.done()

    async def body(self) -> bytes:
        """Return the whole body. Raises HttpError if it is too long, CapacityError."""
        return await self.until(whole, _BODY_BYTES)

    async def until(
        self, found: Callable[[bytearray, bool], _Found | None], most_bytes: int = _PEEK_BYTES
    ) -> _Found:
        """Return what `found` finds in as much of the body as is here, and whether that is all.

        Raises HttpError if it finds nothing in so many bytes, UsageError if it finds nothing at
        all, CapacityError.
        """
        if self.head.first(b"expect").lower() == "100-continue" and not self._is_whole:
            self._client.write(CONTINUE)
        while True:
            if self._fault is not None:
                raise self._fault
            value = found(self._body, self._is_whole)
            if value is not None:
                return value
            if len(self._body) > most_bytes:
                raise HttpError(
                    413, "too_large", f"body: more than {most_bytes} bytes", remedy="send less"
                )
            if self._is_whole or self._is_gone:
                raise UsageError("body: it is not whole", remedy="see /docs")
            self._news.clear()
            await self._news.wait()

    async def call(self, node: Node, body: bytes | None = None, target: str = "") -> Whole:
        """Ask a node for the same, or for `target`; return its whole answer.

        Raises NoConnection if nothing has begun, NodeUnreachable if that is not known.
        """
        self._node = node.name
        method = b"GET" if self.head.method == b"HEAD" else self.head.method
        where = target.encode("latin-1") or self.head.target
        headers = self.said if body is None else [*self.said, _JSON]
        link = await node.connected()
        node.in_flight += 1
        try:
            return await answer_on(link, node.links.address, where, headers, body, method=method)
        except OSError:
            raise NodeUnreachable(
                f"node {node.name}: the connection to it broke; how far the request came is not "
                "known",
                retry_after_s=1.0,
                remedy="look at what it should have done before you send it again",
            ) from None
        finally:
            node.in_flight -= 1
            node.links.give_back(link)

    async def go(self, way: Way) -> int:
        """Send the request whole to a node, and its answer back; return the answer's status.

        Raises CapacityError if a part of its body could not be kept meanwhile.
        """
        if self._fault is not None:
            raise self._fault
        self._exchange = exchange = Exchange(
            self._gateway, self._client, self.head, way, self.caller
        )
        data, self._body = bytes(self._body), bytearray()
        self._held.release()
        if self._is_gone:
            exchange.on_gone()
        if data:
            exchange.on_body(data)
        if self._is_whole and self.head.length != 0:
            exchange.on_whole()
        await exchange.run()
        return exchange.status

    # -- answering here --------------------------------------------------------------------

    def pass_on(self, answer: Whole) -> None:
        """Answer as a node did."""
        more = waits_of(answer)
        place = dict(answer.headers).get(b"location")
        if place is not None:
            more["location"] = place.decode("latin-1")
        self.answer(answer.status, json.loads(answer.body), more)

    def answer(
        self, status: int, value: Mapping[str, Any], more: Mapping[str, str] | None = None
    ) -> None:
        """Answer with JSON."""
        self._note(status)
        if not self._is_gone:
            self._gateway.answer(
                self._client, self.head, status, value, self.request_id, more or {}
            )

    def _note(self, status: int) -> None:
        """Write down what may have changed something."""
        trail = self._gateway.trail
        if trail is not None and self.head.method not in _SAFE:
            trail.passed(
                self.caller, self._client.peer, self._way, self._node, status, self.request_id
            )


def whole(body: bytearray, is_whole: bool) -> bytes | None:
    """Return a body once it is whole."""
    return bytes(body) if is_whole else None
