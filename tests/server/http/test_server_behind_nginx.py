"""API-15 behind a proxy: nginx with deploy/nginx.conf and the server agree on every request.

A smuggled request is one that the server takes for a request and the proxy for part of a body.
Each way is tried with an inner request that creates a sandbox; the witnesses are the proxy's own
log of what it took for requests, and the tenant's sandboxes. Control: an honest pair of requests
appears in both, and without the proxy's name in `allowed_hosts` nothing goes through.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from conftest import require_capability
from kit.server.nginx_front import NAME, Proxy, proxy_of
from kit.servers import ALICE, Server, made_by, running

_KEY = b"X-API-Key: " + ALICE.encode() + b"\r\n"
_HEAD = b"Host: " + NAME.encode() + b"\r\nContent-Type: application/json\r\n" + _KEY
_POST = b"POST /execute HTTP/1.1\r\n" + _HEAD
_INNER = b"POST /sandboxes HTTP/1.1\r\n" + _HEAD + b"Content-Length: 2\r\n\r\n{}"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_LATE = b"\r\n" * 400_000 + _INNER
"""More than one read of the server's: most of it comes after it has seen the head. A parser that
waits for a request skips the line ends."""


def _length(count: int) -> bytes:
    return b"Content-Length: %d\r\n" % count


SMUGGLING = {
    "length and chunked": _POST + _length(5 + len(_INNER)) + _CHUNKED + b"\r\n0\r\n\r\n" + _INNER,
    "chunked and length": _POST + _CHUNKED + _length(3) + b"\r\n%x\r\n" % len(_INNER) + _INNER
    + b"\r\n0\r\n\r\n",
    "two lengths": _POST + _length(0) + _length(len(_INNER)) + b"\r\n" + _INNER,
    "two lengths in one": _POST + b"Content-Length: 0, %d\r\n\r\n" % len(_INNER) + _INNER,
    "length with sign": _POST + b"Content-Length: +0\r\n\r\n" + _INNER,
    "length in hexadecimal": _POST + b"Content-Length: 0x0\r\n\r\n" + _INNER,
    "coding misspelt": _POST + b"Transfer-Encoding: xchunked\r\n" + _length(len(_INNER)) + b"\r\n"
    + _INNER,
    "coding twice": _POST + _CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n" + _INNER,
    "coding with a tab": _POST + b"Transfer-Encoding:\tchunked\r\n" + _length(len(_INNER) + 5)
    + b"\r\n0\r\n\r\n" + _INNER,
    "space before colon": _POST + b"Transfer-Encoding : chunked\r\n" + _length(5 + len(_INNER))
    + b"\r\n0\r\n\r\n" + _INNER,
    "folded coding": _POST + b"Transfer-Encoding:\r\n chunked\r\n" + _length(5 + len(_INNER))
    + b"\r\n0\r\n\r\n" + _INNER,
    "coding after a bare line feed": _POST + b"X-A: b\nTransfer-Encoding: chunked\r\n"
    + _length(5 + len(_INNER)) + b"\r\n0\r\n\r\n" + _INNER,
    "bare line feeds in chunks": _POST + _CHUNKED + b"\r\n0\n\n" + _INNER,
    "chunk extension with a line feed": _POST + _CHUNKED + b"\r\n2;\nxx\r\n{}\r\n0\r\n\r\n"
    + _INNER,
    "chunk size that overflows": _POST + _CHUNKED + b"\r\n10000000000000000\r\n" + _INNER,
    "trailer with a length": _POST + _CHUNKED + b"\r\n2\r\n{}\r\n0\r\nContent-Length: 99\r\n\r\n"
    + _INNER,
    "length of HTTP/1.0 and chunked": _POST.replace(b"1.1\r\n", b"1.0\r\n", 1) + _CHUNKED
    + _length(5 + len(_INNER)) + b"Connection: keep-alive\r\n\r\n0\r\n\r\n" + _INNER,
    "body of a GET": b"GET /stats HTTP/1.1\r\n" + _HEAD + _length(len(_INNER)) + b"\r\n" + _INNER,
    "header with a line end in it": b"GET /stats HTTP/1.1\r\nX-A: b\r\n\r\n" + _INNER,
    "upgrade that is none": b"GET /stats HTTP/1.1\r\n" + _HEAD
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + _INNER,
    "body behind an upgrade": _POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    + _length(len(_LATE)) + b"\r\n" + _LATE,
    "chunks behind an upgrade": _POST + b"Connection: Upgrade\r\nUpgrade: any\r\n" + _CHUNKED
    + b"\r\n%x\r\n" % len(_LATE) + _LATE + b"\r\n0\r\n\r\n",
    "body behind a WebSocket's head": _POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    + _length(len(_LATE)) + b"\r\n" + _LATE,
    "body of a CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\n" + _HEAD + _length(len(_LATE))
    + b"\r\n" + _LATE,
}  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Proxy, Server]]:
    """nginx, and behind it a server that answers to the name it is called by."""
    require_capability("nginx", shutil.which("nginx") is not None, "apt-get install nginx-light")
    with running(allowed_hosts=[NAME]) as server, proxy_of(server) as proxy:
        yield proxy, server


@pytest.mark.parametrize("name", SMUGGLING)
def test_what_the_server_does_the_proxy_took_for_a_request(
    pair: tuple[Proxy, Server], name: str
) -> None:
    proxy, server = pair
    before = len(proxy.taken())
    answer = proxy.send(SMUGGLING[name])
    asked = [line for line in proxy.taken()[before:] if line.startswith("POST /sandboxes")]
    assert made_by(server) == len(asked)
    assert answer.startswith(b"HTTP/1.") or answer == b""


def test_an_honest_pair_of_requests_is_two_for_both(pair: tuple[Proxy, Server]) -> None:
    proxy, server = pair
    stats = b"GET /stats HTTP/1.1\r\n" + _HEAD + b"\r\n"
    before = len(proxy.taken())
    answer = proxy.send(stats + _INNER)
    assert answer.count(b"HTTP/1.1 20") == 2, answer
    assert [line.split()[1] for line in proxy.taken()[before:]] == ["/stats", "/sandboxes"]
    assert made_by(server) == 1


def test_a_name_that_was_not_allowed_gets_nothing(server: Server) -> None:
    require_capability("nginx", shutil.which("nginx") is not None, "apt-get install nginx-light")
    with proxy_of(server) as proxy:
        answer = proxy.send(b"GET /stats HTTP/1.1\r\nConnection: close\r\n" + _HEAD + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 403"), answer
