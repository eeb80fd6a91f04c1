"""Where a request is led that names what only some nodes have: a volume, a template, an image.

A node that lacks it refuses before anything begins, and says what it lacks
(`server.core.errors`); the request then goes to the node that has it. Used by `exchange` and
`errand`, once for each such refusal. An image may be on several nodes: from one that
has it a request is led on to its volume, whose node then says whether it has the image, too. The
invariants: else where a request is led it stays, with that node's answer; two things on two nodes
are a refusal, and never a request that lacks one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.data.finder import IMAGE, VOLUME
from cellwall.model.errors import Conflict, NotFound

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.finder import Finder

_FORM = re.compile(r"(volume|template|image):([A-Za-z0-9][A-Za-z0-9._:-]{0,199})")
_MOST = 8
"""More than a request names of such things."""


class Lead:
    """The lead of one request."""

    def __init__(self, finder: Finder, caller: Caller) -> None:
        self._finder = finder
        self._caller = caller
        self._thing = ""
        self._left = _MOST
        self.node: Node | None = None
        """The node to which it is led."""

    async def take(self, lacked: str) -> Node | None:
        """Take what a node lacks; return the node to ask; None: no node has it.

        SECURITY: a node says it, and other nodes are asked for it in the caller's name.
        Raises Conflict if it was led to this node for another thing, NodeLost, NodeUnreachable.
        """
        self._left -= 1
        if lacked == self._thing or not self._left:
            return None  # it was there a moment ago
        said = _FORM.fullmatch(lacked)
        if said is None:
            return None
        kind, name = said.groups()
        try:
            node = await self._finder.node_of(self._caller, kind, name)
        except NotFound:
            return None
        is_by_image = self._thing.startswith(f"{IMAGE}:") and kind == VOLUME
        if self.node is not None and node is not self.node and not is_by_image:
            raise Conflict(
                f"{_shown(self._thing)} and {_shown(lacked)} are on different nodes",
                remedy="name one of them; a copy of a volume lies beside its source, and what "
                "belongs together is best in one volume",
            )
        self._thing, self.node = lacked, node
        return node


def _shown(thing: str) -> str:
    kind, _, name = thing.partition(":")
    return f"{kind} {name[:80]}"
