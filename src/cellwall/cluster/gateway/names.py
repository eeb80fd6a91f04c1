"""Snapshots by the names that their tenants gave them: which node has the one of that name.

An id says its node, a name does not, so all nodes are asked. The invariant: a name is a snapshot's
only if no other node has one of that name, and every node has answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.book import unreachable
from cellwall.cluster.gateway.lists import part_of
from cellwall.model.errors import Conflict, NotFound, UsageError
from cellwall.model.snapshot import check_name

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.wire.heads import Headers


async def node_with(book: Book, name: str, said: Headers) -> Node:
    """Return the node that has the caller's snapshot called `name`, as the path has it.

    Raises NotFound, for what can be no name as well, NodeUnreachable, and Conflict if several
    have one.
    """
    nodes = list(book.answering())
    if not book.has_several and nodes:
        return nodes[0]  # which says itself that there is none
    try:
        target = b"/snapshots/" + check_name(name).encode()
    except UsageError as error:
        raise NotFound(error.message, remedy=error.remedy) from None
    found = await asyncio.gather(*(part_of(each, target, said) for each in nodes))
    having = [node for node, each in zip(nodes, found, strict=True) if each.status == 200]
    if len(having) > 1:
        raise Conflict(
            f"snapshot {name[:64]!r}: several nodes have one of that name",
            remedy="name it by its id, which GET /snapshots says",
        )
    if having:
        return having[0]
    for each in book.silent():
        raise unreachable(each)
    raise NotFound(
        f"snapshot {name[:64]!r}: there is none", remedy="look at your own; it may have expired"
    )
