"""A gateway over small nodes: names that others claim, a directory that is away, strangers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from cellwall.apps.cluster.doors import opened_doors
from cellwall.cluster.directory.keys import Kept, Keys, Version
from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.data.data import Data
from cellwall.cluster.gateway.data.places import OwnPlaces, Place
from cellwall.cluster.gateway.data.visit import Visit
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.routing import Way
from cellwall.cluster.gateway.tenants.key_book import KeyBook
from cellwall.cluster.gateway.tenants.lending import Keeps
from cellwall.cluster.gateway.wire.body import Body
from cellwall.cluster.gateway.wire.front import ClientLink
from cellwall.cluster.gateway.wire.heads import RequestHead
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.model.errors import CapacityError
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of
from cellwall.server.core.body_budget import BodyBudget, Held
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.errors import HttpError
from cellwall.server.core.settings import ServerSettings
from cellwall.store.records.errors import StoreBusy
from kit.cluster.tiny_nodes import Table, caller, nodes

KEY = "k" * 43
HOST = "127.0.0.1"
BODY = b'{"name":"data"}'
_ID = "aaaa" + "b" * 26


def _request(line: str, *, has_key: bool = True, body: bytes = b"") -> bytes:
    key = [f"x-api-key: {KEY}"] if has_key else []
    more = ["content-type: application/json", f"content-length: {len(body)}"]
    lines = [f"{line} HTTP/1.1", "host: localhost", "connection: close", *key, *more, "", ""]
    return "\r\n".join(lines).encode() + body


def _asked(
    table: Table,
    request: bytes,
    places: OwnPlaces | None = None,
    begin: Callable[[Gateway], None] = lambda _gateway: None,
) -> bytes:
    """Return the answer of a gateway over one node."""

    async def run() -> bytes:
        async with nodes({"aaaa": table}) as book:
            settings = ServerSettings(doors={"e2b": DoorSettings(), "piston": DoorSettings()})
            ring = KeyRing([KeyRecord(digest_of(KEY), "alice", "admin")])
            gateway = Gateway(settings, ring, book, opened_doors(settings))
            gateway.data = Data(gateway, places or OwnPlaces())
            begin(gateway)
            loop = asyncio.get_running_loop()
            front = await loop.create_server(
                lambda: ClientLink(gateway.begin, gateway.clients), HOST, 0
            )
            reader, writer = await asyncio.open_connection(HOST, front.sockets[0].getsockname()[1])
            try:
                writer.write(request)
                return await asyncio.wait_for(reader.read(), 10)
            finally:
                await _closed(writer, gateway)
                front.close()

    return asyncio.run(run())


async def _closed(writer: asyncio.StreamWriter, gateway: Gateway) -> None:
    """End a client's connection, and what the gateway does for it."""
    living = [*gateway.clients]
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    await asyncio.gather(*(each.ended for each in living))
    await gateway.tasks.cancel()


def test_name_that_another_request_has_claimed_is_not_freed_by_this_one() -> None:
    """The other one's may be on its way to the node, which has no volume yet."""
    places = OwnPlaces()
    asyncio.run(places.claim("alice", "volume:data", "aaaa"))
    said = _asked({}, _request("POST /volumes", body=BODY), places)
    assert said.startswith(b"HTTP/1.1 404 ")  # the node's own answer
    assert asyncio.run(places.find("alice", "volume:data")) == Place("aaaa", 1)


def test_name_that_this_request_has_claimed_is_free_if_the_node_makes_nothing() -> None:
    places = OwnPlaces()
    assert _asked({}, _request("POST /volumes", body=BODY), places).startswith(b"HTTP/1.1 404 ")
    assert asyncio.run(places.find("alice", "volume:data")) is None


class Away(OwnPlaces):
    """Places of a directory that is away when something is forgotten, or listed."""

    async def forget(self, tenant: str, thing: str, place: Place) -> None:
        raise StoreBusy("places: away", retry_after_s=1.0)

    async def of(self, tenant: str, kind: str) -> dict[str, str]:
        raise StoreBusy("places: away", retry_after_s=1.0)


@pytest.mark.parametrize("thing", ["volume:data", "template:task"])
def test_what_is_removed_is_said_so_though_its_name_cannot_be_freed(thing: str) -> None:
    places = Away()
    asyncio.run(places.claim("alice", thing, "aaaa"))
    path = "/{}s/{}".format(*thing.split(":"))
    said = _asked({path: {"message": "removed"}}, _request(f"DELETE {path}"), places)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"removed" in said


def test_volumes_are_listed_while_the_directory_is_away() -> None:
    table = {"/volumes": {"volumes": [{"name": "data"}]}}
    said = _asked(table, _request("GET /volumes"), Away())
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b'"volumes":[{"name":"data"}]' in said


@pytest.mark.parametrize("path", ["/piston/api/v2/execute", f"/e2b/sandboxes/{_ID}/fork"])
def test_stranger_at_a_door_takes_no_turn_and_is_not_counted(path: str) -> None:
    def begin(gateway: Gateway) -> None:
        gateway.turns.places = 0
        gateway.quotas = cast("Any", object())  # whatever is counted is a defect

    said = _asked({path: {"its": "answer"}}, _request(f"POST {path}", has_key=False), None, begin)
    assert b'{"its": "answer"}' in said


class Own(Keys):
    """The key of one caller."""

    def __init__(self, key: str) -> None:
        """Without a directory."""
        self.row = Kept(digest_of(key), "alice", "admin", None, 0.0, None)

    async def revoke(self, key_id: str) -> tuple[bool, bool]:
        self.row = replace(self.row, revoked_at=1.0)
        return True, True

    async def since(self, known: Version) -> None:
        """It is to be read again."""

    async def all(self) -> tuple[Version, list[Kept]]:
        return Version(1), [self.row]


def test_caller_that_revokes_its_own_key_is_answered() -> None:
    own = "o" * 43

    def begin(gateway: Gateway) -> None:
        keys = KeyBook(Own(own), gateway.keyring, gateway.cut)
        gateway.keeps = Keeps(keys, cast("Any", None))
        gateway.tasks.spawn(keys.refresh())

    request = _request(f"DELETE /keys/{digest_of(own)[:12]}").replace(KEY.encode(), own.encode())
    said = _asked({}, request, None, begin)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b'"revoked"' in said


@pytest.mark.parametrize(("known", "state"), [((), b"draining"), (("aaaa",), b"ready")])
def test_node_that_the_directory_does_not_know_is_not_undrained(
    known: tuple[str, ...], state: bytes
) -> None:
    def begin(gateway: Gateway) -> None:
        book = gateway.book
        book.has_directory, book.known = True, frozenset(known)
        book.nodes[0].state = "draining"

    said = _asked({"/node/undrain": {}}, _request("POST /nodes/aaaa/undrain"), None, begin)
    assert b'"state":"%s"' % state in said


class _Client:
    """A client's connection, as far as a body needs it."""

    def hold(self) -> None:
        """Stop."""


@pytest.mark.parametrize(
    ("room", "length", "size", "status"),
    [(64, None, 9, 413), (1, None, 2, 503), (64, 9, 2, 0), (1, 9, 2, 413)],
)
def test_body_that_is_not_kept_is_too_long_or_waits_for_room(
    room: int, length: int | None, size: int, status: int
) -> None:
    mib = 1 << 20
    head = RequestHead(b"POST", b"/execute", [], length=length and length * mib)
    held = Held(BodyBudget(room * mib), "alice")
    body = Body(cast("Any", _Client()), head, held)
    for _ in range(size):
        body.take(bytes(mib))
    assert (body.kept is None) is bool(status)
    if status:
        error = body.not_kept("it names secrets", "send less")
        assert isinstance(error, CapacityError if status == 503 else HttpError)
    body.release()


def test_body_with_a_hole_goes_to_no_node() -> None:
    async def run() -> None:
        gateway = Gateway(ServerSettings(), KeyRing(), cast("Any", type("Book", (), {})()))
        gateway.bodies = BodyBudget(100)
        head = RequestHead(b"POST", b"/templates", [], length=None)
        visit = Visit(gateway, cast("Any", _Client()), head, Way("data"), caller())
        for each in (b"a" * 40, b"b" * 5000, b"c"):
            visit.on_body(each)
        with pytest.raises(CapacityError):
            await visit.go(Way("any"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "is_led"),
    [(f"/sandboxes/{_ID}/terminal", False), (f"/sandboxes/{_ID}/ports/80/", True)],
)
def test_node_leads_no_websocket_away_but_an_application_may(path: str, is_led: bool) -> None:
    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://away/\r\ncontent-length: 0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def run() -> bytes:
        made = await asyncio.start_server(serve, HOST, 0)
        node = Node(Links(Address(HOST, made.sockets[0].getsockname()[1]), None))
        book = Book(13.0, [node])
        book.answered(node, Told("aaaa", "g", False, "1", 10.0), 0.0)
        gateway = Gateway(ServerSettings(), KeyRing([KeyRecord(digest_of(KEY), "alice")]), book)
        loop = asyncio.get_running_loop()
        front = await loop.create_server(
            lambda: ClientLink(gateway.begin, gateway.clients), HOST, 0
        )
        reader, writer = await asyncio.open_connection(HOST, front.sockets[0].getsockname()[1])
        switch = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x"
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n{switch}\r\n\r\n"
        try:
            writer.write(head.encode())
            return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        finally:
            await _closed(writer, gateway)
            node.links.cut()
            await asyncio.gather(*(each for each in serving if each is not None))
            for each in (front, made):
                each.close()

    said = asyncio.run(run())
    assert said.startswith(b"HTTP/1.1 302 ")
    assert (b"http://away/" in said) is is_led
