"""What an operator asks of nodes through a gateway: to take nothing new, or again; their metrics.

Begun by `gateway`, which has checked that the key is an operator's. The node decides, and says what
is left on it; every gateway hears of it by its next probe.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from cellwall.cluster.gateway.wire.asking import answer_on
from cellwall.model.errors import NodeUnreachable
from cellwall.server.core.errors import HttpError
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead

_ORDER = re.compile(r"/nodes/([a-z2-7]{4})/(drain|undrain)")


_TARGETS = "/nodes/http_sd"


async def order(
    gateway: Gateway, client: ClientLink, head: RequestHead, caller: Caller | None
) -> None:
    """Answer one such request; it is in the audit before the node hears it."""
    request_id = gateway.request_id_of(head)
    try:
        if head.path == _TARGETS:
            gateway.answer(client, head, 200, _targets(gateway.book), request_id)
        else:
            name, word = _named(head)
            if gateway.trail is not None:
                await gateway.trail.ordered(caller, client.peer, word, name)
            value = await _done(gateway.book, name, word)
            gateway.answer(client, head, 200, value, request_id)
    except Exception as error:  # noqa: BLE001 - a defect has to be an answer, too
        gateway.refuse(client, head, error, request_id)
    client.done()


def _targets(book: Book) -> list[dict[str, Any]]:
    """Return where the nodes' metrics are, in the form of Prometheus' http_sd.

    https://prometheus.io/docs/prometheus/latest/http_sd/
    """
    found = []
    for node in book.nodes:
        port = None if node.told is None else node.told.size.metrics_port
        if port:
            address = str(node.links.address._replace(port=port))
            found.append({"targets": [address], "labels": {"node": node.name}})
    return found


def _named(head: RequestHead) -> tuple[str, str]:
    """Return the node's name and the word of an order. Raises HttpError."""
    found = _ORDER.fullmatch(head.path)
    if found is None or head.method != b"POST":
        raise HttpError(
            404,
            "not_found",
            "path: a gateway has nothing there",
            remedy="POST to /nodes/NAME/drain or /nodes/NAME/undrain",
        )
    return found[1], found[2]


async def _done(book: Book, name: str, word: str) -> dict[str, Any]:
    node = book.of(name, "node", name)
    left = await _told(node, word)
    if node.state in ("ready", "draining"):  # before the next probe says so
        is_ready = word == "undrain" and book.may_have_new(name)
        node.state = "ready" if is_ready else "draining"
        node.mark(is_listed=node.is_listed)
        book.on_change()
    return {"name": name, "state": node.state, "left": left}


async def _told(node: Node, word: str) -> dict[str, int]:
    """Ask the node; return what is left on it. Raises NodeUnreachable, and what it refuses with."""
    try:
        link = await node.links.take()
        try:
            answer = await answer_on(link, node.links.address, f"/node/{word}".encode(), [], b"")
        finally:
            node.links.give_back(link)
    except OSError as error:
        raise NodeUnreachable(
            f"node {node.name}: {word}: {error.strerror or error}",
            retry_after_s=1.0,
            remedy="try again; it harms nothing",
        ) from None
    value = json.loads(answer.body)
    if answer.status != 200:
        raise error_of(value["error"], answer.status)
    return dict(value)
