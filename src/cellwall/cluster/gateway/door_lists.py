"""Lists of E2B's clients over several nodes: arrays, the newest first.

The invariant: what cannot be a whole list is refused; a client could not see what is missing.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from cellwall.cluster.gateway.book import unreachable
from cellwall.cluster.gateway.lists import waits_of
from cellwall.cluster.gateway.wire.asking import ask
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.wire.asking import Whole
    from cellwall.cluster.gateway.wire.heads import Headers

_PART_S = 5.0
_LIMIT = 100
_MORE = b"x-next-token"
_MOMENT, _ID = "startedAt", "sandboxID"


class Array(NamedTuple):
    """The answer to a request for a list."""

    status: int
    value: dict[str, Any] | list[Any]
    more: Mapping[str, str] = {}
    """Headers of a refusal."""


async def array(book: Book, _path: str, target: bytes, said: Headers) -> Array:
    """Return the array over all nodes that have objects.

    Raises NodeUnreachable if one does not answer, HttpError if the list has more than one page.
    """
    for name in book.silent():
        raise unreachable(name)
    parts = await asyncio.gather(*(_part(each, target, said) for each in book.answering()))
    for part in parts:
        if part.status != 200:
            return Array(part.status, json.loads(part.body), waits_of(part))  # each alike
    found: list[dict[str, Any]] = [each for part in parts for each in json.loads(part.body)]
    query = parse_qs(target.partition(b"?")[2].decode("latin-1"))
    has_more = any(key == _MORE for part in parts for key, _ in part.headers)
    if has_more or len(found) > int(query.get("limit", [str(_LIMIT)])[-1]):
        raise HttpError(
            501,
            "host_unsupported",
            "list: it has more than one page, which a gateway does not make of several nodes",
            remedy="ask for more at once, by limit, or list them by GET /sandboxes",
        )
    is_rising = query.get("order", ["desc"])[-1] == "asc"
    found.sort(key=lambda each: (each.get(_MOMENT, ""), each.get(_ID, "")), reverse=not is_rising)
    return Array(200, found)


async def _part(node: Node, target: bytes, said: Headers) -> Whole:
    """Return a node's part. Raises NodeUnreachable."""
    try:
        async with asyncio.timeout(_PART_S):
            return await ask(node.links, target, said)
    except OSError:  # TimeoutError is one
        raise unreachable(node.name) from None
