"""Nodes that answer from a table: for what a gateway makes of several answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.callers import Caller, said_of
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.server.auth.keys import Principal

Table = Mapping[str, Any]
"""What is at each path, or a function that returns it for a body; anything else is 404."""
_HOST = "127.0.0.1"


def caller(tenant: str = "alice") -> Caller:
    """Return a caller as a gateway knows it."""
    principal = Principal(tenant, "key", "manage")
    return Caller(principal, said_of(principal, ""), frozenset())


@contextlib.asynccontextmanager
async def nodes(tables: Mapping[str, Table]) -> AsyncIterator[Book]:
    """Give a book of nodes that are ready, by name."""
    book, ended = Book(13.0), list[asyncio.Task[None]]()
    async with contextlib.AsyncExitStack() as stack:
        for name, table in tables.items():
            server = await asyncio.start_server(_serving(table, ended), _HOST, 0)
            stack.push_async_callback(_closed, server)
            port = server.sockets[0].getsockname()[1]
            node = Node(Links(Address(_HOST, port), None))
            book.nodes.append(node)
            book.answered(node, Told(name, "g", False, "1", 10.0), 0.0)
        try:
            yield book
        finally:
            for node in book.nodes:
                node.links.cut()
            await asyncio.gather(*ended)


async def _closed(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()


def _serving(table: Table, ended: list[asyncio.Task[None]]) -> Any:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                sent = await reader.readexactly(int(size[1]) if size else 0)
                value = table.get(head.split(b" ")[1].decode())
                value = value(sent) if callable(value) else value
                body = json.dumps(value if value is not None else {"error": {}}).encode()
                status = b"404 Not Found" if value is None else b"200 OK"
                writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
                writer.write(body)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.get_running_loop().create_task(answer(reader, writer)))

    return serve
