"""What a request meets before anything else: Host, Origin, keys, strict HTTP, caps, clocks.

API-3, 4, 5, 15, 16, 17, 18, 20.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from kit.servers import ALICE, Server, error_of, new_sandbox, read_all, running

KEY = f"X-API-Key: {ALICE}\r\n".encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


# -- API-3: Host ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/execute", "/sandboxes", "/docs", "/signed/x"])
def test_foreign_host_is_refused_on_every_route(server: Server, path: str) -> None:
    answer = server.client().get(path, headers={"Host": "attacker.example"})
    assert (answer.status_code, error_of(answer)["code"]) == (403, "host_refused")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:99", "[::1]:8080"])
def test_own_names_are_answered(server: Server, host: str) -> None:
    assert server.client().get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["", "localhost.attacker.example", "127.0.0.1.nip.example", "a:b"])
def test_names_that_only_look_like_ours_are_refused(server: Server, host: str) -> None:
    answer = server.raw(b"GET /health HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
    assert status_of(answer) == 403


@pytest.mark.parametrize(("host", "status"), [("attacker.example", 403), ("localhost", 101)])
def test_foreign_host_is_refused_on_upgrade(server: Server, host: str, status: int) -> None:
    path = f"/sandboxes/{new_sandbox(server.client())}/terminal"
    upgrade = (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    with server.connect() as sock:
        sock.sendall(upgrade.encode() + KEY + b"\r\n")
        assert status_of(sock.recv(65_536)) == status


# -- API-4: Origin, content type -----------------------------------------------------------------


def test_pages_from_elsewhere_may_not_call(server: Server) -> None:
    answer = server.client().post(
        "/execute", json={"code": "1"}, headers={"Origin": "https://attacker.example"}
    )
    assert (answer.status_code, error_of(answer)["code"]) == (403, "origin_refused")
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_pages_of_the_server_itself_may_call(server: Server) -> None:
    answer = server.client().get("/health", headers={"Origin": server.address})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_pages_the_operator_allows_may_call() -> None:
    with running(allowed_origins=["https://app.example"]) as server:
        answer = server.client().get("/stats", headers={"Origin": "https://app.example"})
        other = server.client().get("/stats", headers={"Origin": "https://app.example.evil"})
    assert (answer.status_code, other.status_code) == (200, 403)


def test_foreign_page_gets_no_terminal(server: Server) -> None:
    path = f"ws://127.0.0.1:{server.port}/sandboxes/{new_sandbox(server.client())}/terminal"
    headers = {"X-API-Key": ALICE}
    with pytest.raises(InvalidStatus) as refused:
        connect(path, additional_headers=headers, origin=Origin("https://attacker.example"))
    assert refused.value.response.status_code == 403
    with connect(path, additional_headers=headers) as control:
        assert json.loads(control.recv())["type"] == "started"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_json_needs_its_type(server: Server, kind: str) -> None:
    answer = server.client().post(
        "/execute", content=b'{"code":"1"}', headers={"Content-Type": kind}
    )
    assert (answer.status_code, error_of(answer)["code"]) == (415, "content_type")


# -- API-5: keys first ---------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "wrong"}, {"Authorization": "Basic eA=="}])
def test_nothing_is_served_without_a_key(server: Server, headers: dict[str, str]) -> None:
    client = server.client(None)
    answer = client.post("/execute", json={"code": "1"}, headers=headers)
    assert answer.status_code in {401, 429}
    assert error_of(answer)["code"] in {"unauthorized", "rate_limited"}


def test_wrong_key_is_refused_where_a_token_would_do(server: Server) -> None:
    """Else that would be where keys are tried as fast as anybody can ask."""
    answer = server.client("wrong").get("/signed/x")
    assert error_of(answer)["code"] in {"unauthorized", "rate_limited"}
    assert server.client(None).get("/signed/x").status_code == 404  # the control


def test_bearer_is_as_good_as_the_header(server: Server) -> None:
    answer = server.client(None).get("/stats", headers={"Authorization": f"Bearer {ALICE}"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("key", "announced_bytes", "is_told"),
    [
        (f"X-API-Key: {ALICE}\r\n", 24 << 20, True),
        (f"X-API-Key: {ALICE}\r\n", 1 << 40, False),  # more than would ever be taken
        ("", 24 << 20, False),
    ],
)
def test_refused_body_is_taken_to_its_end_from_who_has_a_key(
    server: Server, key: str, announced_bytes: int, is_told: bool
) -> None:
    """It is sent before the answer is read, as clients do."""
    head = f"PUT /sandboxes/none/files?path=x HTTP/1.1\r\nHost: localhost\r\n{key}"
    answer = b""
    with server.connect() as sock, contextlib.suppress(ConnectionError):
        sock.sendall(f"{head}Content-Length: {announced_bytes}\r\n\r\n".encode())
        sock.sendall(bytes(24 << 20))
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 404") == is_told
    assert bool(answer) == is_told


@pytest.mark.parametrize(
    ("rest", "sent", "is_kept"),
    [
        (b"Content-Length: 2\r\n\r\n", b"{}", True),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"0\r\n\r\n", True),
        (b"Content-Length: 70000\r\n\r\n", bytes(70_000), False),
    ],
    ids=["length", "chunks", "large"],
)
def test_small_body_is_read_before_its_refusal(
    server: Server, rest: bytes, sent: bytes, is_kept: bool
) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n" + KEY
    with server.connect() as sock:
        sock.sendall(head + rest)
        sock.sendall(sent)
        answer = sock.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 404")
    assert (b"connection: close" not in answer) == is_kept


def test_unauthorised_body_is_refused_before_it_is_read(server: Server) -> None:
    before = server.rss_bytes()
    with server.connect() as sock:
        sock.sendall(
            b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 10000000000\r\n\r\n"
        )
        answer = read_all(sock)
    assert status_of(answer) in {401, 429}
    with server.connect() as sock:
        sock.sendall(
            b"POST /execute HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        sent = 0
        try:
            while sent < 256 * 1024 * 1024:
                sock.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                sent += 65_536
        except OSError:
            pass
    assert sent < 64 * 1024 * 1024
    assert server.rss_bytes() - before < 32 * 1024 * 1024


def test_guessing_keys_is_slowed_down_but_good_keys_are_not() -> None:
    with running() as server:
        guesser, owner = server.client("x" * 40), server.client()
        answers = [guesser.get("/stats") for _ in range(15)]
        assert owner.get("/stats").status_code == 200
    statuses = [answer.status_code for answer in answers]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert int(answers[-1].headers["retry-after"]) >= 1


# -- API-15: strict HTTP -------------------------------------------------------------------------

_GET = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n" + KEY
_POST = b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + KEY
SMUGGLED = {
    "two lengths and chunked": _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\r\n",
    "two lengths": _POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "two hosts": b"GET /stats HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n" + KEY + b"\r\n",
    "two keys": _GET + KEY + b"\r\n",
    "folded header": _GET + b"X-A: b\r\n c\r\n\r\n",
    "space before colon": _GET + b"X-A : b\r\n\r\n",
    "bare line feeds": b"GET /stats HTTP/1.1\nHost: localhost\n\n",
    "bad chunk size": _POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhi\r\n0\r\n\r\n",
    "bad chunk end": _POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhiXX0\r\n\r\n",
    "chunked twice": _POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": _POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "length with sign": _POST + b"Content-Length: +2\r\n\r\n{}",
    "NUL in a header": _GET + b"X-A: b\0c\r\n\r\n",
    "no host": b"GET /stats HTTP/1.1\r\n" + KEY + b"\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_ambiguous_requests_are_refused(server: Server, name: str) -> None:
    answer = server.raw(SMUGGLED[name])
    assert status_of(answer) in {400, 403, 415}, answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1, "it was taken for two requests"


def test_plain_requests_beside_them_are_served(server: Server) -> None:
    body = b'{"code":"print(1)"}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for request in (
        _POST + b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
        _POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
    ):
        with server.connect() as sock:
            sock.sendall(request)
            assert status_of(sock.recv(65_536)) == 200


# -- API-16, 17: caps ----------------------------------------------------------------------------


def test_body_without_a_length_has_the_same_cap() -> None:
    with running(body_bytes=100_000) as server:
        client = server.client()
        text = json.dumps({"code": "x = 1 #" + "y" * 200_000}).encode()
        whole = client.post("/execute", content=text, headers={"Content-Type": "application/json"})
        pieces = client.post(
            "/execute",
            content=(text[n : n + 5000] for n in range(0, len(text), 5000)),
            headers={"Content-Type": "application/json"},
        )
        small = client.post("/execute", json={"code": "1"})
    assert (whole.status_code, pieces.status_code, small.status_code) == (413, 413, 200)
    assert error_of(pieces)["code"] == "too_large"


def test_small_routes_have_small_caps(server: Server) -> None:
    client = server.client()
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    answer = client.patch(sandbox, json={"name": "n" * 100_000})
    assert answer.status_code == 413


def test_compressed_bodies_are_not_taken(server: Server) -> None:
    answer = server.client().post(
        "/execute",
        content=b"\x1f\x8b",
        headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
    )
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"\r\n",
        _GET + b"X-Long: " + b"a" * 200_000 + b"\r\n\r\n",
        _GET + b"".join(b"X-%d: a\r\n" % n for n in range(200)) + b"\r\n",
        _GET + b"".join(b"X-%d: a\r\n" % n for n in range(50_000)) + b"\r\n",
    ],
    ids=["url", "header", "many", "very many"],
)
def test_long_heads_are_refused(server: Server, head: bytes) -> None:
    assert status_of(server.raw(head)) in {0, 400, 414, 431}
    assert server.client().get("/health").status_code == 200


def test_deep_json_is_refused(server: Server) -> None:
    deep = b'{"code":"1","arguments":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    answer = server.client().post(
        "/execute", content=deep, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400


def test_query_has_caps(server: Server) -> None:
    query = "&".join(f"metadata.k{n}=v" for n in range(100))
    assert server.client().get(f"/sandboxes?{query}").status_code == 400


# -- API-18: clocks ------------------------------------------------------------------------------


def test_slow_heads_and_bodies_are_hung_up_on() -> None:
    with running(header_s=1, body_s=1, keep_alive_s=1) as server:
        silent, head, body = server.connect(), server.connect(), server.connect()
        head.sendall(b"GET /stats HTTP/1.1\r\nHost: loc")
        body.sendall(_POST + b"Content-Length: 100\r\n\r\n{")
        began = time.monotonic()
        answers = [_until_end(sock) for sock in (silent, head, body)]
        idle = server.connect()
        idle.sendall(_GET + b"\r\n")
        after_answer = _until_end(idle)
    assert time.monotonic() - began < 15
    assert answers[:2] == [b"", b""]
    assert status_of(answers[2]) == 408
    assert status_of(after_answer) == 200


def _until_end(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    found = b""
    with sock:
        try:
            while data := sock.recv(65_536):
                found += data
        except ConnectionResetError:
            pass
    return found


def test_one_address_cannot_take_all_connections() -> None:
    with running(most_connections_per_address=5) as server:
        held = [server.connect() for _ in range(5)]
        assert server.raw(_GET + b"\r\n") == b""
        for sock in held:
            sock.close()
        deadline = time.monotonic() + 5
        while status_of(server.raw(_GET + b"Connection: close\r\n\r\n")) != 200:
            assert time.monotonic() < deadline


def test_small_answers_are_not_delayed(server: Server) -> None:
    client = server.client()
    client.get("/health")
    began = time.monotonic()
    for _ in range(20):
        client.get("/health")
    assert time.monotonic() - began < 0.5  # Nagle with delayed ACK would cost 40 ms each


# -- API-20: errors ------------------------------------------------------------------------------


def test_errors_name_no_path_of_the_host(server: Server) -> None:
    client = server.client()
    texts = [
        client.post("/execute", json={"code": "1", "template": "../../etc"}).text,
        client.post("/execute", json={"code": "1", "isolation": "vm"}).text,
        client.post("/execute", json={"code": "1", "runtime": "process"}).text,
        client.get("/nowhere/at/all").text,
    ]
    for text in texts:
        assert "/root" not in text
        assert "/tmp/" not in text
        assert "Traceback" not in text
        assert "site-packages" not in text


def test_request_id_is_taken_over_only_if_it_is_one(server: Server) -> None:
    client = server.client()
    assert (
        client.get("/health", headers={"X-Request-Id": "a.b-c"}).headers["x-request-id"] == "a.b-c"
    )
    odd = client.get("/health", headers={"X-Request-Id": "a b<script>"})
    assert "<" not in odd.headers["x-request-id"]


def test_wrong_method_says_which_are_right(server: Server) -> None:
    answer = server.client().put("/execute", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_unknown_accept_is_refused(server: Server) -> None:
    answer = server.client().post("/execute", json={"code": "1"}, headers={"Accept": "image/png"})
    assert answer.status_code == 406


def test_healthy_server_needs_no_key_for_that(server: Server) -> None:
    answer = httpx.get(f"{server.address}/health")
    assert answer.json()["status"] == "ok"
