"""Probes: each node is asked again and again whether it is there, and is told that it was heard.

A node fences itself when its answers reach no gateway, not when it hears none: what is cut off in
one direction must end, too. So each probe says back the clock of the last answer that arrived. The
invariant: a node that is declared lost here had no answer heard for longer than its fence.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from cellwall.cluster.gateway.book import Size, Told
from cellwall.cluster.gateway.wire.asking import ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.cluster.gateway.book import Book, Node

_PATH = b"/node"
_BEAT = b"cellwall-beat"
_GATEWAY = b"cellwall-gateway"
_LOST = b"cellwall-lost"
_GRANTS = b"cellwall-grants"
"""Says that costs are granted: gateways count them over all nodes."""
_log = logging.getLogger("cellwall.gateway")


async def watch(book: Book, node: Node, every_s: float, on_lost: Callable[[Node], None]) -> None:
    """Ask one node until it is over; `on_lost` is called when it is lost."""
    loop = asyncio.get_running_loop()
    while not node.is_over:
        began_s, before = loop.time(), node.state
        try:
            async with asyncio.timeout(every_s):
                told = await _asked(book, node)
            book.answered(node, told, loop.time())
        except Exception as error:  # noqa: BLE001 - whatever a node says, it is probed again
            why = str(error) or f"no answer within {every_s:g} s"
            if book.missed(node, why, loop.time()):
                on_lost(node)
        if node.state != before:
            _log.warning(
                "node %s at %s: %s, was %s%s",
                node.name or "without a name",
                node.links.address,
                node.state,
                before,
                f": {node.why}" if node.why else "",
            )
        node.turn()
        await asyncio.sleep(max(0.0, began_s + every_s - loop.time()))


async def _asked(book: Book, node: Node) -> Told:
    """Ask once. Raises OSError, and the errors of an answer that is none."""
    beat = book.beat(node)
    said = [(_GATEWAY, book.gateway.encode())]
    if book.grants:
        said.append((_GRANTS, b"1"))
    if beat:
        said.append((_BEAT, beat.encode()))
    if node.used_up:
        said.append((_LOST, node.used_up.encode()))
    answer = await ask(node.links, _PATH, said)
    if answer.status != 200:
        raise ConnectionError(f"it answers {answer.status}")
    facts = json.loads(answer.body)
    return Told(
        str(facts["name"]),
        str(facts["generation"]),
        facts["state"] == "draining",
        str(facts["beat"]),
        float(facts["fence_s"]),
        _size(facts),
    )


def _size(facts: dict[str, Any]) -> Size:
    """Return how large a node is; an older one does not say all of it."""
    port = facts.get("metrics_port")
    return Size(
        max(1, int(facts.get("cores", 1))),
        int(facts.get("sandboxes", 0)),
        int(facts.get("most_sandboxes", 0)),
        sum(map(int, facts.get("left", {}).values())),
        None if port is None else int(port),
    )
