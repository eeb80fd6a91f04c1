"""HTTP and WebSockets to a server inside: what passes, and what never does (API-7)."""

from __future__ import annotations

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from kit.server.echoing import raw, served
from kit.servers import ALICE, BOB, Server, error_of, running


@pytest.fixture(scope="module")
def inner(server: Server) -> tuple[str, str]:
    return served(server)


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


def test_request_arrives_as_it_was_sent_but_without_our_key(
    client: httpx.Client, inner: tuple[str, str]
) -> None:
    path, _ = inner
    seen = client.post(
        f"{path}/a%20b/c?x=1&y=%2F", content=b"z" * 300_000, headers={"Authorization": "Basic eA=="}
    ).json()
    assert (seen["method"], seen["path"], seen["size"]) == ("POST", "/a%20b/c?x=1&y=%2F", 300_000)
    assert "x-api-key" not in seen["headers"]
    assert seen["headers"]["authorization"] == "Basic eA=="  # the inside's own
    assert seen["headers"]["host"] == "localhost:8000"
    assert seen["headers"]["x-forwarded-prefix"] == path


def test_our_bearer_stays_outside(server: Server, inner: tuple[str, str]) -> None:
    headers = {"Authorization": f"Bearer {ALICE}"}
    seen = server.client(None).get(f"{inner[0]}/", headers=headers).json()
    assert "authorization" not in seen["headers"]
    assert ALICE not in str(seen)


@pytest.mark.parametrize("key", [ALICE, BOB])
def test_our_bearer_beside_our_key_stays_outside(
    client: httpx.Client, inner: tuple[str, str], key: str
) -> None:
    """Control: a bearer that is no key of ours is the inside's own."""
    seen = client.get(f"{inner[0]}/", headers={"Authorization": f"bearer  {key}"}).json()
    assert "authorization" not in seen["headers"]
    assert key not in str(seen)
    seen = client.get(f"{inner[0]}/", headers={"Authorization": "Bearer its-own"}).json()
    assert seen["headers"]["authorization"] == "Bearer its-own"


def test_bearer_of_the_inside_passes_beside_a_token(server: Server, inner: tuple[str, str]) -> None:
    """Only beside one that opens this port: other bearers are refused keys, and counted."""
    path = inner[0]
    signing = f"{path.partition('/ports/')[0]}/ports/sign"
    token, other = (
        server.client().post(signing, json={"port": port}).json()["token"] for port in (8000, 80)
    )
    stranger, own = server.client(None), {"Authorization": "Bearer its-own"}
    found = stranger.get(f"{path}/", headers={"X-Cellwall-Token": token, **own})
    assert found.json()["headers"]["authorization"] == "Bearer its-own"
    assert token not in found.text
    found = stranger.get(f"{path}/?cellwall_token={token}", headers=own)
    assert "authorization" not in found.json()["headers"]  # a proxy's, for all anybody knows
    assert token not in found.text
    ours = {"X-Cellwall-Token": token, "Authorization": f"Bearer {ALICE}"}
    assert "authorization" not in stranger.get(f"{path}/", headers=ours).json()["headers"]
    for wrong in (other, token[:-6] + "AAAAAA", ""):
        answer = stranger.get(f"{path}/", headers={"X-Cellwall-Token": wrong, **own})
        assert answer.status_code in {401, 429}
    asked = stranger.get(path.partition("/ports/")[0], headers={"X-Cellwall-Token": token, **own})
    assert asked.status_code in {401, 429}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_every_method_passes(client: httpx.Client, inner: tuple[str, str], method: str) -> None:
    assert client.request(method, f"{inner[0]}/").json()["method"] == method


def test_answer_is_made_harmless_for_the_origin(
    client: httpx.Client, inner: tuple[str, str]
) -> None:
    """K17: a page from inside has an origin of its own and sets nothing of ours."""
    answer = client.get(f"{inner[0]}/")
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["content-security-policy"].startswith("sandbox ")
    assert "allow-same-origin" not in answer.headers["content-security-policy"]
    assert "set-cookie" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


def test_redirects_stay_below_the_port(client: httpx.Client, inner: tuple[str, str]) -> None:
    assert client.get(f"{inner[0]}/redirect").headers["location"] == f"{inner[0]}/there?x=1"


def test_streams_pass(client: httpx.Client, inner: tuple[str, str]) -> None:
    assert client.get(f"{inner[0]}/stream").text == "0\n1\n2\n"


def test_bad_answers_are_502_or_cleaned(client: httpx.Client, inner: tuple[str, str]) -> None:
    nonsense = client.get(f"{inner[0]}/nonsense")
    assert (nonsense.status_code, error_of(nonsense)["code"]) == (502, "port_protocol")
    split = client.get(f"{inner[0]}/split")
    assert split.status_code in {200, 502}
    assert "x-app-a" not in split.headers


@pytest.mark.parametrize("status", [600, 700, 999])
def test_status_that_is_none_is_502(
    client: httpx.Client, inner: tuple[str, str], status: int
) -> None:
    said = b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nok" % status
    answer = client.get(inner[0] + raw(said))
    assert (answer.status_code, error_of(answer)["code"]) == (502, "port_protocol")
    assert client.get(inner[0] + raw(said.replace(b"%d" % status, b"599"))).text == "ok"


@pytest.mark.parametrize("status", [204, 304])
def test_length_of_a_body_that_never_comes_is_dropped(
    client: httpx.Client, inner: tuple[str, str], status: int
) -> None:
    answer = client.get(inner[0] + raw(b"HTTP/1.1 %d X\r\nContent-Length: 9\r\n\r\n" % status))
    assert (answer.status_code, answer.content) == (status, b"")
    assert "content-length" not in answer.headers


def test_chunks_count_and_not_the_length_beside_them(
    client: httpx.Client, inner: tuple[str, str]
) -> None:
    said = b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    answer = client.get(inner[0] + raw(b"HTTP/1.1 200 X\r\n" + said))
    assert (answer.status_code, answer.text) == (200, "ok")


def test_value_with_white_space_behind_it_passes(server: Server, inner: tuple[str, str]) -> None:
    head = f"GET {inner[0]}/ HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {ALICE}\r\n"
    answer = server.raw(f"{head}X-App-Foo: bar \t\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"x-app-foo": "bar"' in answer


def test_body_that_is_refused_is_refused_while_the_inside_waits(
    server: Server, inner: tuple[str, str]
) -> None:
    head = f"POST {inner[0]}/silent HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {ALICE}\r\n"
    answer = server.raw(f"{head}Content-Length: 2000000000\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 "), answer


def test_body_that_does_not_come_is_refused_while_the_inside_waits() -> None:
    with running(body_s=1) as server:
        head = f"POST {served(server)[0]}/silent HTTP/1.1\r\nHost: localhost\r\n"
        with server.connect() as sock:
            sock.sendall(f"{head}X-API-Key: {ALICE}\r\nContent-Length: 9\r\n\r\n".encode())
            assert sock.recv(65_536).startswith(b"HTTP/1.1 408 ")


def test_nobody_there_is_502(client: httpx.Client, inner: tuple[str, str]) -> None:
    answer = client.get(inner[0].replace("8000", "8001") + "/")
    assert (answer.status_code, error_of(answer)["code"]) == (502, "port_unreachable")


@pytest.mark.parametrize("port", ["0", "65536", "x", "9" * 50, "-1"])
def test_what_is_no_port_is_refused(
    client: httpx.Client, inner: tuple[str, str], port: str
) -> None:
    assert client.get(inner[0].replace("8000", port) + "/").status_code == 400


def test_websocket_passes_both_ways(server: Server, inner: tuple[str, str]) -> None:
    address = f"ws://127.0.0.1:{server.port}{inner[0]}/socket"
    with connect(address, additional_headers={"X-API-Key": ALICE}) as socket:
        socket.send("text")
        assert socket.recv(timeout=10) == "text"
        socket.send(b"\x00\xff")
        assert socket.recv(timeout=10) == b"\x00\xff"


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        (b"close:\x03\xe8", 1000, ""),
        (b"close:\x0f\xa1why \xc3\xa4", 4001, "why ä"),
        (b"close:", 1000, ""),
        (b"close:\x03\xed", 1011, ""),  # 1005, which is never sent
        (b"break off", 1011, ""),
    ],
)
def test_websocket_is_closed_as_the_inside_closes_it(
    server: Server, inner: tuple[str, str], said: bytes, code: int, reason: str
) -> None:
    address = f"ws://127.0.0.1:{server.port}{inner[0]}/socket"
    with connect(address, additional_headers={"X-API-Key": ALICE}) as socket:
        socket.send(said)
        with pytest.raises(ConnectionClosed) as raised:
            socket.recv(timeout=10)
    assert raised.value.rcvd is not None
    assert (raised.value.rcvd.code, raised.value.rcvd.reason) == (code, reason)


def test_port_needs_a_key_or_its_own_token(server: Server, inner: tuple[str, str]) -> None:
    path, environment = inner
    sandbox = path.partition("/ports/")[0]
    stranger = server.client(None)
    assert stranger.get(f"{path}/").status_code in {401, 429}
    assert server.client(BOB).get(f"{path}/").status_code == 404
    signed = server.client().post(f"{sandbox}/ports/sign", json={"port": 8000}).json()
    token = signed["token"]
    assert token not in environment
    by_header = stranger.get(f"{path}/", headers={"X-Cellwall-Token": token}).json()
    by_query = stranger.get(signed["url"] + "&a=b").json()
    assert by_query["path"] == "/?a=b"
    assert token not in str(by_header) + str(by_query)
    other_port = path.replace("8000", "8001")
    assert stranger.get(f"{other_port}/", headers={"X-Cellwall-Token": token}).status_code == 404
    assert stranger.get(f"{sandbox}", headers={"X-Cellwall-Token": token}).status_code in {401, 429}
    forged = token[:-6] + "AAAAAA"
    assert stranger.get(f"{path}/", headers={"X-Cellwall-Token": forged}).status_code == 404
