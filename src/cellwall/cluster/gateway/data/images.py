"""Images through a gateway: pulled to every ready node, listed by what they are, removed from all.

A pull over several nodes is each node's own; its id is theirs together, so any gateway follows it.
The invariants: what failed at a node is said with the node's name, and a pull is `here` only if it
is at every node that was asked.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from cellwall.cluster.gateway.book import lost, none_ready, unreachable
from cellwall.cluster.gateway.data.finder import IMAGE
from cellwall.cluster.gateway.lists import of_all
from cellwall.cluster.gateway.routing import Way
from cellwall.model.errors import (
    CellwallError,
    NodeLost,
    NodeUnreachable,
    NotFound,
)
from cellwall.model.ids import node_of
from cellwall.server.core.errors import failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.data.visit import Visit
    from cellwall.cluster.gateway.wire.asking import Whole

_JOINT = "."
"""Between the ids of one pull's parts."""
_MOST_PARTS = 1000
_IN_USE = 409


class Images:
    """The images of all nodes."""

    def __init__(self, book: Book) -> None:
        """`book` knows the nodes."""
        self._book = book

    # -- what is there ---------------------------------------------------------------------

    async def index(self, visit: Visit) -> None:
        """`GET /images`: each once, with the nodes that have it."""
        parts = await of_all(self._book, visit.head.target, visit.said)
        if parts.refusal is not None:
            visit.pass_on(parts.refusal)
            return
        found = [(node, each) for node, value in parts.values() for each in value["images"]]
        value: dict[str, Any] = {"images": merged(found)}
        visit.answer(200, value | ({"incomplete": parts.missing} if parts.missing else {}))

    async def get(self, visit: Visit, image_id: str) -> None:
        """`GET /images/{id}`."""
        parts = await of_all(self._book, visit.head.target, visit.said)
        found = merged(parts.values())
        if found:
            visit.answer(200, found[0])
        elif parts.missing:
            raise unreachable(parts.missing[0])
        else:
            raise _none(image_id)

    async def remove(self, visit: Visit, image_id: str) -> None:
        """`DELETE /images/{id}`: from every node that has it."""
        parts = await self._of_each(visit, list(self._book.answering()), lambda _node: "")
        missing = [*self._book.silent(), *(node.name for node, each in parts if _is_away(each))]
        said = [(node, each) for node, each in parts if not isinstance(each, CellwallError)]
        refused = [(node, each) for node, each in said if each.status not in (200, 404)]
        gone = [node.name for node, each in said if each.status == 200]
        if refused and not gone and refused[0][1].status != _IN_USE:
            visit.pass_on(refused[0][1])  # each refuses alike
        elif refused:
            _refuse(visit, *refused[0], gone)
        elif not gone and missing:
            raise unreachable(missing[0])
        elif not gone:
            raise _none(image_id)
        else:
            value: dict[str, Any] = {"message": "removed", "id": image_id}
            visit.answer(200, value | ({"incomplete": missing} if missing else {}))

    # -- pulls -----------------------------------------------------------------------------

    async def pull(self, visit: Visit) -> None:
        """`POST /images`: by every ready node."""
        nodes = [node for node in self._book.nodes if node.state == "ready"]
        if len(nodes) == 1 and not self._book.has_several:
            await visit.go(Way("object", nodes[0].name, IMAGE))
            return
        if not nodes:
            raise none_ready()
        body = await visit.body()
        self._answer(visit, await self._of_each(visit, nodes, lambda _node: "", body))

    async def pulled(self, visit: Visit, ids: str) -> None:
        """`GET /images/pulls/{id}`."""
        each_id = {node_of(each): each for each in ids.split(_JOINT)[:_MOST_PARTS]}
        if len(each_id) == 1:
            (name, only) = next(iter(each_id.items()))
            await visit.go(Way("object", name, "pull", only))
            return
        nodes = [self._book.of(name, "pull", ids) for name in each_id if not self._is_lost(name)]
        query = visit.head.target.partition(b"?")[2].decode("latin-1")
        parts = await self._of_each(
            visit, nodes, lambda node: f"/images/pulls/{each_id[node.name]}?{query}"
        )
        for _node, each in parts:
            if isinstance(each, NodeUnreachable):
                raise each
        gone = [name for name in each_id if self._is_lost(name)]
        self._answer(visit, parts, {name: lost(name) for name in gone}, ids)

    def _is_lost(self, name: str) -> bool:
        return name in self._book.lost

    async def _of_each(
        self,
        visit: Visit,
        nodes: list[Node],
        target: Callable[[Node], str],
        body: bytes | None = None,
    ) -> list[tuple[Node, Whole | CellwallError]]:
        """Ask nodes for the same, or for `target`; return what each says, or why it does not."""

        async def one(node: Node) -> Whole | CellwallError:
            try:
                return await visit.call(node, body, target(node))
            except NodeUnreachable as error:
                return error

        answers = await asyncio.gather(*(one(node) for node in nodes))
        return list(zip(nodes, answers, strict=True))

    def _answer(
        self,
        visit: Visit,
        parts: list[tuple[Node, Whole | CellwallError]],
        gone: dict[str, NodeLost] | None = None,
        ids: str = "",
    ) -> None:
        """Answer with one pull of what nodes say; each one's refusal if none has begun."""
        pulls: list[tuple[str, dict[str, Any]]] = []
        refusal: Whole | None = None
        for node, each in parts:
            if isinstance(each, CellwallError):
                pulls.append((node.name, _failed(failure(each, visit.request_id))))
            elif each.status in (200, 202):
                pulls.append((node.name, json.loads(each.body)))
            else:
                refusal = each
                pulls.append((node.name, _failed(json.loads(each.body)["error"])))
        if refusal is not None and not any(pull["id"] for _name, pull in pulls):
            visit.pass_on(refusal)
            return
        for name, error in (gone or {}).items():
            pulls.append((name, _failed(failure(error, visit.request_id))))
        made = joined(pulls, ids)
        status = 202 if made["status"] == "coming" and visit.head.method == b"POST" else 200
        visit.answer(status, made, {"location": f"/images/pulls/{made['id']}"} if not ids else {})


def merged(found: list[tuple[Node, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return images once each, the newest first, with the names of the nodes that have them."""
    images: dict[str, dict[str, Any]] = {}
    for node, each in found:
        known = images.setdefault(each["id"], {**each, "nodes": []})
        known["nodes"].append(node.name)
        known["names"] = list(dict.fromkeys([*known["names"], *each["names"]]))
        known["used_at"] = max(known["used_at"], each["used_at"])
        known["unpacked_at"] = max(known["unpacked_at"], each["unpacked_at"])
    return sorted(images.values(), key=lambda each: str(each["unpacked_at"]), reverse=True)


def joined(pulls: list[tuple[str, dict[str, Any]]], ids: str = "") -> dict[str, Any]:
    """Return pulls of one image by several nodes as one; `ids`: the id that it has."""
    parts = [pull for _name, pull in pulls]
    states = {pull["status"] for pull in parts}
    status = next(each for each in ("coming", "failed", "here") if each in states)
    if any(not pull["id"] for pull in parts):
        status = "failed"  # a node has begun none, which its id could not say later
    begun = next((pull for pull in parts if pull["name"]), parts[0])
    error = next((pull["error"] for pull in parts if pull["error"] is not None), None)
    return {
        "id": ids or _JOINT.join(pull["id"] for pull in parts if pull["id"]),
        "name": begun["name"],
        "status": status,
        "come_bytes": sum(pull["come_bytes"] for pull in parts),
        "all_bytes": _sum([pull["all_bytes"] for pull in parts]),
        "image": next((pull["image"] for pull in parts if pull["image"]), None),
        "error": error if status == "failed" else None,
        "nodes": [
            {"node": name, "status": pull["status"], "error": pull["error"]} for name, pull in pulls
        ],
    }


def _sum(sizes: list[int | None]) -> int | None:
    known = [each for each in sizes if each]
    return sum(known) or None


def _failed(error: dict[str, Any]) -> dict[str, Any]:
    """Return what stands for the pull of a node that has none."""
    none = {"id": "", "name": "", "come_bytes": 0, "all_bytes": None, "image": None}
    return {**none, "status": "failed", "error": error}


def _is_away(answer: Whole | CellwallError) -> bool:
    return isinstance(answer, CellwallError)


def _refuse(visit: Visit, node: Node, answer: Whole, gone: list[str]) -> None:
    """Answer with a node's refusal to remove an image, and say where it is gone."""
    value = json.loads(answer.body)
    error = value["error"]
    also = f"; it is gone from {', '.join(gone)}" if gone else ""
    error["message"] = f"node {node.name}: {error['message']}{also}"
    visit.answer(answer.status, value)


def _none(image_id: str) -> NotFound:
    return NotFound(f"image {image_id[:80]}: there is none", remedy="GET /images lists them")
