"""What a gateway tells of a request whose connection broke, by what the node says afterwards."""

from __future__ import annotations

import asyncio
import json

import pytest

from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.doubt import Doubt
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.cluster.node.offers import goes_on
from cellwall.model.errors import CellwallError, Interrupted, NodeUnreachable
from kit.stores import execution

HOST = "127.0.0.1"


def _told(generation: str) -> Told:
    return Told("aaaa", generation, False, "1", 10.0)


async def _ended(said: dict[str, bool], generation: str) -> CellwallError:
    """Return the end of a request of which a node of another run, or the same, says that."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(said).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        node = Node(Links(Address(HOST, server.sockets[0].getsockname()[1]), None))
        book = Book(13.0, [node])
        book.answered(node, _told("g1"), 0.0)
        doubt = Doubt(book, node)
        book.answered(node, _told(generation), 1.0)
        assert await doubt.has_begun("aaaa" + "x" * 26, [], 0.0)
        node.links.cut()
        return doubt.broken()


@pytest.mark.parametrize(
    ("said", "generation", "kind", "words"),
    [
        ({"has_begun": True, "goes_on": False}, "g2", Interrupted, "its server ended during"),
        ({"has_begun": True, "goes_on": True}, "g2", NodeUnreachable, "it goes on there"),
        ({"has_begun": True}, "g2", Interrupted, "its server ended during"),  # an older node
        ({"has_begun": True, "goes_on": True}, "g1", NodeUnreachable, "is not known"),
    ],
)
def test_what_goes_on_after_a_restart_is_never_called_interrupted(
    said: dict[str, bool], generation: str, kind: type[CellwallError], words: str
) -> None:
    error = asyncio.run(_ended(said, generation))
    assert type(error) is kind
    assert words in error.message


def test_node_knows_what_goes_on_from_its_store() -> None:
    assert not goes_on(None)
    assert goes_on(execution(1))  # it waits
    assert goes_on(execution(1, state="running", body=None))  # of this server: others' have ended
    for verdict, expected in (("ok", True), ("interrupted", False), ("cancelled", False)):
        row = execution(1, state="ended", body=None, answer={"verdict": verdict})
        assert goes_on(row) is expected
