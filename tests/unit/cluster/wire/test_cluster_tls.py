"""TLS to a node: whose certificate has to be right before a byte goes out."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from cellwall.cluster.certificates import (
    Files,
    gateway_context,
    issue_gateway,
    issue_node,
    make_authority,
    node_context,
)
from cellwall.cluster.gateway.wire import links as links_module
from cellwall.cluster.gateway.wire.heads import ResponseHead
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.cluster.gateway.wire.node_link import NodeLink

HOST = "127.0.0.1"
ASK = b"GET / HTTP/1.1\r\nhost: n\r\n\r\n"
LARGE = bytes(range(256)) * 8192
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


class _House:
    """An authority with a node's certificate and a gateway's."""

    def __init__(self, folder: Path, address: str = HOST) -> None:
        self.authority = make_authority(folder).certificate
        self.node = issue_node(folder, "node", (address,))
        self.gateway = issue_gateway(folder, "gate")


@pytest.fixture
def house(tmp_path: Path) -> _House:
    return _House(tmp_path / "authority")


class _Taken:
    """Takes one answer; it can stop taking."""

    def __init__(self, link: NodeLink) -> None:
        self.link = link
        self.body = bytearray()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.holds_after: int | None = None
        self.is_held = asyncio.Event()

    def on_head(self, head: ResponseHead) -> None:
        assert head.status == 200

    def on_data(self, data: bytes) -> None:
        assert isinstance(data, bytes)  # a view would change under whoever keeps it
        assert not self.is_held.is_set()
        self.body += data
        if self.holds_after is not None and len(self.body) >= self.holds_after:
            self.holds_after = None
            self.is_held.set()
            self.link.hold()

    def on_end(self) -> None:
        self.over.set_result("end")

    def on_lost(self) -> None:
        if not self.over.done():
            self.over.set_result("lost")

    def on_room(self) -> None:
        """Nothing waits for it."""


@contextlib.asynccontextmanager
async def _node(
    serve: Serve, context: ssl.SSLContext | None, house: _House, gateway: Files | None = None
) -> AsyncIterator[Links]:
    server = await asyncio.start_server(serve, HOST, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    made = Links(Address(HOST, port), gateway_context(house.authority, gateway or house.gateway))
    try:
        yield made
    finally:
        made.cut()
        server.close()
        for _ in range(50):  # the node's ends of the connections hear that these have ended
            await asyncio.sleep(0)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its body."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int((head.lower().partition(b"content-length: ")[2].split() or [b"0"])[0])
            body = await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + body)
            await writer.drain()
    writer.close()


def _run(work: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


async def _asked(links: Links, body: bytes, holds_after: int | None = None) -> _Taken:
    link = await links.take()
    taken = _Taken(link)
    taken.holds_after = holds_after
    head = b"POST / HTTP/1.1\r\nhost: n\r\ncontent-length: %d\r\n\r\n" % len(body)
    link.ask(taken, head, len(body), has_answer_body=True)
    link.send(body)
    link.end()
    return taken


def test_bytes_go_and_come_whole_and_the_connection_is_used_again(house: _House) -> None:
    async def body() -> None:
        context = node_context(house.authority, house.node)
        async with _node(_echo, context, house) as links:
            first: NodeLink | None = None
            for size in (1, 16_384, 16_385, len(LARGE)):
                taken = await _asked(links, LARGE[:size])
                assert await taken.over == "end"
                assert taken.body == LARGE[:size]
                first = first or taken.link
                assert taken.link is first
                links.give_back(taken.link)

    _run(body())


def test_answer_waits_while_its_client_is_slow_and_goes_on_whole(house: _House) -> None:
    async def body() -> None:
        context = node_context(house.authority, house.node)
        async with _node(_echo, context, house) as links:
            taken = await _asked(links, LARGE, holds_after=50_000)
            await taken.is_held.wait()
            held = len(taken.body)
            for _ in range(1000):  # the node could send all of it
                await asyncio.sleep(0)
            assert len(taken.body) == held < len(LARGE)
            taken.is_held.clear()
            taken.link.go_on()
            assert await taken.over == "end"
            assert taken.body == LARGE

    _run(body())


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize("wrong", ["authority", "address", "plain"])
def test_node_without_the_right_certificate_gets_no_byte_of_a_request(
    house: _House, tmp_path: Path, wrong: str
) -> None:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(4096):
                heard.extend(data)
        writer.close()

    async def body() -> None:
        of = house if wrong != "authority" else _House(tmp_path / "other")
        files = of.node
        if wrong == "address":
            files = issue_node(tmp_path / "authority", "elsewhere", ("10.9.8.7",))
        context = None if wrong == "plain" else node_context(of.authority, files)
        async with _node(listen, context, house) as links:
            with pytest.raises(OSError):  # noqa: PT011 - ssl.SSLError is one; it says what is wrong
                async with asyncio.timeout(5):
                    await links.take()
            assert ASK not in heard

    if wrong == "plain":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(links_module, "_CONNECT_S", 0.2)  # it says nothing at all
            _run(body())
        assert heard[:1] == b"\x16"  # a handshake, and nothing else
    else:
        _run(body())


def test_gateway_that_a_node_refuses_loses_its_request(house: _House, tmp_path: Path) -> None:
    async def body() -> None:
        other = _House(tmp_path / "other")
        context = node_context(house.authority, house.node)
        async with _node(_echo, context, house, gateway=other.gateway) as links:
            taken = await _asked(links, b"x")  # the refusal comes after the handshake
            assert await taken.over == "lost"

    _run(body())


def test_connection_that_ends_without_a_word_is_lost_and_not_an_end(house: _House) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()

    async def body() -> None:
        async with _node(half, node_context(house.authority, house.node), house) as links:
            taken = await _asked(links, b"")
            assert await taken.over == "lost"

    _run(body())
