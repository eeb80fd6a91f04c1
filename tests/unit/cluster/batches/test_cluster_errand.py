"""One program of many at a node: what is counted at the node is given back however it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from cellwall.cluster.gateway import errand
from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.cluster.gateway.wire.node_link import NodeLink
from cellwall.cluster.gateway.work.turns import Turns
from cellwall.model.errors import CapacityError, NodeUnreachable


class _Connecting(Links):
    """Links to a node whose connection comes as `come` says."""

    def __init__(self, come: Callable[[], Awaitable[object]]) -> None:
        super().__init__(Address("127.0.0.1", 1), None)
        self._come = come
        self.asked = asyncio.Event()

    async def take(self) -> NodeLink:
        self.asked.set()
        await self._come()
        raise ConnectionRefusedError


async def _lend(_node: Node, _offered: str, _refusal: bytes, _program: bytes) -> None:
    """Give nothing."""


_ALONE = errand.Aid(lambda _size: None, _lend, lambda: None)


def _book(links: Links) -> Book:
    made = Book(13.0, [Node(links)])
    made.answered(made.nodes[0], Told("aaaa", "g", False, "1", 10.0), 0.0)
    return made


def test_node_has_nothing_of_a_client_that_left_while_it_was_connected_to() -> None:
    async def body() -> None:
        links = _Connecting(asyncio.Event().wait)
        book = _book(links)
        turn = Turns({}, {}, 100).ask("alice")
        running = asyncio.ensure_future(errand.run(book, [], b"{}", turn, _ALONE))
        await links.asked.wait()
        assert book.nodes[0].in_flight == 1
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert book.nodes[0].in_flight == 0

    asyncio.run(body())


def test_node_that_takes_no_connection_has_nothing() -> None:
    async def body() -> None:
        book = _book(_Connecting(lambda: asyncio.sleep(0)))
        turn = Turns({}, {}, 100).ask("alice")
        with pytest.raises(CapacityError):
            await errand.run(book, [], b"{}", turn, _ALONE)
        assert book.nodes[0].in_flight == 0

    asyncio.run(body())


def test_program_whose_node_takes_no_secrets_has_begun_nowhere_and_may_be_sent_again() -> None:
    async def lend(_node: Node, _offered: str, _refusal: bytes, _program: bytes) -> None:
        raise NodeUnreachable("node aaaa: secrets: away", retry_after_s=1.0)

    async def body() -> None:
        serving: list[asyncio.Task[None] | None] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(asyncio.current_task())
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await reader.readuntil(b"\r\n\r\n{}")
                    writer.write(b"HTTP/1.1 428 X\r\ncontent-length: 2\r\n\r\n{}")
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        made = await asyncio.start_server(serve, "127.0.0.1", 0)
        links = Links(Address("127.0.0.1", made.sockets[0].getsockname()[1]), None)
        book, ends = _book(links), list[str]()
        book.on_try = ends.append
        turn = Turns({}, {}, 100).ask("alice")
        aid = errand.Aid(lambda _size: None, lend, lambda: None)
        try:
            with pytest.raises(CapacityError) as raised:
                await errand.run(book, [], b"{}", turn, aid)
        finally:
            turn.leave()
            links.cut()
            made.close()
            await asyncio.gather(*(each for each in serving if each is not None))
        assert not isinstance(raised.value, NodeUnreachable)
        assert set(ends) == {"needs"}

    asyncio.run(body())
