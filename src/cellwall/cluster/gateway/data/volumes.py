"""Volumes through a gateway: each lies on one node, and its name is its tenant's on all of them.

What a request names lies where its place is (`places`), and goes there; a new one is made at a node
that is chosen. The invariants: a name is claimed before a node is asked to make it, and free again
only once that node has said that there is none; no volume is made in the place of one that is lost,
or on a node that does not answer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.book import NoConnection
from cellwall.cluster.gateway.data.bodies import name_in
from cellwall.cluster.gateway.data.finder import VOLUME
from cellwall.cluster.gateway.data.removal import remove
from cellwall.cluster.gateway.lists import of_all
from cellwall.cluster.gateway.routing import Way
from cellwall.model.errors import CapacityError, Conflict, NodeUnreachable
from cellwall.model.volume import check_name
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from typing import Any

    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.data.finder import Finder
    from cellwall.cluster.gateway.data.places import Place
    from cellwall.cluster.gateway.data.visit import Visit
    from cellwall.cluster.gateway.wire.asking import Whole

_TRIES = 3
_TAKEN = 409
_FULL = frozenset({429, 503})
"""Statuses of a node that has no room for one more, or cannot have volumes."""


class Volumes:
    """The volumes of all tenants."""

    def __init__(self, book: Book, finder: Finder) -> None:
        """`book` knows the nodes."""
        self._book = book
        self._finder = finder
        self._places = finder.places

    async def index(self, visit: Visit) -> None:
        """`GET /volumes`: `lost` names those whose nodes are lost."""
        parts = await of_all(self._book, visit.head.target, visit.said)
        if parts.refusal is not None:
            visit.pass_on(parts.refusal)
            return
        try:
            places = await self._places.of(visit.tenant, VOLUME)
        except StoreBusy:
            places = {}  # which are lost is not known now
        there = {
            (each["name"], node.name): each
            for node, value in parts.values()
            for each in value["volumes"]
        }
        shown = [
            there[name, node]
            for name, node in sorted(there)
            if places.get(name, node) == node or (name, places[name]) not in there
        ]
        names = {name for name, _node in there}
        lost = [
            name
            for name, node in sorted(places.items())
            if node in self._book.lost and name not in names
        ]
        value: dict[str, Any] = {"volumes": shown}
        value |= {"lost": lost} if lost else {}
        visit.answer(200, value | ({"incomplete": parts.missing} if parts.missing else {}))

    async def get(self, visit: Visit, name: str) -> None:
        """`GET /volumes/{name}`."""
        name = check_name(name)
        node = await self._finder.node_of(visit.caller, VOLUME, name)
        await visit.go(Way("object", node.name, VOLUME, name))

    async def create(self, visit: Visit) -> None:
        """`POST /volumes`: at a node that is chosen, or where the name has its place."""
        body = await visit.body()
        name = check_name(name_in(body))
        asked: set[Node] = set()
        refusal: Whole | None = None
        for _ in range(_TRIES):
            try:
                node = self._book.choose(asked)
            except CapacityError:
                if refusal is None:
                    raise
                break
            asked.add(node)
            answer, may_move = await self._made(visit, name, body, node)
            if answer is not None:
                refusal = answer
                if not may_move:
                    break
        if refusal is None:
            raise NodeUnreachable(
                "nodes: none of those asked takes a connection; nothing has begun",
                retry_after_s=1.0,
                remedy="try again",
            )
        visit.pass_on(refusal)

    async def _made(
        self, visit: Visit, name: str, body: bytes, node: Node
    ) -> tuple[Whole | None, bool]:
        """Have a volume made; return the answer, and whether another node may be asked instead.

        No answer: the node takes no connection.
        """
        node, place = await self._claimed(visit, name, node)
        is_new = place is not None and place.uses == 0
        try:
            answer = await visit.call(node, body)
        except NoConnection:
            if place is None or not is_new:
                raise
            await self._places.forget(visit.tenant, _thing(name), place)
            return None, True
        # A claim of another request's may be on its way to the node: only that one frees the name.
        is_free = is_new and answer.status >= 400 and answer.status != _TAKEN
        if is_free:
            await self._freed(visit, name, place)
        return answer, is_free and answer.status in _FULL

    async def _claimed(self, visit: Visit, name: str, node: Node) -> tuple[Node, Place | None]:
        """Claim a name for a node; return the node that has it, and the place that was claimed.

        Raises NodeLost if it was at a node that is lost, NodeUnreachable if a node that may have a
        volume of that name does not answer, Conflict if several have.
        """
        place = await self._places.claim(visit.tenant, _thing(name), node.name)
        if place.node in self._book.lost:
            return await self._finder.node_of(visit.caller, VOLUME, name), None
        if place.uses:
            return self._book.of(place.node, VOLUME, name), place
        try:  # one may have been made before there was a directory, or this gateway
            found = await self._finder.asked(visit.caller, VOLUME, name)
        except BaseException:
            await self._places.forget(visit.tenant, _thing(name), place)
            raise
        if found is None or found is node:
            return node, place
        await self._places.note(visit.tenant, _thing(name), found.name, node.name)
        return found, None

    async def copy(self, visit: Visit, source: str) -> None:
        """`POST /volumes/{name}/copy`: it lies beside its source."""
        body = await visit.body()
        name, source = check_name(name_in(body)), check_name(source)
        node = await self._finder.node_of(visit.caller, VOLUME, source)
        at, place = await self._claimed(visit, name, node)
        if at is not node:
            raise Conflict(
                f"volume {name}: the name is taken",
                remedy="use it, choose another name, or remove it first",
            )
        try:
            answer = await visit.call(node, body)
        except NoConnection:
            await self._freed(visit, name, place)
            raise
        if answer.status >= 400:
            await self._freed(visit, name, place)
        visit.pass_on(answer)

    async def _freed(self, visit: Visit, name: str, place: Place | None) -> None:
        """Free a name that was claimed by this request, which has made nothing."""
        if place is not None and place.uses == 0:
            with contextlib.suppress(StoreBusy):  # the name stays where it is
                await self._places.forget(visit.tenant, _thing(name), place)

    async def remove(self, visit: Visit, name: str) -> None:
        """`DELETE /volumes/{name}`; of one that is lost the name is free again."""
        name = check_name(name)

        async def free(place: Place) -> None:
            await self._places.forget(visit.tenant, _thing(name), place)

        await remove(visit, self._finder, _thing(name), name, free)


def _thing(name: str) -> str:
    return f"{VOLUME}:{name}"
