"""What an operator asks of one node through a gateway: to take nothing new, or to take it again.

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
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.front import ClientLink
    from cellwall.cluster.gateway.wire.heads import RequestHead

_ORDER = re.compile(r"/nodes/([a-z2-7]{4})/(drain|undrain)")


async def order(gateway: Gateway, client: ClientLink, head: RequestHead) -> None:
    """Answer one such request."""
    request_id = gateway.request_id_of(head)
    try:
        value = await _done(gateway.book, head)
        gateway.answer(client, head, 200, value, request_id)
    except Exception as error:  # noqa: BLE001 - a defect has to be an answer, too
        gateway.refuse(client, head, error, request_id)
    client.done()


async def _done(book: Book, head: RequestHead) -> dict[str, Any]:
    found = _ORDER.fullmatch(head.path)
    if found is None or head.method != b"POST":
        raise HttpError(
            404,
            "not_found",
            "path: a gateway has nothing there",
            remedy="POST to /nodes/NAME/drain or /nodes/NAME/undrain",
        )
    name, word = found.groups()
    node = book.of(name, "node", name)
    left = await _told(node, word)
    if node.state in ("ready", "draining"):  # before the next probe says so
        node.state = "draining" if word == "drain" else "ready"
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
