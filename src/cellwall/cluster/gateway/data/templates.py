"""Templates of tenants through a gateway: each lies on the node that has built it.

All tags of a name lie together. A build goes to the node that has its name, or to one that is
chosen; its id begins with that node's name, so its log is found by itself. What a sandbox or a
program names goes to that node, too (`lead`). The invariant: a name is built at one node at a time;
only one whose node is lost is built at another.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from cellwall.cluster.gateway.data.bodies import FirstPart, name_in
from cellwall.cluster.gateway.data.finder import TEMPLATE, stem_of
from cellwall.cluster.gateway.data.removal import remove
from cellwall.cluster.gateway.data.visit import whole
from cellwall.cluster.gateway.lists import of_all
from cellwall.cluster.gateway.routing import Way
from cellwall.model.errors import NotFound, UsageError
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.finder import Finder
    from cellwall.cluster.gateway.data.places import Place
    from cellwall.cluster.gateway.data.visit import Visit


class Templates:
    """The templates of all tenants."""

    def __init__(self, book: Book, finder: Finder) -> None:
        """`book` knows the nodes."""
        self._book = book
        self._finder = finder
        self._places = finder.places

    async def index(self, visit: Visit) -> None:
        """`GET /templates`: the operator's, and the tenant's own of all nodes."""
        parts = await of_all(self._book, visit.head.target, visit.said)
        if parts.refusal is not None:
            visit.pass_on(parts.refusal)
            return
        values = [value for _node, value in parts.values()]
        own = [each for value in values for each in value["own"]]
        found: dict[str, Any] = {
            "templates": _operators([each for value in values for each in value["templates"]]),
            "own": sorted(own, key=lambda each: str(each["name"])),
        }
        visit.answer(200, found | ({"incomplete": parts.missing} if parts.missing else {}))

    async def get(self, visit: Visit, name: str) -> None:
        """`GET /templates/{name}`."""
        stem = _stem(name)
        node = await self._finder.node_of(visit.caller, TEMPLATE, stem)
        await visit.go(Way("object", node.name, TEMPLATE, stem))

    async def remove(self, visit: Visit, name: str) -> None:
        """`DELETE /templates/{name}`; of one that is lost the name is free again."""
        _check_scope(visit)  # before a name is freed by it
        stem = _stem(name)

        async def free(place: Place) -> None:
            if await self._finder.asked(visit.caller, TEMPLATE, stem) is None:  # no tag is left
                await self._places.forget(visit.tenant, _thing(stem), place)

        await remove(visit, self._finder, _thing(stem), name, free)

    async def build(self, visit: Visit) -> None:
        """`POST /templates`."""
        _check_scope(visit)  # before a name is claimed for it
        media = visit.head.first(b"content-type")
        is_form = media.partition(";")[0].strip().lower() == "multipart/form-data"
        try:
            stem = stem_of(name_in(await visit.until(FirstPart(media) if is_form else whole)))
        except UsageError:
            await visit.go(Way("any"))  # which says what is wrong
            return
        status = 0
        async with self.claimed(visit.caller, stem, lambda: status in (200, 202)) as node:
            status = await visit.go(Way("object", node.name, TEMPLATE, stem))

    async def node_of(self, caller: Caller, stem: str) -> Node:
        """Return the node that has a template; raises as `Finder.node_of`."""
        return await self._finder.node_of(caller, TEMPLATE, stem)

    async def has_place(self, caller: Caller, template: str) -> bool:
        """Report whether a node is known that has a template, or had it. Raises StoreBusy."""
        try:
            thing = _thing(stem_of(template))
        except UsageError:
            return False
        return await self._places.find(caller.principal.tenant, thing) is not None

    @contextlib.asynccontextmanager
    async def claimed(
        self, caller: Caller, stem: str, has_begun: Callable[[], bool]
    ) -> AsyncIterator[Node]:
        """Claim a name for a build for the length of a block; give the node that is to build.

        The name is free again afterwards unless the build `has_begun`, or others claim it, too.
        Raises as `_claimed`.
        """
        node, place = await self._claimed(caller, stem)
        try:
            yield node
        finally:
            if place.uses == 0 and not has_begun():
                await self._places.forget(caller.principal.tenant, _thing(stem), place)

    async def _claimed(self, caller: Caller, stem: str) -> tuple[Node, Place]:
        """Claim a name; return the node that is to build, and the place.

        Raises CapacityError if no node is ready, NodeUnreachable if the one that has the name, or
        may have it, does not answer.
        """
        chosen, tenant = self._book.choose(), caller.principal.tenant
        thing = _thing(stem)
        place = await self._places.claim(tenant, thing, chosen.name)
        if place.uses and place.node not in self._book.lost:
            return self._book.of(place.node, TEMPLATE, stem), place
        try:
            found = await self._finder.asked(caller, TEMPLATE, stem)
        except BaseException:
            if place.uses == 0:
                await self._places.forget(tenant, thing, place)
            raise
        node = chosen if found is None else found
        if node.name != place.node:
            await self._places.note(tenant, thing, node.name, place.node)
            place = place._replace(uses=1)  # not this request's alone
        return node, place


def _operators(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the operator's templates once each; `built`: at every node."""
    merged: dict[str, dict[str, Any]] = {}
    for each in found:
        known = merged.setdefault(each["name"], each)
        known["built"] = known["built"] and each["built"]
    return list(merged.values())


def _check_scope(visit: Visit) -> None:
    """Raise HttpError for a key of less than `manage`, as the node does."""
    if not visit.caller.principal.may("manage"):
        raise HttpError(
            403, "forbidden", "key: manage is needed for that", remedy="use another key"
        )


def _stem(name: str) -> str:
    try:
        return stem_of(name)
    except UsageError:
        raise NotFound(f"template {name[:80]!r}: there is none") from None


def _thing(stem: str) -> str:
    return f"{TEMPLATE}:{stem}"
