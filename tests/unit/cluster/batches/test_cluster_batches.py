"""Batches at a gateway whose reader is slow, or leaves: what they hold, and what they give back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from cellwall.cluster.gateway.book import Book, Node, Size, Told
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.wire.front import ClientLink
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of
from cellwall.server.core.settings import ServerSettings

ALICE, BOB = "a" * 43, "b" * 43
KEYS = KeyRing([KeyRecord(digest_of(ALICE), "alice"), KeyRecord(digest_of(BOB), "bob")])
HOST = "127.0.0.1"
ANSWER = 1 << 20
MANY = 30
Reader = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Server:
    """A node of few lines: each program has `size` bytes of output, once `may_answer` is set."""

    def __init__(self, size: int = ANSWER) -> None:
        self._size = size
        self.cut = 0
        """Bytes of each answer that come only once `may_end` is set."""
        self.may_end = asyncio.Event()
        self.asked = 0
        self.may_answer = asyncio.Event()
        self._served: set[asyncio.Task[None] | None] = set()

    async def end(self) -> None:
        """End every connection."""
        for task in self._served:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served.add(asyncio.current_task())
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        await reader.readexactly(length)
        self.asked += 1
        await self.may_answer.wait()
        body = b'{"verdict":"ok","stdout":"%s"}' % (b"x" * self._size)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body[: len(body) - self.cut])
        await writer.drain()
        if self.cut:
            await self.may_end.wait()
            writer.write(body[-self.cut :])
            await writer.drain()


@contextlib.asynccontextmanager
async def _gateway(server: _Server, cores: int = 32) -> AsyncIterator[tuple[Gateway, int]]:
    node = await asyncio.start_server(server.serve, HOST, 0)
    behind = Node(Links(Address(HOST, node.sockets[0].getsockname()[1]), None))
    book = Book(13.0, [behind])
    made = Gateway(ServerSettings(), KEYS, book)
    book.answered(behind, Told("aaaa", "g", False, "1", 10.0, Size(cores)), 0.0)
    living: set[ClientLink] = set()
    loop = asyncio.get_running_loop()
    front = await loop.create_server(lambda: ClientLink(made.begin, living), HOST, 0)
    front.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)  # for each client
    try:
        yield made, front.sockets[0].getsockname()[1]
    finally:
        front.close()
        for each in list(living):
            each.abort()
        await made.tasks.cancel()
        behind.links.cut()
        node.close()
        await server.end()
        await asyncio.sleep(0)


async def _connected(port: int) -> Reader:
    """Connect in such a way that little is taken before it is read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    return await asyncio.open_connection(sock=sock, limit=16 * 1024)


def _head(key: str, media: str, length: int) -> bytes:
    return (
        f"POST /executions/batch HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n"
        f"connection: close\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def _begin(port: int, key: str, count: int, concurrency: int) -> Reader:
    """Send a batch whose answer is not read."""
    reader, writer = await _connected(port)
    programs = [{"code": str(number)} for number in range(count)]
    body = json.dumps({"executions": programs, "concurrency": concurrency}).encode()
    writer.write(_head(key, "application/json", len(body)) + body)
    return reader, writer


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - of counters, which tell no event
            await asyncio.sleep(0)


async def _quiet() -> None:
    """Let everything have many turns: nodes and clients are on this loop, too."""
    for _ in range(3_000):
        await asyncio.sleep(0)


async def _read(batch: Reader) -> list[dict[str, object]]:
    """Read what is left of an answer, and return its lines without their output."""
    async with asyncio.timeout(20):
        data = await batch[0].read()
    batch[1].close()
    chunks, lines = data.partition(b"\r\n\r\n")[2], []
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        lines.append(rest[: int(size, 16)])
        chunks = rest[int(size, 16) + 2 :]
    found = [json.loads(line) for line in b"".join(lines).splitlines()]
    sizes = {len(each.pop("stdout")) for each in found if "stdout" in each}
    assert len(sizes) <= 1
    return found


def test_slow_reader_slows_its_own_batch_and_its_answers_are_counted() -> None:
    async def body() -> None:
        server = _Server()
        async with _gateway(server, cores=1) as (made, port):
            slow = await _begin(port, ALICE, MANY, 10)
            await _until(lambda: server.asked == 2 and made.turns.queued == 8)
            server.may_answer.set()
            await _until(lambda: made.bodies.held_bytes >= 2 * ANSWER)
            await _quiet()
            assert server.asked == 2
            assert (made.turns.queued, len(made.turns.young)) == (0, 0)
            other = await _read(await _begin(port, BOB, 3, 3))
            assert other[-1] == {"type": "end", "count": 3, "failed": 0}
            *found, end = await _read(slow)
            assert end == {"type": "end", "count": MANY, "failed": 0}
            assert sorted(each["index"] for each in found) == list(range(MANY))  # type: ignore[type-var]
            assert server.asked == MANY + 3
            await _until(lambda: made.bodies.held_bytes == 0)

    asyncio.run(body())


def test_answer_that_has_no_room_until_it_is_read_is_an_error_of_its_program() -> None:
    async def body() -> None:
        server = _Server()
        async with _gateway(server) as (made, port):
            batch = await _begin(port, ALICE, 4, 4)
            await _until(lambda: server.asked == 4)
            made.bodies.take("alice", made.bodies._each - made.bodies.held_bytes - 5 * ANSWER // 2)
            server.may_answer.set()
            await _quiet()
            *found, end = await _read(batch)
            assert (end["count"], end["failed"]) == (4, 2)
            errors = [each["error"] for each in found if "error" in each]
            assert [each["code"] for each in errors] == ["interrupted"] * 2  # type: ignore[index]

    asyncio.run(body())


def test_answers_count_while_they_come_and_one_without_room_is_not_asked_for_again() -> None:
    async def body() -> None:
        server = _Server()
        server.cut = 10
        async with _gateway(server) as (made, port):
            batch = await _begin(port, ALICE, 4, 4)
            await _until(lambda: server.asked == 4)
            made.bodies.take("alice", made.bodies._each - made.bodies.held_bytes - 5 * ANSWER // 2)
            before = made.bodies.held_bytes
            server.may_answer.set()
            await _until(lambda: made.bodies.held_bytes >= before + 2 * (ANSWER - server.cut))
            server.may_end.set()
            *found, end = await _read(batch)
            assert (end["count"], end["failed"]) == (4, 2)
            codes = [each["error"]["code"] for each in found if "error" in each]  # type: ignore[index]
            assert codes == ["interrupted"] * 2
            assert server.asked == 4
            taken = made.bodies._each - 5 * ANSWER // 2
            await _until(lambda: made.bodies.held_bytes <= taken)

    asyncio.run(body())


def test_client_that_leaves_ends_what_runs_and_what_waits_for_its_turn() -> None:
    async def body() -> None:
        server = _Server()
        async with _gateway(server, cores=1) as (made, port):
            _, writer = await _begin(port, ALICE, MANY, 10)
            await _until(lambda: server.asked == 2 and made.turns.queued == 8)
            assert made.book.nodes[0].in_flight == 2
            writer.close()
            await _until(lambda: not len(made.tasks))
            assert (made.turns.queued, len(made.turns.young)) == (0, 0)
            assert (made.bodies.held_bytes, made.book.nodes[0].in_flight) == (0, 0)
            assert server.asked == 2

    asyncio.run(body())


@pytest.mark.parametrize("first", [b"", b'{"code":"0"}\n'])
def test_blank_lines_are_given_back_and_hold_nothing_up(first: bytes) -> None:
    blank, last = b"\n" * (1 << 20), b'{"code":"1"}'

    async def body() -> None:
        server = _Server(8)
        server.may_answer.set()
        async with _gateway(server) as (made, port):
            used = made.bodies._each - len(blank)
            made.bodies.take("alice", used)
            reader, writer = await _connected(port)
            length = len(first) + 3 * len(blank) + len(last)
            writer.write(_head(ALICE, "application/x-ndjson", length) + first)
            for _ in range(3):
                writer.write(blank)
                await writer.drain()
                await _until(lambda: made.bodies.held_bytes == used)
            writer.write(last)
            *found, end = await _read((reader, writer))
            assert (end["count"], end["failed"]) == (len(found), 0) == (1 + bool(first), 0)

    asyncio.run(body())
