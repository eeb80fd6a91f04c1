"""A key's request that a node turns away: when another node may have it, and when none may."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from cellwall.cluster.directory.claims import Claim, Claims
from cellwall.cluster.gateway.agreed.claims import AgreedReplays
from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.replays import Replays
from cellwall.cluster.gateway.wire.front import ClientLink
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of
from cellwall.server.core.settings import ServerSettings

KEY = "k" * 43
HOST = "127.0.0.1"
DAY_S = 86_400.0
FULL = (503, {"error": {"code": "capacity", "message": "node: full"}})
RAN = (200, {"stdout": "1\n"})
REQUEST = (
    f"POST /execute HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\nidempotency-key: k1\r\n"
    'connection: close\r\ncontent-length: 12\r\n\r\n{"code":"1"}'
).encode()


@dataclass
class Asked:
    """A node that answers programs in one way, and says one thing of ids."""

    answer: tuple[int, object]
    says: dict[str, object] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=list)
    serving: list[asyncio.Task[None]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.append(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.lower())
                is_program = head.startswith(b"POST")
                if is_program:
                    await reader.readexactly(12)
                status, value = self.answer if is_program else (200, self.says)
                body = json.dumps(value, separators=(",", ":")).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
                writer.write(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    @property
    def programs(self) -> int:
        return sum(head.startswith(b"post /execute") for head in self.heads)


class Claimed(Claims):
    """A key that another request has claimed before, until it is given up."""

    def __init__(self, claim: Claim) -> None:
        """Without a directory."""
        self.claimed: Claim | None = claim

    async def claim(self, tenant: str, key: str, wanted: Claim) -> Claim:
        self.claimed = self.claimed or wanted
        return self.claimed

    async def release(self, tenant: str, key: str, offered: str, *, is_settled: bool) -> bool:
        if is_settled:
            self.claimed = None
        return is_settled


OFFERED = "aaaa" + "b" * 26


def _is_refused_first(gateway: Gateway) -> bool:
    """Leave the key to a first request, which comes while the other node takes nothing new."""
    return True


def _claimed(age_s: float) -> Callable[[Gateway], bool]:
    """Have the key claimed in the directory, so long ago."""

    def begin(gateway: Gateway) -> bool:
        claim = Claim(b"", "aaaa", OFFERED, age_s)
        gateway.replays = AgreedReplays(Claimed(claim), gateway.book)
        return False

    return begin


def _remembered(gateway: Gateway) -> bool:
    """Have the key of a request whose end is not known, at a gateway that is alone."""
    assert isinstance(gateway.replays, Replays)
    gateway.replays.goes("alice", "k1", "aaaa", OFFERED)
    return False


def _asked(first: Asked, other: Asked, begin: Callable[[Gateway], bool]) -> bytes:
    """Return the last answer to requests with one key at a gateway over two nodes.

    `begin` says what of the key is known, and whether another request comes first.
    """

    async def run() -> bytes:
        async with AsyncExitStack() as stack:
            book = Book(13.0)
            for name, each in (("aaaa", first), ("bbbb", other)):
                made = await asyncio.start_server(each.serve, HOST, 0)
                stack.callback(made.close)
                node = Node(Links(Address(HOST, made.sockets[0].getsockname()[1]), None))
                stack.callback(node.links.cut)
                book.nodes.append(node)
                book.answered(node, Told(name, "g", False, "1", 10.0), 0.0)
            book.nodes[1].in_flight = 9  # so the first one is chosen first
            record = KeyRecord(digest_of(KEY), "alice")
            gateway = Gateway(ServerSettings(), KeyRing([record]), book)
            stack.push_async_callback(gateway.tasks.cancel)
            loop = asyncio.get_running_loop()
            living: set[ClientLink] = set()
            front = await loop.create_server(lambda: ClientLink(gateway.begin, living), HOST, 0)
            stack.callback(front.close)
            port = front.sockets[0].getsockname()[1]
            if begin(gateway):
                book.nodes[1].state = "draining"
                assert (await _sent(port)).startswith(b"HTTP/1.1 503 ")
                book.nodes[1].state = "ready"
            said = await _sent(port)
            await asyncio.gather(*(each.ended for each in living))
        await asyncio.gather(*first.serving, *other.serving)
        return said

    return asyncio.run(run())


async def _sent(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(REQUEST)
    said = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return said


def _says(*, has_begun: bool, is_gone: bool, knows_s: float) -> dict[str, object]:
    return {"has_begun": has_begun, "is_gone": is_gone, "knows_s": knows_s}


@pytest.mark.parametrize("begin", [_claimed(3600.0), _remembered])
def test_what_certainly_did_not_begin_goes_to_another_node(
    begin: Callable[[Gateway], bool],
) -> None:
    first = Asked(FULL, _says(has_begun=False, is_gone=False, knows_s=DAY_S))
    other = Asked(RAN)
    assert b'"stdout"' in _asked(first, other, begin)
    assert other.programs == 1
    settled = next(head for head in first.heads if b"/node/ids/" in head)
    assert b"idempotency-key: k1\r\n" in settled  # the node looks the key up
    assert b"cellwall-tenant: alice\r\n" in settled


@pytest.mark.parametrize(
    "says",
    [
        _says(has_begun=True, is_gone=True, knows_s=DAY_S),
        _says(has_begun=False, is_gone=False, knows_s=600.0),  # the claim is older
    ],
)
def test_what_may_have_begun_and_is_kept_no_longer_is_gone(says: dict[str, object]) -> None:
    other = Asked(RAN)
    said = _asked(Asked(FULL, says), other, _claimed(3600.0))
    assert said.startswith(b"HTTP/1.1 410 ")
    assert b'"code":"gone"' in said
    assert other.programs == 0


def test_key_that_a_full_node_refused_last_is_free_for_another_node() -> None:
    first, other = Asked(FULL), Asked(RAN)
    assert b'"stdout"' in _asked(first, other, _is_refused_first)
    assert other.programs == 1
