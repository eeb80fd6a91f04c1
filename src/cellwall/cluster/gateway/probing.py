"""Probes: each node is asked again and again whether it is there, and is told that it was heard.

A node fences itself when its answers reach no gateway, not when it hears none: what is cut off in
one direction must end, too. So each probe says back the clock of the last answer that arrived. The
invariant: a node that is declared lost here had no answer heard for longer than its fence.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.book import Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.heads import ResponseHead
    from cellwall.cluster.gateway.node_link import NodeLink

PATH = "/node"
BEAT = "cellwall-beat"
_MOST_BYTES = 64 * 1024


async def watch(
    book: Book, node: Node, every_s: float, on_lost: Callable[[Node, str], None]
) -> None:
    """Ask one node for ever; `on_lost` is called with a node and the name that it had."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        try:
            async with asyncio.timeout(every_s):
                told = await _asked(node)
            book.answered(node, told, loop.time())
        except (OSError, ValueError, KeyError, TypeError) as error:  # TimeoutError is an OSError
            name = node.name
            why = str(error) or f"no answer within {every_s:g} s"
            if book.missed(node, why, loop.time()):
                on_lost(node, name)
        await asyncio.sleep(max(0.0, began_s + every_s - loop.time()))


async def _asked(node: Node) -> Told:
    """Ask once. Raises OSError, and the errors of an answer that is none."""
    link = await node.links.take()
    answer = _Answer()
    try:
        answer.ask(link, str(node.links.address), "" if node.told is None else node.told.beat)
        status, body = await answer.whole
    finally:
        node.links.give_back(link)
    if status != 200:
        raise ConnectionError(f"it answers {status}")
    said = json.loads(body)
    return Told(
        str(said["name"]),
        str(said["generation"]),
        said["state"] == "draining",
        frozenset(map(str, said["templates"])),
        str(said["beat"]),
    )


class _Answer:
    """The answer to one probe."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = b""

    def ask(self, link: NodeLink, host: str, beat: str) -> None:
        """Send the probe."""
        said = f"{BEAT}: {beat}\r\n" if beat else ""
        head = f"GET {PATH} HTTP/1.1\r\nhost: {host}\r\n{said}\r\n"
        link.ask(self, head.encode(), 0, has_answer_body=True)

    def on_head(self, head: ResponseHead) -> None:
        """Note the status."""
        self._status = head.status

    def on_data(self, data: bytes) -> None:
        """Gather the body."""
        self._body += data
        if len(self._body) > _MOST_BYTES:
            self._fail("its answer is too long")

    def on_end(self) -> None:
        """Have it whole."""
        if not self.whole.done():
            self.whole.set_result((self._status, self._body))

    def on_lost(self) -> None:
        """Have none."""
        self._fail("it ended the connection")

    def on_room(self) -> None:
        """Nothing waits for it."""

    def _fail(self, why: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(ConnectionError(why))
