"""Lists of E2B's clients over several nodes: arrays, the newest first.

The invariant: what cannot be a whole list is refused; a client could not see what is missing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from cellwall.cluster.gateway.book import unreachable
from cellwall.cluster.gateway.lists import of_all, waits_of
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.cluster.gateway.book import Book
    from cellwall.cluster.gateway.wire.heads import Headers

_LIMIT = 100
_MORE = b"x-next-token"
_MOMENTS, _IDS = ("startedAt", "createdAt"), ("sandboxID", "snapshotID")
"""Fields of what is listed: when it was made, and its id; of sandboxes, and of snapshots."""


class Array(NamedTuple):
    """The answer to a request for a list."""

    status: int
    value: dict[str, Any] | list[Any]
    more: Mapping[str, str] = {}
    """Headers of a refusal."""


async def array(book: Book, _path: str, target: bytes, said: Headers) -> Array:
    """Return the array over all nodes that have objects.

    Raises NodeUnreachable if one does not answer, CapacityError if there is none at all, HttpError
    if the list has more than one page.
    """
    parts = await of_all(book, target, said)
    for name in parts.missing:
        raise unreachable(name)
    refusal, whole = parts.refusal, [part for _node, part in parts.found]
    if refusal is not None:
        return Array(refusal.status, json.loads(refusal.body), waits_of(refusal))
    found: list[dict[str, Any]] = [each for part in whole for each in json.loads(part.body)]
    if target.partition(b"?")[0].endswith(b"/templates"):
        return Array(200, [*{each["templateID"]: each for each in found}.values()])
    query = parse_qs(target.partition(b"?")[2].decode("latin-1"))
    has_more = any(key == _MORE for part in whole for key, _ in part.headers)
    if has_more or len(found) > int(query.get("limit", [str(_LIMIT)])[-1]):
        raise HttpError(
            501,
            "host_unsupported",
            "list: it has more than one page, which a gateway does not make of several nodes",
            remedy="ask for more at once, by limit, or list them by our own API",
        )
    is_rising = query.get("order", ["desc"])[-1] == "asc"
    found.sort(key=lambda each: (_first(each, _MOMENTS), _first(each, _IDS)), reverse=not is_rising)
    return Array(200, found)


def _first(entry: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(entry[name]) for name in names if name in entry), "")
