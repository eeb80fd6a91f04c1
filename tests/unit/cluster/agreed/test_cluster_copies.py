"""Places for copies in a tenant's quota: kept where the node does not say what it has made."""

from __future__ import annotations

import asyncio
import json

import pytest

from cellwall.cluster.directory.sums import Row, Sums
from cellwall.cluster.gateway.agreed.quotas import Quotas
from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.engine.scheduling import quotas
from cellwall.model.errors import QuotaExceeded

HOST = "127.0.0.1"


class _Rows(Sums):
    """What is counted, without a directory."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    async def reserve(self, tenant: str, sandbox_id: str, node: str, most: int) -> bool:
        if len(self.rows) >= most:
            return False
        self.rows[sandbox_id] = node
        return True

    async def adopt(self, tenant: str, sandbox_id: str, node: str) -> None:
        self.rows[sandbox_id] = node

    async def give_back(self, tenant: str, sandbox_id: str) -> None:
        self.rows.pop(sandbox_id, None)

    async def of(self, tenant: str) -> list[Row]:
        return [Row(each, node, 0.0) for each, node in self.rows.items()]


async def _counted(asked: str, made: list[str], *, is_there: bool) -> list[str]:
    """Return the nodes of what is counted after a fork by two at a node that has made some."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"sandboxes": [{"id": each} for each in made], "next": None}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        if not is_there:
            server.close()
        node = Node(Links(Address(HOST, port), None))
        book = Book(13.0, [node])
        book.answered(node, Told("aaaa", "g", False, "1", 10.0), 0.0)
        rows = _Rows()
        tenants = quotas.Tenants({"default": quotas.Quotas(sandboxes=4)}, {})
        held = Quotas(rows, tenants, book).copies("t", "fork", b'{"count": 2}', lambda: asked)
        async with held:
            assert len(rows.rows) == 2
        node.links.cut()
        return sorted(rows.rows.values())


@pytest.mark.parametrize(
    ("asked", "is_there", "expected"),
    [
        ("aaaa", True, ["aaaa", "aaaa"]),  # it has made them, and they count themselves
        ("aaaa", False, ["", ""]),  # it may have made them
        ("", False, []),  # none was asked
    ],
)
def test_places_of_copies_stay_until_their_node_has_said_what_it_has(
    asked: str, is_there: bool, expected: list[str]
) -> None:
    made = ["aaaa" + letter * 26 for letter in "bc"]
    assert asyncio.run(_counted(asked, made, is_there=is_there)) == expected


def test_fork_beyond_the_quota_leaves_no_place_behind() -> None:
    async def run() -> None:
        rows = _Rows()
        tenants = quotas.Tenants({"default": quotas.Quotas(sandboxes=1)}, {})
        held = Quotas(rows, tenants, Book(13.0)).copies("t", "fork", b'{"count": 2}', str)
        with pytest.raises(QuotaExceeded):
            async with held:
                raise AssertionError
        assert not rows.rows

    asyncio.run(run())
