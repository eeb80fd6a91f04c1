"""One program of many, run at a node that takes it, with its whole answer.

Called by `batch`. The same rules as for a request of its own (`exchange`): only what certainly did
not begin goes to another node, and what may have begun is not run again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.doubt import Doubt
from cellwall.cluster.gateway.wire.asking import Whole, answer_on
from cellwall.cluster.gateway.wire.passage import NEEDS
from cellwall.model.errors import CapacityError, CellwallError, NodeUnreachable
from cellwall.model.ids import new_id
from cellwall.server.core.errors import LACKS
from cellwall.wire.answer import one_line
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.data.lead import Lead
    from cellwall.cluster.gateway.wire.heads import Headers
    from cellwall.cluster.gateway.wire.node_link import NodeLink
    from cellwall.cluster.gateway.work.turns import Turn

Lend = Callable[["Node", str, bytes, bytes], Awaitable[None]]
"""Gives a node the secrets that its refusal of an id asks for; the last is the program."""
Offer = Callable[["Node"], Awaitable[str]]
"""Returns what a node that is about to be asked is offered: an id, under which it begins the
program or nothing. What was offered before certainly never begins."""
_TRIES = 3
_LACKS = LACKS.encode()
_JSON = ((b"content-type", b"application/json"), (b"accept", b"application/json"))
_TAKEN = frozenset({200, 202})


async def _fresh(node: Node) -> str:
    return new_id(node.name)


@dataclass(frozen=True, slots=True)
class Aid:
    """What a program's batch does for it."""

    count: Callable[[int], None]
    """Hears of the answer's bytes as they come, and raises what the program ends as if there is no
    room for them."""
    lend: Lend
    begin_lead: Callable[[], Lead | None]
    """Leads to what a node lacks."""
    offer: Offer = _fresh
    more: tuple[tuple[bytes, bytes], ...] = _JSON
    """Headers of the program's request."""
    may_begin: bool = True
    """Whether a node begins something by it; else there is no doubt where a connection breaks."""


async def run(book: Book, said: Headers, program: bytes, turn: Turn | None, aid: Aid) -> bytes:
    """Return the execution of a program whose turn has come, as JSON on one line.

    `turn`: None for what runs nothing.

    Raises CapacityError if no node takes it now, and the error of what became of it: that of the
    node's answer, NodeLost, Interrupted, NodeUnreachable.
    """
    asked: set[Node] = set()
    full: CellwallError | None = None
    lead: Lead | None = None
    for _ in range(_TRIES):
        try:
            node = None if lead is None else lead.node
            node = node or book.choose(asked)
        except CapacityError as error:
            raise full or error from None
        asked.add(node)
        if turn is not None:
            turn.at(node)
        answer = await _at(book, node, said, program, aid)
        if answer is None:
            continue
        if answer.status in _TAKEN:
            return _line_of(answer.body)
        lacked = dict(answer.headers).get(_LACKS, b"").decode("latin-1")
        lead = lead or (aid.begin_lead() if lacked else None)
        if lacked and lead is not None and await lead.take(lacked) is not None:
            continue
        failure = error_of(json.loads(answer.body)["error"], answer.status)
        if not isinstance(failure, CapacityError):
            raise failure
        full = failure
    raise full or CapacityError(
        "nodes: none of those asked takes it now", retry_after_s=1.0, remedy="try again"
    )


def _end_of(answer: Whole) -> str:
    """Return how a request to a node ended, as `Passage` says it."""
    if answer.status == NEEDS:
        return "needs"
    if any(name == _LACKS for name, _value in answer.headers):
        return "lacking"
    return "full" if answer.status == 503 else "whole"


def _line_of(body: bytes) -> bytes:
    """Return a node's answer as it came if it is on one line, which is what servers send."""
    is_object = body.startswith(b"{") and body.endswith(b"}")
    if is_object and not body.startswith(b"{}") and b"\n" not in body:
        return body
    return one_line(dict(json.loads(body))).encode()


async def _at(book: Book, node: Node, said: Headers, program: bytes, aid: Aid) -> Whole | None:
    """Run a program at one node, with the secrets that it names; None: nothing has begun there."""
    offered = await aid.offer(node)
    answer = await _asked(book, node, offered, said, program, aid)
    if answer is not None and answer.status == NEEDS:
        try:
            await aid.lend(node, offered, answer.body, program)
        except NodeUnreachable:
            return None
        answer = await _asked(book, node, offered, said, program, aid)
    return answer


async def _asked(
    book: Book, node: Node, offered: str, said: Headers, program: bytes, aid: Aid
) -> Whole | None:
    doubt = Doubt(book, node)
    headers = [*said, *aid.more, (b"cellwall-id", offered.encode())]
    node.in_flight += 1
    node.programs += 1
    link: NodeLink | None = None
    try:
        link = await node.links.take()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        address = node.links.address
        answer = await answer_on(link, address, b"/execute", headers, program, aid.count)
        book.on_try(_end_of(answer))
        if answer.status == 200:
            node.pace.took(loop.time() - began_s, loop.time())
        return answer
    except OSError:
        book.on_try("refused" if link is None else "lost")
        if link is None:
            return None
    finally:
        node.in_flight -= 1
        node.programs -= 1
        if link is not None:
            node.links.give_back(link)
    if not aid.may_begin:
        return None
    await doubt.until_heard()
    if await doubt.has_begun(offered, [], 0.0):
        raise doubt.broken()
    return None
