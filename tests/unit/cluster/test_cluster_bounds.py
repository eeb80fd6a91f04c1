"""What a gateway bounds: tokens of keys that are over, connections, and bytes of bodies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import pytest

from cellwall.apps.cluster.doors import opened_doors
from cellwall.cluster.directory.shares import Shares
from cellwall.cluster.gateway.agreed.copies import copies_in
from cellwall.cluster.gateway.agreed.running import Running
from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.callers import Caller, check_token
from cellwall.cluster.gateway.exchange import Exchange
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.routing import way_of
from cellwall.cluster.gateway.wire.front import ClientLink
from cellwall.cluster.gateway.wire.heads import RequestHead
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.cluster.gateway.work.tally import Tally
from cellwall.engine.scheduling.quotas import Quotas, Tenants
from cellwall.model.errors import UsageError
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of
from cellwall.server.auth.tokens import TokenRefused, Tokens
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.settings import ServerSettings
from cellwall.server.http.addresses import Addresses

KEY = "k" * 43
RECORD = KeyRecord(digest_of(KEY), "alice")
HOST = "127.0.0.1"


def _head(path: str, **headers: str) -> RequestHead:
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return RequestHead(b"GET", path.encode(), named, named=dict(named))


def _token() -> str:
    signs = Tokens(b"s" * 32, lambda _key: True, "a7c2")
    return signs.sign(RECORD.principal, "port", {"sandbox": "x", "port": 80}, 60)[0]


def test_token_of_an_accepted_key_goes_on_and_one_of_a_revoked_key_does_not() -> None:
    path = f"/sandboxes/a7c2{'b' * 26}/ports/80/?cellwall_token={_token()}"
    head = _head(path)
    way = way_of("GET", head.path)
    assert check_token(head, way, KeyRing([RECORD]))
    with pytest.raises(TokenRefused):
        check_token(head, way, KeyRing())


@pytest.mark.parametrize("token", ["", "a7c2.", "a7c2.!!", "a7c2." + "A" * 50, "x" * 20_000])
def test_what_is_no_token_names_no_key(token: str) -> None:
    head = _head(f"/signed/{token or 'x'}")
    with pytest.raises(TokenRefused):
        check_token(head, way_of("GET", head.path), KeyRing([RECORD]))


def test_token_whose_claims_are_no_object_names_no_key() -> None:
    wrong: list[object] = [[], "key", {"kind": "port"}, 7]
    for claims in wrong:
        raw = base64.urlsafe_b64encode(b"s" * 32 + json.dumps(claims).encode()).decode()
        head = _head(f"/signed/a7c2.{raw.rstrip('=')}")
        with pytest.raises(TokenRefused):
            check_token(head, way_of("GET", head.path), KeyRing([RECORD]))


@pytest.mark.parametrize("headers", [{"x_api_key": KEY}, {"authorization": f"Bearer {KEY}"}])
def test_signed_address_of_a_revoked_key_opens_nothing_beside_another_key(
    headers: dict[str, str],
) -> None:
    revoked = KeyRecord(digest_of("r" * 43), "bob")
    signs = Tokens(b"s" * 32, lambda _key_id: True, "a7c2")
    path = f"/signed/{signs.sign(revoked.principal, 'file', {'sandbox': 'x'}, 60)[0]}"
    head = _head(path, **headers)
    way = way_of("GET", head.path)
    assert not check_token(head, way, KeyRing([RECORD, revoked]))  # the control
    with pytest.raises(TokenRefused):
        check_token(head, way, KeyRing([RECORD]))


def test_key_of_ours_counts_before_a_token() -> None:
    path = f"/sandboxes/a7c2{'b' * 26}/ports/80/?cellwall_token={_token()}"
    ring = KeyRing([RECORD])
    for headers in ({"x_api_key": "anything"}, {"authorization": f"Bearer {KEY}"}):
        head = _head(path, **headers)
        assert not check_token(head, way_of("GET", head.path), ring)
    inside = _head(path, authorization="Bearer of-the-application")
    assert check_token(inside, way_of("GET", inside.path), ring)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@contextlib.asynccontextmanager
async def _gateway(serve: Serve, **settings: int) -> AsyncIterator[tuple[Gateway, int]]:
    """Run a gateway in front of a node of two lines, without TLS between them."""
    node = await asyncio.start_server(serve, HOST, 0)  # type: ignore[arg-type]  # either kind
    port = node.sockets[0].getsockname()[1]
    behind = Node(Links(Address(HOST, port), None))
    book = Book(13.0, [behind])
    book.answered(behind, Told("aaaa", "g", False, "1", 10.0), 0.0)
    made = Gateway(ServerSettings(**settings), KeyRing([RECORD]), book)  # type: ignore[arg-type]
    living: set[ClientLink] = set()
    loop = asyncio.get_running_loop()
    front = await loop.create_server(lambda: ClientLink(made.begin, living), HOST, 0)
    try:
        yield made, front.sockets[0].getsockname()[1]
    finally:
        front.close()
        for each in list(living):
            each.abort()
        await made.tasks.cancel()
        behind.links.cut()
        node.close()
        await asyncio.sleep(0)


async def _asked(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


class _Left:
    """A client that has left."""

    peer = HOST

    def done(self) -> None:
        pass


@pytest.mark.timeout(20)
def test_client_that_left_before_its_request_began_waits_for_no_turn() -> None:
    async def run() -> None:
        async with _gateway(_silent) as (gateway, _):
            gateway.turns.resize(gateway.book.nodes)
            while (turn := gateway.turns.ask("alice")).has_come:
                pass  # until others wait
            head = RequestHead(b"POST", b"/execute", [], named={})
            caller = Caller(RECORD.principal, [], frozenset())
            left = Exchange(gateway, cast("Any", _Left()), head, way_of("POST", head.path), caller)
            left.on_gone()
            await left.run()
            assert gateway.turns.queued == 1  # the one that waits still
            turn.leave()

    asyncio.run(run())


def test_connections_are_bounded_over_all_and_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with _gateway(_silent) as (_, port):
            monkeypatch.setattr(ClientLink, "addresses", Addresses(1000, ()))
            monkeypatch.setattr(ClientLink, "most", 2)
            held = [await asyncio.open_connection(HOST, port) for _ in range(2)]
            assert b"503" in await _asked(port, b"")
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            monkeypatch.setattr(ClientLink, "addresses", Addresses(1, ()))
            health = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
            first, writer = await asyncio.open_connection(HOST, port)
            writer.write(health)
            assert b"200 OK" in await first.readuntil(b"\r\n")  # the control
            with pytest.raises((ConnectionError, AssertionError)):
                assert await _asked(port, health)
            writer.close()

    asyncio.run(run())


def test_answer_at_a_doors_own_port_is_counted_as_one_at_its_path_is() -> None:
    async def run() -> None:
        book = Book(13.0)
        settings = ServerSettings(doors={"piston": DoorSettings()})
        made = Gateway(settings, KeyRing([RECORD]), book, opened_doors(settings))
        made.tally = tally = Tally(book, made.turns)
        loop, living = asyncio.get_running_loop(), set[ClientLink]()
        for begin, path in (
            (made.begin, "/piston/execute"),
            (partial(made.begin_at, "piston"), "/execute"),
        ):
            front = await loop.create_server(lambda: ClientLink(begin, living), HOST, 0)  # noqa: B023
            port = front.sockets[0].getsockname()[1]
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            assert b" 503 " in await _asked(port, head.encode())  # there is no node
            front.close()
        (counted,) = tally._requests.read().samples
        assert (counted.labels, counted.value) == ({"kind": "door", "status": "503"}, 2)

    asyncio.run(run())


def test_defect_of_the_gateway_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a defect at /some/path")

    async def run() -> None:
        async with _gateway(_silent) as (_, port):
            monkeypatch.setattr(Book, "choose", fails)
            body = b'{"code":"1"}'
            head = (
                f"POST /execute HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n"
                f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            said = await _asked(port, head.encode() + body)
            assert said.startswith(b"HTTP/1.1 500 ")
            assert b'"code":"internal"' in said
            assert b"/some/path" not in said

    asyncio.run(run())


class _Full(Shares):
    """Others have all of the quota."""

    def __init__(self) -> None:
        """Without a directory."""
        self.asked = asyncio.Event()

    async def take(self, tenant: str, most: int) -> bool:
        self.asked.set()
        return False


def test_request_whose_client_left_waits_for_no_place() -> None:
    async def run() -> None:
        async with _gateway(_silent) as (made, port):
            tenants = Tenants({"default": Quotas(running=1, queued=1)})
            shares = _Full()
            made.running = Running(shares, tenants, made.tasks)
            head = (
                f"POST /execute HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n"
                "connection: close\r\ncontent-length: 2\r\n\r\n{}"
            ).encode()
            async with asyncio.timeout(10):
                _, writer = await asyncio.open_connection(HOST, port)
                writer.write(head)
                await shares.asked.wait()
                assert b" 429 " in await _asked(port, head)  # the control: it is in the line
                writer.close()
                await made.tasks.wait_empty()

    asyncio.run(run())


def test_batch_above_the_budget_of_bodies_is_refused() -> None:
    async def run() -> None:
        async with _gateway(_silent) as (made, port):
            size = 1 << 20
            made.bodies.take("alice", made.bodies._each - size // 2)
            body = b'{"executions": ["' + b"x" * size + b'"]}'
            head = (
                f"POST /executions/batch HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            said = await _asked(port, head.encode() + body)
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"those of this tenant" in said

    asyncio.run(run())


def test_copies_that_a_body_asks_for_are_counted_or_refused() -> None:
    assert copies_in(b"") == copies_in(b"{}") == copies_in(b'{"reseed": false}') == 1
    assert copies_in(b'{"count": null}') == 1  # at a door; a server refuses it
    assert copies_in(b'{"count": 256}') == 256
    for body in (
        b"[]", b"x", b'{"count": 0}', b'{"count": 257}', b'{"count": "9"}', b'{"count": 9.0}',
        b'{"count": true}', b'{"count": 1, "count": 9}', b"[" * 100_000,
    ):  # fmt: skip
        with pytest.raises(UsageError):
            copies_in(body)
