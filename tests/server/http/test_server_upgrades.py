"""A head that offers another protocol: what is not served is ignored, what is refused is answered.

API-15, 18. The parser takes such a message to end at its head. Control: the same inner request, on
its own behind the outer one, is answered and makes its sandbox.
"""

from __future__ import annotations

import json
import socket

import pytest

from kit.servers import ALICE, Server, made_by, read_all, running

_HEAD = b"Host: localhost\r\nX-API-Key: %s\r\nContent-Type: application/json\r\n" % ALICE.encode()
_POST = b"POST /execute HTTP/1.1\r\n" + _HEAD
_INNER = b"POST /sandboxes HTTP/1.1\r\n" + _HEAD + b"Content-Length: 2\r\n\r\n{}"
_LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_OFFERS = {
    "HTTP/2": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
    "anything": b"Connection: upgrade\r\nUpgrade: foo/1\r\n",
    "two words": b"Upgrade: websocket, h2c\r\nConnection: upgrade\r\n",
    "two headers": b"Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: upgrade\r\n",
    "two connections": b"Upgrade: websocket\r\nConnection: upgrade\r\nConnection: close\r\n",
}
_SOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


def chunks(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def answered(server: Server, head: bytes, body: bytes) -> bytes:
    """Send a head; the body and a last request when the server asks for it; return what comes."""
    with server.connect() as sock:
        sock.sendall(head + b"Expect: 100-continue\r\n\r\n")
        first = sock.recv(65_536)
        if not first.startswith(b"HTTP/1.1 100 "):
            return first + read_all(sock)
        sock.sendall(body + _LAST)
        return read_all(sock)


@pytest.mark.parametrize("offer", _OFFERS)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_honest_request_keeps_its_body(server: Server, offer: str, is_chunked: bool) -> None:
    body = json.dumps({"code": "print(6 * 7)"}).encode()
    framing = b"Transfer-Encoding: chunked\r\n" if is_chunked else length(body)
    sent = chunks(body) if is_chunked else body
    answer = answered(server, _POST + _OFFERS[offer] + framing, sent)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert b'"stdout":"42\\n"' in answer


@pytest.mark.parametrize("offer", [*_OFFERS.values(), _SOCKET], ids=[*_OFFERS, "WebSocket"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_body_is_no_request(server: Server, offer: bytes, is_chunked: bool) -> None:
    made_by(server)
    framing = b"Transfer-Encoding: chunked\r\n" if is_chunked else length(_INNER)
    answer = answered(server, _POST + offer + framing, chunks(_INNER) if is_chunked else _INNER)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"HTTP/1.1 201 " not in answer
    assert made_by(server) == 0


@pytest.mark.parametrize("target", [b"localhost:80", b"/execute"])
def test_tunnel_is_none(server: Server, target: bytes) -> None:
    head = b"CONNECT %s HTTP/1.1\r\n" % target + _HEAD + length(_INNER)
    answer = answered(server, head, _INNER)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1, "it was taken for two requests"


def test_requests_behind_offers_are_answered_each(server: Server) -> None:
    made_by(server)
    stats = b"GET /stats HTTP/1.1\r\n" + _HEAD + _OFFERS["HTTP/2"] + b"\r\n"
    answer = server.raw(stats * 3 + _INNER + _LAST)
    assert answer.count(b"HTTP/1.1 20") == 5, answer
    assert made_by(server) == 1


_REFUSED_HEADS = {
    "body": _SOCKET + b"Content-Length: 5\r\n",
    "chunks": _SOCKET + b"Transfer-Encoding: chunked\r\n",
    "long header": _SOCKET + b"X-Long: " + b"a" * 9000 + b"\r\n",
    "many headers": _SOCKET + b"".join(b"X-%d: a\r\n" % n for n in range(140)),
    "no WebSocket key": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
}


def upgrade(more: bytes, path: bytes = b"/x") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n"


def until_end(sock: socket.socket) -> bytes:
    """Read until the server closes; `TimeoutError` if it does not."""
    found = b""
    while data := sock.recv(65_536):
        found += data
    return found


@pytest.mark.parametrize(
    "head",
    [*map(upgrade, _REFUSED_HEADS.values()), upgrade(_SOCKET, b"/" + b"x" * 9000)],
    ids=[*_REFUSED_HEADS, "long path"],
)
def test_refused_websocket_is_answered_and_closed(server: Server, head: bytes) -> None:
    with server.connect() as sock:
        sock.settimeout(10)
        sock.sendall(head)
        assert until_end(sock).startswith(b"HTTP/1.1 400 ")


def test_nobody_without_a_key_holds_connections() -> None:
    """Control: connections that are merely open do fill the server, until their clock ends."""
    with running(most_connections=8, header_s=60) as server:
        held = [server.connect() for _ in range(8)]
        refused = server.raw(b"GET /stats HTTP/1.1\r\n" + _HEAD + b"\r\n")
        assert refused.startswith(b"HTTP/1.1 503 ")
        for sock in held:
            sock.sendall(upgrade(_REFUSED_HEADS["body"]))
            until_end(sock)
        assert server.client().get("/stats").status_code == 200
        for sock in held:
            sock.close()


def test_full_server_says_so_as_it_says_everything() -> None:
    with running(most_connections=3) as server:
        held = [server.connect() for _ in range(3)]
        answer = server.client().get("/stats")
        for sock in held:
            sock.close()
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["code"], error["request_id"]) == ("capacity", "")
    assert "most_connections" in error["remedy"]
