"""The node that has a thing which is named without a node: a volume, a template, an image by id.

Its place is looked up, and where there is none, or its node is lost, all nodes are asked: a machine
that was cut off starts again under another name, with its disk. The invariants: a name is a thing's
only if one node alone has it, and every node has answered; and what was lost is never "not found".
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.book import unreachable
from cellwall.cluster.gateway.lists import of_all
from cellwall.engine.images.own_templates import whole_name
from cellwall.model.errors import Conflict, NodeLost, NotFound
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.places import Place, Places

VOLUME, TEMPLATE, IMAGE = "volume", "template", "image"


class Finder:
    """See the module."""

    def __init__(self, book: Book, places: Places) -> None:
        """`book` knows the nodes."""
        self._book = book
        self.places = places

    def is_lost(self, node: str) -> bool:
        """Report whether the node of that name is lost."""
        return node in self._book.lost

    async def node_of(self, caller: Caller, kind: str, name: str) -> Node:
        """Return the node that has it.

        Raises NotFound, NodeLost, NodeUnreachable, and Conflict if several have one of that name;
        StoreBusy if none has it, and where it was cannot be looked up.
        """
        if kind == IMAGE:
            return await self._any_with(caller, name)
        tenant, thing = caller.principal.tenant, f"{kind}:{name}"
        try:
            place = await self.places.find(tenant, thing)
        except StoreBusy:
            found = await self.asked(caller, kind, name)
            if found is None:
                raise
            return found
        if place is not None and place.node not in self._book.lost:
            return self._book.of(place.node, kind, name)
        found = await self.asked(caller, kind, name)
        if found is None:
            raise _none(kind, name, place)
        with contextlib.suppress(StoreBusy):  # it is found again
            await self.places.note(tenant, thing, found.name, "" if place is None else place.node)
        return found

    async def asked(self, caller: Caller, kind: str, name: str) -> Node | None:
        """Ask all nodes which has it; None: none of them.

        Raises NodeUnreachable if one that may have it does not answer, Conflict if several have it.
        """
        having, missing = await self._having(caller, kind, name)
        if len(having) > 1:
            raise Conflict(
                f"{kind} {name[:80]}: several nodes have one of that name",
                remedy="ask the operator which one is to stay",
            )
        if not having:
            for each in missing:
                raise unreachable(each)
        return having[0] if having else None

    async def _any_with(self, caller: Caller, image_id: str) -> Node:
        """Return one of the nodes that have an image."""
        having, missing = await self._having(caller, IMAGE, image_id)
        if having:
            return min(having, key=lambda each: (each.state != "ready", each.in_flight))
        for each in missing:
            raise unreachable(each)
        raise _none(IMAGE, image_id, None)

    async def _having(self, caller: Caller, kind: str, name: str) -> tuple[list[Node], list[str]]:
        """Return which nodes have it, and the names of those that did not answer."""
        target = "/templates" if kind == TEMPLATE else f"/{kind}s/{name}"
        parts = await of_all(self._book, target.encode("latin-1"), caller.said)
        if kind != TEMPLATE:
            return [node for node, _value in parts.values()], parts.missing
        having = [
            node
            for node, value in parts.values()
            if any(stem_of(each["name"]) == name for each in value["own"])
        ]
        return having, parts.missing


def stem_of(template: str) -> str:
    """Return the name of a template without its tag: all tags of one lie together.

    Raises UsageError for what can be the name of none.
    """
    return whole_name(template).partition(":")[0]


def _none(kind: str, name: str, place: Place | None) -> NotFound | NodeLost:
    """Return the error for what no node has; `place`: where it was, on a node that is lost."""
    if place is None:
        return NotFound(
            f"{kind} {name[:80]}: there is none", remedy=f"GET /{kind}s lists what there is"
        )
    again = "build it again" if kind == TEMPLATE else "remove it to have the name again"
    return NodeLost(
        f"{kind} {name[:80]}: its node {place.node} is lost, and it with the node; the program was "
        "not the reason",
        remedy=f"{again}; it is there again by itself if its machine comes back with its disk",
    )
