"""Requests under way end with their key: those with the key itself, with its tokens, at doors."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import AsyncExitStack

import pytest

from cellwall.apps.cluster.doors import opened_doors
from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.wire.front import ClientLink
from cellwall.cluster.gateway.wire.heads import RequestHead
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.server.auth.keys import Failures, KeyRecord, KeyRing, digest_of
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.settings import ServerSettings

ENDED, STAYS = "e" * 43, "s" * 43
RECORDS = {key: KeyRecord(digest_of(key), "alice") for key in (ENDED, STAYS)}
HOST = "127.0.0.1"
_ID = "aaaa" + "b" * 26


def _token(key: str) -> str:
    claims = json.dumps({"key": RECORDS[key].key_id}).encode()
    return "aaaa." + base64.urlsafe_b64encode(bytes(32) + claims).rstrip(b"=").decode()


def _request(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


def _asked_with(key: str) -> dict[str, bytes]:
    box = f"/sandboxes/{_ID}"
    switch = ("connection: upgrade", "upgrade: websocket", "sec-websocket-key: x")
    return {
        "key": _request(f"{box}/files", f"x-api-key: {key}"),
        "bearer": _request(f"/executions/{_ID}/events", f"authorization: Bearer {key}"),
        "signed": _request(f"/signed/{_token(key)}"),
        "port": _request(f"{box}/ports/80/", f"x-cellwall-token: {_token(key)}"),
        "socket": _request(f"{box}/terminal", *switch, f"sec-websocket-protocol: key.{key}"),
        "door": _request("/piston/api", f"authorization: {key}"),
    }


@pytest.mark.parametrize("kind", [*_asked_with(ENDED)])
def test_request_ends_with_its_key_and_no_other_does(kind: str) -> None:
    async def run() -> None:
        heard = 0
        both = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal heard
            await reader.readuntil(b"\r\n\r\n")
            heard += 1
            if heard == 2:
                both.set()
            await reader.read()  # until the gateway ends it
            writer.close()

        async with AsyncExitStack() as stack:
            made = await asyncio.start_server(serve, HOST, 0)
            stack.callback(made.close)
            book = Book(13.0, [Node(Links(Address(HOST, made.sockets[0].getsockname()[1]), None))])
            stack.callback(book.nodes[0].links.cut)
            book.answered(book.nodes[0], Told("aaaa", "g", False, "1", 10.0), 0.0)
            ring = KeyRing()
            ring.replace_stored(RECORDS.values())
            settings = ServerSettings(doors={"piston": DoorSettings()})
            gateway = Gateway(settings, ring, book, opened_doors(settings))
            stack.push_async_callback(gateway.tasks.cancel)
            loop = asyncio.get_running_loop()
            front = await loop.create_server(
                lambda: ClientLink(gateway.begin, gateway.clients), HOST, 0
            )
            stack.callback(front.close)
            readers = {}
            for key in (ENDED, STAYS):
                port = front.sockets[0].getsockname()[1]
                readers[key], writer = await asyncio.open_connection(HOST, port)
                stack.callback(writer.close)
                writer.write(_asked_with(key)[kind])
            await asyncio.wait_for(both.wait(), 10)
            gateway.cut()
            assert len(gateway.clients) == 2  # the control: both keys are accepted
            ring.replace_stored([RECORDS[STAYS]])
            gateway.cut()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(readers[ENDED].readexactly(1), 10)
            (left,) = gateway.clients
            assert left.head is not None
            assert not readers[STAYS].at_eof()

    asyncio.run(run())


def test_door_without_a_key_goes_on_where_its_operator_permits_it() -> None:
    piston = DoorSettings(tenant="guests")
    doors = opened_doors(ServerSettings(doors={"piston": piston, "e2b": DoorSettings()}))
    ring = KeyRing([RECORDS[STAYS]])
    assert doors["piston"].has_accepted(RequestHead(b"GET", b"/", []), ring)
    for key, is_accepted in ((STAYS, True), (ENDED, False)):
        token = f"cws_aaaab_{RECORDS[key].key_id}_{'0' * 64}".encode()
        named = {b"x-access-token": token}
        head = RequestHead(b"GET", b"/", [*named.items()], named=named)
        assert doors["e2b"].has_accepted(head, ring) is is_accepted


def test_bearer_that_is_no_key_of_ours_ends_nothing_beside_an_accepted_token() -> None:
    door = opened_doors(ServerSettings(doors={"e2b": DoorSettings()}))["e2b"]
    for key, is_accepted in ((STAYS, True), (ENDED, False)):
        token = f"cws_aaaab_{RECORDS[key].key_id}_{'0' * 64}".encode()
        named = {b"authorization": b"Bearer of-the-application", b"x-access-token": token}
        head = RequestHead(b"GET", b"/", [*named.items()], named=named)
        ring = KeyRing([RECORDS[STAYS]])
        door.caller(head, "10.0.0.1", b"http", ring, {}, Failures())
        assert door.has_accepted(head, ring) is is_accepted


def test_request_at_a_door_ends_with_the_key_that_let_it_in() -> None:
    door = opened_doors(ServerSettings(doors={"e2b": DoorSettings()}))["e2b"]
    named = {b"x-api-key": ENDED.encode()}
    head = RequestHead(b"GET", b"/", [*named.items()], named=named)
    ring = KeyRing()
    ring.replace_stored([RECORDS[ENDED]])
    door.caller(head, "10.0.0.1", b"http", ring, {}, Failures())
    assert door.has_accepted(head, ring)
    ring.replace_stored([])
    assert not door.has_accepted(head, ring)
