"""One question to one node, or to all of them, about what a tenant has there.

The invariant: what is not known is never called "not begun", and a part that lacks is named.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.cluster.gateway.wire.asking import answer_on
from cellwall.model.errors import CapacityError, NodeUnreachable

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.wire.asking import Whole
    from cellwall.cluster.gateway.wire.heads import Headers

_PART_S = 5.0
"""Longest time for what one node has."""
_JSON = (b"content-type", b"application/json")


class NotBegun(NodeUnreachable):
    """A node takes no connection, so it has begun nothing."""


async def call(
    node: Node, method: str, target: str, said: Headers, body: bytes | None = None
) -> Whole:
    """Return a node's whole answer. Raises NotBegun, and NodeUnreachable if there is none."""
    name = node.name
    try:
        link = await node.links.take()
    except OSError as error:
        raise NotBegun(
            f"node {name}: connect: {error.strerror or error}; nothing has begun",
            retry_after_s=1.0,
            remedy="try again",
        ) from None
    headers = said if body is None else [*said, _JSON]
    address, where = node.links.address, target.encode("latin-1")
    node.in_flight += 1
    try:
        return await answer_on(link, address, where, headers, body, method=method.encode())
    except OSError:
        raise NodeUnreachable(
            f"node {name}: the connection to it broke; how far the request came is not known",
            retry_after_s=1.0,
            remedy="look at what it should have done before you send it again",
        ) from None
    finally:
        node.in_flight -= 1
        node.links.give_back(link)


class Parts(NamedTuple):
    """What all nodes say to one question."""

    found: list[tuple[Node, Whole]]
    missing: list[str]
    """Names of nodes that have things and did not answer."""

    def values(self) -> list[tuple[Node, dict[str, Any]]]:
        """Return what those say that have an answer."""
        return [(node, json.loads(each.body)) for node, each in self.found if each.status == 200]

    @property
    def refusal(self) -> Whole | None:
        """A refusal among the answers, if there is one; each node refuses alike."""
        return next((each for _node, each in self.found if each.status != 200), None)


async def of_all(book: Book, target: str, said: Headers) -> Parts:
    """Ask every node that answers now. Raises CapacityError if there is none at all."""
    nodes, missing = list(book.answering()), book.silent()
    if not nodes and not missing:
        raise CapacityError(
            "nodes: none of them answers now", retry_after_s=1.0, remedy="try again in a moment"
        )
    answers = await asyncio.gather(*(_part(node, target, said) for node in nodes))
    found = [(node, each) for node, each in zip(nodes, answers, strict=True) if each is not None]
    missing += [node.name for node, each in zip(nodes, answers, strict=True) if each is None]
    return Parts(found, missing)


async def _part(node: Node, target: str, said: Headers) -> Whole | None:
    try:
        async with asyncio.timeout(_PART_S):
            return await call(node, "GET", target, said)
    except (TimeoutError, NodeUnreachable):
        return None
