"""Bytes at a gateway: what is no proper HTTP, what waits, what switches, what is cut off."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

from kit.cluster.processes import Cluster, cluster
from kit.servers import ADMIN, ALICE, new_sandbox, read_all, run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

KEY = f"x-api-key: {ALICE}\r\n"


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with cluster(1) as made:
        yield made


def _connected(made: Cluster) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", made.gateways[0].port))
    sock.settimeout(10)
    return sock


def _asked(made: Cluster, text: str, body: bytes = b"") -> bytes:
    """Return everything that comes until the gateway closes."""
    with _connected(made) as sock:
        sock.sendall(text.encode() + body)
        return read_all(sock)


def _execute(code: str, more: str = "") -> tuple[str, bytes]:
    body = json.dumps({"code": code}).encode()
    head = f"POST /execute HTTP/1.1\r\nhost: localhost\r\n{KEY}content-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n{more}\r\n", body


@pytest.mark.parametrize(
    "text",
    [
        "nonsense\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        f"POST /execute HTTP/1.1\r\nhost: localhost\r\n{KEY}content-length: -1\r\n\r\n",
        "CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        f"GET /{'a' * 20_000} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        f"GET / HTTP/1.1\r\nhost: localhost\r\nx: {'a' * 70_000}\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: localhost\r\nx : y\r\n\r\n",
        f"POST /execute HTTP/1.1\r\nhost: localhost\r\n{KEY}transfer-encoding: chunked\r\n"
        "content-length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_proper_request_is_refused_and_cut(one: Cluster, text: str) -> None:
    said = _asked(one, text)
    assert said.startswith(b"HTTP/1.1 400 "), said[:200]
    assert b'"code":"usage"' in said


def test_second_request_in_one_message_never_reaches_a_node_inside_the_first(one: Cluster) -> None:
    """A body is as long as its head says: what follows is a request of its own, without a key."""
    head, body = _execute("print(1)")
    hidden = "GET /sandboxes HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with _connected(one) as sock:
        sock.sendall(head.encode() + body + hidden.encode())
        said = read_all(sock)
    assert said.count(b"HTTP/1.1 ") == 2
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 401 " in said


def test_upgrade_that_is_not_served_is_ignored_and_hides_no_request(one: Cluster) -> None:
    hidden = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = (
        f"POST /execute HTTP/1.1\r\nhost: localhost\r\n{KEY}connection: upgrade, close\r\n"
        f"upgrade: h2c\r\ncontent-length: {len(hidden)}\r\n\r\n"
    )
    said = _asked(one, head, hidden)
    assert said.count(b"HTTP/1.1 ") == 1, said
    assert said.startswith(b"HTTP/1.1 4")  # the hidden request was a body, and no JSON


def test_client_that_waits_to_be_asked_for_its_body_is_asked(one: Cluster) -> None:
    head, body = _execute("print(5)", "expect: 100-continue\r\nconnection: close\r\n")
    with _connected(one) as sock:
        sock.sendall(head.encode())
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        said = read_all(sock)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b'"stdout":"5\\n"' in said


def test_connection_serves_many_requests_and_an_old_client_one(one: Cluster) -> None:
    request = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with _connected(one) as sock:
        for _ in range(3):
            sock.sendall(request.encode())
            assert b'"status":"ok"' in sock.recv(65_536)
    said = _asked(one, "GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n")
    assert b"connection: close" in said


def test_head_has_the_length_and_no_body(one: Cluster) -> None:
    client = one.client()
    answer = client.head("/templates")
    assert (answer.status_code, answer.content) == (200, b"")
    assert client.get("/templates").status_code == 200


def test_client_that_leaves_ends_what_it_asked_for(one: Cluster) -> None:
    head, body = _execute("import time; time.sleep(600)")
    with _connected(one) as sock:
        sock.sendall(head.encode() + body)
        wait_until(lambda: _in_flight(one) == 1, "it runs")
    wait_until(lambda: _in_flight(one) == 0, "it has ended")


def _in_flight(made: Cluster) -> int:
    return int(made.client(key=ADMIN).get("/nodes").json()["nodes"][0]["in_flight"])


def test_terminal_goes_through_in_both_directions(one: Cluster) -> None:
    client = one.client()
    made = new_sandbox(client)
    address = f"ws://127.0.0.1:{one.gateways[0].port}/sandboxes/{made}/terminal"
    with connect(address, additional_headers={"x-api-key": ALICE}, open_timeout=20) as terminal:
        terminal.send(b"echo $((6*7))\n")
        said = b""
        while b"42" not in said:
            piece = terminal.recv(timeout=20)
            said += piece if isinstance(piece, bytes) else piece.encode()
    client.delete(f"/sandboxes/{made}")


def test_requests_that_come_together_are_answered_in_order(one: Cluster) -> None:
    asked = [_execute(f"print({n})") for n in range(5)]
    last = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    text = b"".join(head.encode() + body for head, body in asked) + last.encode()
    for at in (len(text), 700, 150):  # together, and in pieces that end anywhere
        with _connected(one) as sock:
            for begin in range(0, len(text), at):
                sock.sendall(text[begin : begin + at])
            said = read_all(sock)
        assert said.count(b"HTTP/1.1 200 ") == 6
        places = [said.index(b'"stdout":"%d\\n"' % n) for n in range(5)]
        assert places == sorted(places)


def test_token_of_a_port_opens_it_through_a_gateway_without_a_key(one: Cluster) -> None:
    client, stranger = one.client(), one.client(key=None)
    made = new_sandbox(client)
    path = f"/sandboxes/{made}"
    serve = "import subprocess; subprocess.Popen(['python3', '-m', 'http.server', '8000'])"
    run_cell(client, path, f"open('hello.txt', 'w').write('inside'); {serve}")
    signed = client.post(f"{path}/ports/sign", json={"port": 8000}).json()
    token = signed["token"]
    assert token.startswith(made[:4])
    inside = f"{path}/ports/8000/hello.txt"
    wait_until(lambda: client.get(inside).status_code == 200, "it listens")
    assert stranger.get(inside).status_code == 401
    assert stranger.get(inside, params={"cellwall_token": token}).text == "inside"
    # Beside a token `Authorization` is for the server inside, and goes there.
    for_inside = {"authorization": "Bearer of-the-application"}
    opened = stranger.get(inside, params={"cellwall_token": token}, headers=for_inside)
    assert opened.text == "inside"
    assert stranger.get(inside, headers=for_inside).status_code == 401
    wrong = {"cellwall_token": token[:-2] + "xx"}
    assert stranger.get(inside, params=wrong).status_code in {401, 403, 404}
    client.delete(path)
