"""Requests of a door that name a template: they go to the node that has it.

A template is named in the path, or in a body that is one JSON object; what a client builds is
claimed before its node is asked, as by `POST /templates`. A name that is no template's here may be
the operator's, which each node has, also while a node that might have it does not answer. The
invariant: a name is built at one node at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.data.finder import TEMPLATE, stem_of
from cellwall.cluster.gateway.names import node_with
from cellwall.cluster.gateway.routing import Way
from cellwall.cluster.gateway.wire.json_body import object_of
from cellwall.model.errors import NodeUnreachable, NotFound, UsageError
from cellwall.model.ids import node_of

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.templates import Templates

CLAIM = "claim"
"""What a way has as its `thing` that begins a build."""
_NOWHERE_S = 2.0
"""For so long nodes are not asked again for a name that none of them had."""
_MOST = 10_000
_BEGUN = 202


class NamedTemplates:
    """See the module."""

    def __init__(self, book: Book, templates: Templates) -> None:
        """`templates`: those of all tenants."""
        self._book = book
        self._templates = templates
        self._nowhere: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextlib.asynccontextmanager
    async def at(
        self, caller: Caller, way: Way, body: bytes, status: Callable[[], int]
    ) -> AsyncIterator[Way]:
        """Give the way to the node of the template that a request names; `status`: its answer's.

        Raises NodeLost, NodeUnreachable, Conflict, CapacityError.
        """
        name = _named(way, body)
        if way.thing != CLAIM:
            yield await self._found(caller, way, name)
            return
        try:
            stem = stem_of(name)
        except UsageError:
            yield Way("any")  # which says what is wrong
            return
        async with self._templates.claimed(caller, stem, lambda: status() == _BEGUN) as node:
            yield Way("object", node.name, TEMPLATE, stem)

    async def _found(self, caller: Caller, way: Way, name: str) -> Way:
        if self._book.has_had(node_of(name)):  # the id of a snapshot
            return way._replace(kind="object", node=node_of(name), thing="snapshot", name=name)
        key = (caller.principal.tenant, name)
        anywhere = Way("any", makes=way.makes)
        if not name or self._nowhere.get(key, 0.0) > time.monotonic():
            return anywhere
        try:
            node = await self._node(caller, name)
        except NodeUnreachable:
            if await self._templates.has_place(caller, name):
                raise
            return anywhere  # most likely the operator's; every call of E2B's clients names one
        if node:
            return way._replace(kind="object", node=node, thing=TEMPLATE, name=name)
        self._nowhere[key] = time.monotonic() + _NOWHERE_S
        if len(self._nowhere) > _MOST:
            self._nowhere.popitem(last=False)
        return anywhere

    async def _node(self, caller: Caller, name: str) -> str:
        """Return the node that has a template or a snapshot of a name; empty: none has."""
        with contextlib.suppress(NotFound, UsageError):
            return (await self._templates.node_of(caller, stem_of(name))).name
        with contextlib.suppress(NotFound):
            return (await node_with(self._book, name, caller.said)).name
        return ""


def _named(way: Way, body: bytes) -> str:
    """Return the name in the path, or in the first of the fields that the way names."""
    if way.name:
        return way.name
    try:
        found = object_of(body)
    except ValueError:
        return ""  # a node says what is wrong with it
    values = (found.get(field) for field in way.path.split())
    return next((each for each in values if isinstance(each, str) and each), "")
