"""A small question to one node, whose whole answer is taken: a probe, a list, an id."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import CellwallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.cluster.gateway.wire.heads import Headers, ResponseHead
    from cellwall.cluster.gateway.wire.links import Address, Links
    from cellwall.cluster.gateway.wire.node_link import NodeLink

_MOST_BYTES = 16 << 20
_TARGET = re.compile(rb"/[!-~]*")
_BREAKS = re.compile(rb"[\x00\r\n]")


class Whole(NamedTuple):
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


async def ask(links: Links, target: bytes, said: Headers) -> Whole:
    """Ask a node with GET. Raises OSError if there is no whole answer."""
    link = await links.take()
    try:
        return await answer_on(link, links.address, target, said)
    finally:
        links.give_back(link)


def _uncounted(_size: int) -> None:
    """Count nothing: the answer is small."""


async def answer_on(  # noqa: PLR0913 - parts of one request
    link: NodeLink,
    address: Address,
    target: bytes,
    said: Headers,
    body: bytes | None = None,
    count: Callable[[int], None] = _uncounted,
    *,
    method: bytes = b"",
) -> Whole:
    """Ask on a connection, by itself with POST if there is a body, and else with GET.

    `count` hears of each piece of the answer's body, in bytes, before it is kept; what it raises
    of ours ends the answer. Raises ConnectionError if the connection ends, and ValueError for a
    target or a header that would be more than one line: names that callers give are in both.
    """
    if not _TARGET.fullmatch(target) or any(_BREAKS.search(b"".join(each)) for each in said):
        raise ValueError(f"ask {address}: {target[:80]!r} and its headers are not one line each")
    answer = _Answer(count)
    method = method or (b"GET" if body is None else b"POST")
    lines = [b"%s %s HTTP/1.1\r\n" % (method, target)]
    lines.append(b"host: %s\r\n" % str(address).encode())
    lines += [b"%s: %s\r\n" % each for each in said]
    if body is not None:
        lines.append(b"content-length: %d\r\n" % len(body))
    lines += [b"\r\n", body or b""]
    link.ask(answer, b"".join(lines), 0, has_answer_body=True)
    return await answer.whole


class _Answer:
    """Gathers one answer."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self.whole: asyncio.Future[Whole] = asyncio.get_running_loop().create_future()
        self._count = count
        self._status = 0
        self._headers: Headers = []
        self._body = bytearray()

    def on_head(self, head: ResponseHead) -> None:
        """Note status and headers."""
        self._status, self._headers = head.status, head.headers

    def on_data(self, data: bytes) -> None:
        """Gather the body."""
        if self.whole.done():
            return
        if len(self._body) + len(data) > _MOST_BYTES:
            self._fail(ConnectionError("its answer is too long"))
            return
        try:
            self._count(len(data))
        except CellwallError as error:
            self._fail(error)
        else:
            self._body += data

    def on_end(self) -> None:
        """Have it whole."""
        if not self.whole.done():
            self.whole.set_result(Whole(self._status, self._headers, bytes(self._body)))

    def on_lost(self) -> None:
        """Have none."""
        self._fail(ConnectionError("it ended the connection"))

    def on_room(self) -> None:
        """Nothing waits for it."""

    def _fail(self, error: Exception) -> None:
        self._body.clear()
        if not self.whole.done():
            self.whole.set_exception(error)
