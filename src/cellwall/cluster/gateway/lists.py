"""Lists over all nodes: each node's part is asked for, and they are one list again.

The invariant: a list that lacks a node's part says so, in `incomplete`, with the node's name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from cellwall.cluster.gateway.book import unreachable
from cellwall.cluster.gateway.wire.asking import ask
from cellwall.model.errors import CapacityError, NodeUnreachable

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.wire.asking import Whole
    from cellwall.cluster.gateway.wire.heads import Headers

_PART_S = 5.0
"""Longest time for one node's part."""
_LIMIT = 100
"""`limit` of a list where a request names none."""


class Listed(NamedTuple):
    """The answer to a request for a list."""

    status: int
    value: Mapping[str, Any]
    more: Mapping[str, str] = {}
    """Headers of a refusal."""


class Parts(NamedTuple):
    """What all nodes say to one question."""

    found: list[tuple[Node, Whole]]
    missing: list[str]
    """Names of nodes that have objects and did not answer."""

    def values(self) -> list[tuple[Node, dict[str, Any]]]:
        """Return what those say that have an answer."""
        return [(node, json.loads(each.body)) for node, each in self.found if each.status == 200]

    @property
    def refusal(self) -> Whole | None:
        """A refusal among the answers, if there is one; each node refuses alike."""
        return next((each for _node, each in self.found if each.status != 200), None)


async def of_all(book: Book, target: bytes, said: Headers) -> Parts:
    """Ask every node that answers now. Raises CapacityError if there is none at all."""
    nodes, missing = list(book.answering()), book.silent()
    if not nodes and not missing:
        raise CapacityError(
            "nodes: none of them answers now", retry_after_s=1.0, remedy="try again in a moment"
        )
    answers = await asyncio.gather(
        *(part_of(node, target, said) for node in nodes), return_exceptions=True
    )
    found = []
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, NodeUnreachable):
            missing.append(node.name)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append((node, answer))
    return Parts(found, missing)


async def part_of(node: Node, target: bytes, said: Headers) -> Whole:
    """Return what one node says. Raises NodeUnreachable if it says nothing in time."""
    try:
        async with asyncio.timeout(_PART_S):
            return await ask(node.links, target, said)
    except OSError:  # TimeoutError is one
        raise unreachable(node.name) from None


async def listed(book: Book, path: str, target: bytes, said: Headers) -> Listed:
    """Return the list at `path` over all nodes that have objects. Raises CapacityError."""
    parts = await of_all(book, target, said)
    if parts.refusal is not None:
        return Listed(parts.refusal.status, json.loads(parts.refusal.body), waits_of(parts.refusal))
    value = _MERGES[path]([each for _node, each in parts.values()], target)
    return Listed(200, {**value, "incomplete": parts.missing} if parts.missing else value)


def waits_of(part: Whole) -> dict[str, str]:
    """Return the header of a refusal that says when to come back, if it has one."""
    said = dict(part.headers).get(b"retry-after")
    return {} if said is None else {"retry-after": said.decode("latin-1")}


def _sandboxes(parts: list[Mapping[str, Any]], target: bytes) -> dict[str, Any]:
    """Merge pages, the newest first; the cursor of `next` is the same on every node."""
    query = parse_qs(target.partition(b"?")[2].decode("latin-1"))
    limit = int(query.get("limit", [str(_LIMIT)])[-1])
    found = [each for part in parts for each in part["sandboxes"]]
    found.sort(key=lambda each: (each["created_at"], each["id"]), reverse=True)
    page = found[:limit]
    has_more = len(found) > limit or any(part["next"] is not None for part in parts)
    more = f"{page[-1]['created_at']}~{page[-1]['id']}" if has_more and page else None
    return {"sandboxes": page, "next": more}


def _snapshots(parts: list[Mapping[str, Any]], _target: bytes) -> dict[str, Any]:
    found = [each for part in parts for each in part["snapshots"]]
    return {"snapshots": sorted(found, key=lambda each: (each["created_at"], each["id"]))}


def _stats(parts: list[Mapping[str, Any]], _target: bytes) -> dict[str, Any]:
    """Add the numbers of all nodes; the time that they run is the shortest."""
    if not parts:
        return {}
    uptime_s = min(part["uptime_s"] for part in parts)
    found: dict[str, Any] = _added([dict(part) for part in parts])
    return {**found, "uptime_s": uptime_s}


def _quota(parts: list[Mapping[str, Any]], _target: bytes) -> dict[str, Any]:
    """Add what of a tenant's quotas is in use; each node holds them for itself."""
    if not parts:
        return {}
    return {**parts[0], "use": _added([part["use"] for part in parts])}


def _added(values: list[Any]) -> Any:  # noqa: ANN401 - of JSON
    """Add numbers, and dictionaries by their keys; of what cannot be added the first is taken."""
    first = values[0]
    if isinstance(first, dict):
        alike = [each for each in values if isinstance(each, dict)]
        keys = list(dict.fromkeys(key for each in alike for key in each))
        return {key: _added([each[key] for each in alike if key in each]) for key in keys}
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        return first
    return sum(each for each in values if isinstance(each, (int, float)))


_MERGES: Mapping[str, Callable[[list[Mapping[str, Any]], bytes], dict[str, Any]]] = {
    "/sandboxes": _sandboxes,
    "/snapshots": _snapshots,
    "/stats": _stats,
    "/quota": _quota,
}
