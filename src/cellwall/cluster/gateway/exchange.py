"""One request and its answer: to which nodes it goes, and what a loss on the way means.

Begun by `gateway` for each request; `passage` moves the bytes. The invariants: only what certainly
did not begin is sent to another node; a client that leaves ends what it had asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.doubt import Doubt
from cellwall.cluster.gateway.names import node_with
from cellwall.cluster.gateway.routing import Way
from cellwall.cluster.gateway.tenants.lending import lend, names_in
from cellwall.cluster.gateway.wire.body import Body
from cellwall.cluster.gateway.wire.heads import request_bytes
from cellwall.cluster.gateway.wire.passage import Passage
from cellwall.cluster.gateway.work.counting import SANDBOXES, Counting
from cellwall.cluster.gateway.work.tools import Called, called
from cellwall.model.errors import CellwallError, NodeUnreachable, QuotaExceeded
from cellwall.model.ids import new_id
from cellwall.server.core.body_budget import Held
from cellwall.server.core.errors import status_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.lead import Lead
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.replays import Use
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import Headers, RequestHead
    from cellwall.cluster.gateway.wire.node_link import NodeLink
    from cellwall.cluster.gateway.wire.passage import End
    from cellwall.cluster.gateway.work.turns import Turn

_TRIES = 3
_PROGRAM = "/execute"
_REQUEST_ID = b"x-request-id"
_IDEMPOTENCY = b"idempotency-key"
_SAFE = frozenset({b"GET", b"HEAD"})
"""Methods that change nothing, so that they may be sent twice."""


class Exchange:
    """See the module."""

    __slots__ = (
        "_body", "_called", "_caller", "_client", "_counting", "_gateway", "_head", "_in_line",
        "_is_gone", "_lacking", "_lead", "_needs", "_node", "_own_status", "_status", "_tenant",
        "_turn", "_way", "request_id",
    )  # fmt: skip

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
        self._tenant = "" if caller is None else caller.principal.tenant
        self._body = Body(client, head, Held(gateway.bodies, self._tenant))
        quotas = gateway.quotas if self._tenant else None
        self._counting = Counting(quotas, self._tenant, head, way)
        self._turn: Turn | None = None
        self._in_line: asyncio.Task[None] | None = None
        """The task of `run` while it waits for a place."""
        self._status = 0
        """Status of the answer that was passed on; 0: none was."""
        self._own_status = 0
        """Status of the gateway's own answer; 0: it gave none."""
        self._node = ""
        """Name of the node that was asked last."""
        self._needs = b""
        """A node's refusal that asks for secrets; they are lent once."""
        self._is_gone = False
        self._called = Called("")
        """What a call of a tool makes."""
        self._lead: Lead | None = None
        """Where it is led, once a node has said what it lacks."""
        self._lacking: Passage | None = None
        """The refusal that says so, which no client has seen."""

    @property
    def status(self) -> int:
        """Status of its answer, from a node or from here; 0: there is none."""
        return self._status or self._own_status

    # -- of the client ---------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """Pass a piece of the body on."""
        self._body.take(data)

    def on_whole(self) -> None:
        """Note that the request is whole."""
        self._body.end()

    def on_full(self) -> None:
        """Let the node wait: the client is slow."""
        if self._body.passage is not None:
            self._body.passage.hold()

    def on_room(self) -> None:
        """Read the node's answer again."""
        if self._body.passage is not None:
            self._body.passage.go_on()

    def on_gone(self) -> None:
        """End what the client had asked for."""
        self._is_gone = True
        self._body.leave()
        if self._in_line is not None:
            self._in_line.cancel()
        if self._turn is not None:
            self._turn.leave()
        if self._body.passage is not None:
            self._body.passage.leave()

    # -- the whole way ---------------------------------------------------------------------

    async def run(self) -> None:
        """Bring the request to a node, and its answer back."""
        try:
            if self._way.makes == "call":
                await self._call()
            if self._way.path == _PROGRAM and await self._is_kept():
                pass  # it has its answer
            elif self._way.kind == "new":
                await self._in_place(self._at_a_chosen_node)
            elif self._way.makes == "program":
                await self._in_place(self._at_one_node)
            elif self._counting.copying:
                async with await self._copies():
                    await self._at_its_node()
            else:
                await self._at_its_node()
        except Exception as error:  # noqa: BLE001 - a defect has to be an answer, too
            self._status, self._own_status = 0, status_of(error)
            if not self._is_gone:
                self._refuse(error)
        finally:
            if self._turn is not None:
                self._turn.leave()
            self._note()
            self._body.release()
            self._client.done()

    async def _is_kept(self) -> bool:
        """Answer a program in the background, if gateways keep those; report whether it is one.

        Raises what `Background.accept` raises.
        """
        background, caller = self._gateway.background, self._caller
        if background is None or caller is None or self._head.door:
            return False
        await self._body.until_whole()
        if self._body.kept is None or not self._body.is_whole:
            return False
        body = b"".join(self._body.kept)
        found = await background.accept(self._head, caller, self.request_id, body)
        if found is None:
            return False
        self._own_status = 202
        more = background.headers_of(found)
        self._gateway.answer(self._client, self._head, 202, found.value, self.request_id, more)
        return True

    async def _in_place(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Hold a place for a program while nodes are asked; a sandbox needs none."""
        running = self._gateway.running
        needs_none = not self._tenant or self._way.path == SANDBOXES or self._is_gone
        if running is None or needs_none:
            await self._in_turn(ask)
            return
        self._in_line = asyncio.current_task()
        async with running.place(self._tenant):
            self._in_line = None
            await self._in_turn(ask)

    async def _copies(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold places in the tenant's quota for the copies that a request makes."""
        await self._body.until_whole()
        if self._body.kept is None:
            raise self._body.not_kept("its copies are counted first", "send at most 8 MiB")
        return self._counting.copies(b"".join(self._body.kept), lambda: self._node)

    async def _call(self) -> None:
        """Take what a call of a tool makes, where that is counted."""
        gateway = self._gateway
        if self._tenant and (gateway.quotas is not None or gateway.running is not None):
            await self._body.until_whole()
            if self._body.kept is None:
                raise self._body.not_kept("what it makes is counted first", "send at most 8 MiB")
            if not self._is_gone:
                self._called = called(b"".join(self._body.kept))
                self._counting.called(self._called)
        self._way = self._way._replace(makes=self._called.makes)

    def _refuse(self, error: Exception) -> None:
        """Answer with an error, in the words for models where a tool was called."""
        gateway, found = self._gateway, self._called
        if found.call is None or not isinstance(error, CellwallError):
            gateway.refuse(self._client, self._head, error, self.request_id)
            return
        gateway.answer(self._client, self._head, 200, found.refused(error), self.request_id)

    async def _at_its_node(self) -> None:
        """Ask the node of the template that a door's request names, or the one of its way."""
        data, caller, body = self._gateway.data, self._caller, b""
        if self._way.kind == "template" and (data is None or not self._tenant):
            self._way = Way("any")  # which refuses what has no key
        if self._way.kind != "template" or data is None or caller is None:
            await self._at_one_node()
            return
        if not self._way.name:
            await self._body.until_whole()
            if self._body.kept is None:
                raise self._body.not_kept("it names a template", "send at most 8 MiB")
            body = b"".join(self._body.kept)
        status = lambda: self._status  # noqa: E731 - of the answer, which is not there yet
        async with data.named.at(caller, self._way, body, status) as self._way:
            await self._at_one_node()

    async def _at_one_node(self) -> None:
        """Ask the node that has the object, or any; twice, if that can do no harm."""
        tries, asked = 2 if self._head.method in _SAFE else 1, _no_nodes()
        while True:
            tries -= 1
            node = await self._its_node(asked)
            doubt = Doubt(self._gateway.book, node)
            try:
                end = await self._ask(node, "", may_turn_away=False)
            except NodeUnreachable:
                if self._way.kind != "any" or len(asked) >= _TRIES or not self._has_other(asked):
                    raise
                tries += 1  # nothing has begun
                continue
            if end != "lost":
                await self._ended()
                return
            await doubt.until_heard()
            if not tries or not self._body.can_repeat:
                raise doubt.broken()

    async def _ended(self) -> None:
        """Count a sandbox no longer that this request has ended."""
        way, is_over = self._way, self._head.method == b"DELETE" and self._status == 200
        if is_over and self._head.path == f"{SANDBOXES}/{way.name}":
            self._counting.has(way.name)
            await self._counting.give_back(way.name)

    async def _its_node(self, asked: set[Node]) -> Node:
        way, book = self._way, self._gateway.book
        if way.thing == "snapshot" and not way.node and self._caller is not None:
            return await node_with(book, way.name, self._caller.said)
        if way.kind != "any":
            return book.of(way.node, way.thing, way.name)
        node = book.choose(asked) if self._has_other(asked) else book.choose()
        asked.add(node)
        if self._turn is not None:
            self._turn.at(node)
        return node

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
                self._status or self._own_status,
                self.request_id,
            )

    async def _in_turn(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask nodes once it is the tenant's turn; the body counts in the budget meanwhile.

        A request of no tenant, at a door, is asked for at once: it takes no tenant's turn or place
        in line, and its node refuses it, or bounds what its token may have.
        """
        if self._is_gone:
            return
        if not self._tenant:
            await ask()
            return
        self._turn = turn = self._gateway.turns.ask(self._tenant)
        if turn.has_come or await turn.come():
            await ask()

    async def _at_a_chosen_node(self) -> None:
        """Ask nodes for new work until one takes it, or certainly has begun it."""
        book, asked = self._gateway.book, _no_nodes()
        use = await self._use()
        try:
            await self._with_key(use, book, asked)
        finally:
            use.leave()

    async def _with_key(self, use: Use, book: Book, asked: set[Node]) -> None:
        left = _TRIES
        while not self._is_gone:
            left -= 1
            known, led = use.node, None if self._lead is None else self._lead.node
            node = book.of(known, "request", "") if known else led or book.choose(asked)
            asked.add(node)
            may_move = use.may_move if known else led is None and self._has_other(asked)
            has_more = left > 0 and may_move
            if not await self._was_refused(node, use, has_more=has_more):
                return

    def _has_other(self, asked: set[Node]) -> bool:
        """Report whether a node is ready that was not asked yet."""
        nodes = self._gateway.book.nodes
        return any(each.state == "ready" and each not in asked for each in nodes)

    async def _use(self) -> Use:
        """Return the use of the request's idempotency key."""
        use = self._gateway.replays.use(self._head, self._caller)
        if use.wants_body:
            await self._body.until_whole()
            use.take_body(self._body.kept)
        return use

    async def _was_refused(self, node: Node, use: Use, *, has_more: bool) -> bool:
        """Ask a node for new work; report whether it did not begin it, and another may."""
        if self._turn is not None:
            self._turn.at(node)
        doubt = Doubt(self._gateway.book, node)
        offered = await use.goes(node.name, new_id(node.name))
        if not offered:
            return True  # `use` says which node has it
        if self._way.path == SANDBOXES:
            await self._count(use, doubt, node, offered)
        try:
            end = await self._ask_with_secrets(node, use, offered, has_more=has_more)
        except NodeUnreachable:
            self._gateway.book.on_try("refused")
            if await self._gave_up(use, offered) and has_more:
                return True
            raise
        return await self._goes_on(use, doubt, offered, end, has_more=has_more)

    async def _goes_on(
        self, use: Use, doubt: Doubt, offered: str, end: End, *, has_more: bool
    ) -> bool:
        """Report by the end of a request for new work whether another node is to be asked."""
        if end == "lacking":
            return not await self._is_free(use, doubt, offered, "full") or await self._is_led()
        if end not in {"lost", "full"}:
            if self._status >= 400:
                await self._let_go(use, doubt, offered, end)
            return False
        if not await self._is_free(use, doubt, offered, end):
            return True  # it began by another request with its key
        if not has_more or not self._body.can_repeat:
            raise doubt.not_begun()
        return True

    async def _is_led(self) -> bool:
        """Take what a node lacks; report whether another node has it, else that is the answer.

        Raises HttpError if the request cannot be sent again, and what `Lead.take` raises.
        """
        passage, data, caller = self._lacking, self._gateway.data, self._caller
        if passage is None or data is None or caller is None:
            return False
        if self._lead is None:
            self._lead = data.lead(caller)
        if await self._lead.take(passage.lacks) is None:
            passage.pass_on()
            self._status = passage.status
            return False
        if not self._body.can_repeat:
            raise self._body.not_kept(
                f"{passage.lacks[:80]} is on another node",
                "send at most 8 MiB with it, and large files to the sandbox afterwards",
            )
        return True

    async def _ask_with_secrets(self, node: Node, use: Use, offered: str, *, has_more: bool) -> End:
        """Ask a node for new work, and once more with the secrets that it says it needs.

        Raises as `_ask`, and what `lend` raises: nothing has begun.
        """
        self._needs = b""
        end = await self._ask(node, offered, may_turn_away=has_more)
        if end != "needs":
            return end
        try:
            kept = self._body.kept
            if kept is None:
                raise self._body.not_kept("it names secrets", "send at most 8 MiB with them")
            named = await names_in(kept)
            await lend(self._gateway.keeps, node, offered, self._caller, self._needs, named)
        except NodeUnreachable:
            raise
        except CellwallError:
            await self._gave_up(use, offered)
            raise
        return await self._ask(node, offered, may_turn_away=has_more)

    async def _is_free(self, use: Use, doubt: Doubt, offered: str, end: End) -> bool:
        """Report whether nothing began, or ever will, under an id; False: another request did it.

        Raises what became of it if it may have been this one.
        """
        if end == "lost":
            await doubt.until_heard()
        elif await self._gave_up(use, offered):
            return True
        if await doubt.has_begun(offered, self._named(), use.age_s):
            if end == "full":
                return False
            raise doubt.broken()
        return await self._gave_up(use, offered, is_settled=True)

    async def _let_go(self, use: Use, doubt: Doubt, offered: str, end: End) -> None:
        """Give back what a request had whose client has its refusal."""
        if end == "refused":  # a repeat may go to another node
            with contextlib.suppress(CellwallError):  # or finds the key where it is
                await self._is_free(use, doubt, offered, "full")
        elif not use.may_move:  # no other request can have made it
            await self._counting.give_back(offered)

    def _named(self) -> Headers:
        """Return what names the caller and its idempotency key to a node, if it has one."""
        key = self._head.first(_IDEMPOTENCY)
        if self._caller is None or not key:
            return []
        return [*self._caller.said, (_IDEMPOTENCY, key.encode("latin-1"))]

    async def _gave_up(self, use: Use, offered: str, *, is_settled: bool = False) -> bool:
        """Report whether nothing can have begun under an id, after giving back what it had."""
        has = await use.did_not(is_settled=is_settled)
        if has:
            await self._counting.give_back(offered)
        return has

    async def _count(self, use: Use, doubt: Doubt, node: Node, offered: str) -> None:
        """Count a sandbox that is to be made, before it is. Raises QuotaExceeded, StoreBusy.

        One that an earlier request with the key has made needs no room.
        """
        try:
            await self._counting.take(offered, node.name)
        except QuotaExceeded:
            if await self._is_free(use, doubt, offered, "full"):
                raise
            return
        if use.is_first:
            self._counting.has(offered)

    async def _ask(self, node: Node, offered: str, *, may_turn_away: bool) -> End:
        """Ask one node. Raises NodeUnreachable if nothing has begun there."""
        is_program = self._way.path == _PROGRAM
        node.in_flight += 1
        node.programs += is_program
        self._node = node.name
        link: NodeLink | None = None
        began_s = asyncio.get_running_loop().time()
        try:
            link = node.links.idle() or await node.connected()
            if self._is_gone:
                return "gone"
            may = may_turn_away and self._body.can_repeat
            may_ask = bool(offered) and not self._needs
            passage = Passage(
                self._client,
                link,
                is_new=offered != "",
                may_turn_away=may,
                may_ask=may_ask,
                may_lead_away=not self._head.upgrade or self._is_of_an_app,
            )
            has_body = self._head.method != b"HEAD"
            self._body.begin(passage, self._first(offered), has_answer_body=has_body)
            end = await passage.end
            self._needs = passage.refused if end == "needs" else b""
            self._gateway.book.on_try("full" if end == "refused" else end)
            self._lacking = passage if end == "lacking" else None
            if is_program and end == "whole" and passage.is_success:
                now_s = asyncio.get_running_loop().time()
                node.pace.took(now_s - began_s, now_s)
            return end
        finally:
            asked, self._body.passage = self._body.passage, None
            self._status = 0 if asked is None else asked.status
            node.in_flight -= 1
            node.programs -= is_program
            if link is not None:
                node.links.give_back(link)

    @property
    def _is_of_an_app(self) -> bool:
        """Whether a server inside a sandbox may answer, which may send its clients anywhere."""
        return self._way.may_have_token or bool(self._head.door)

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


def _no_nodes() -> set[Node]:
    return set()
