"""Clients that leave while the inside lets the server wait: what they began ends with them.

Whoever has left and is still served keeps others out: requests under way are bounded.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from kit.servers import ALICE, BOB, Server, new_sandbox, running

_MANY = 6
_END_S = 20.0
_STALL_S = 4.0
_MUCH = 500_000_000
"""Bytes that no kernel keeps for anybody."""
_PIECE = bytes(65_536)
_FRAME = b"\x82\xff" + len(_PIECE).to_bytes(8, "big") + bytes(4) + _PIECE
"""A whole message of a WebSocket's client; its mask is nought."""
_TIERS = '[tiers.small]\noutput_mb = 1\n[tenants]\nbob = "small"\n'
_SILENT = """
import socket, sys
sock = socket.create_server(("127.0.0.1", 8000), backlog=99)
print("ready", flush=True)
kept = []
while True: kept.append(sock.accept())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(_TIERS, stall_s=_STALL_S, log_format="json") as made:
        yield made


@pytest.fixture(scope="module")
def port(server: Server) -> str:
    """Return the path of a port inside whose server takes connections and says nothing."""
    with httpx.Client(base_url=server.address, headers={"X-API-Key": ALICE}, timeout=40) as client:
        sandbox = f"/sandboxes/{new_sandbox(client)}"
        made = client.post(
            f"{sandbox}/commands",
            json={"argv": ["python3", "-c", _SILENT], "background": True},
        ).json()["id"]
        with client.stream("GET", f"{sandbox}/commands/{made}/events") as events:
            next(line for line in events.iter_lines() if "ready" in line)
    return f"{sandbox}/ports/8000/"


def head(method: str, path: str, *headers: str, name: str, key: str = ALICE) -> bytes:
    """Return the head of a request that the log calls `name`."""
    fixed = [f"{method} {path} HTTP/1.1", "Host: localhost", f"X-API-Key: {key}"]
    return "\r\n".join([*fixed, f"X-Request-Id: {name}", *headers, "", ""]).encode()


def upgrade(path: str, name: str) -> bytes:
    return head(
        "GET", path, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", name=name,
    )  # fmt: skip


def begin(server: Server, sent: bytes) -> list[socket.socket]:
    socks = [server.connect() for _ in range(_MANY)]
    for sock in socks:
        sock.sendall(sent)
    return socks


def ended(server: Server, name: str) -> int:
    """Return how many requests of that name the log says are over."""
    return server.log.read_text(encoding="utf-8").count(f'"{name}"')


def leave(socks: list[socket.socket], *, is_reset: bool) -> None:
    for sock in socks:
        if is_reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


def keeps_nobody(
    server: Server, socks: list[socket.socket], name: str, more: bytes = b"", *, is_reset: bool
) -> None:
    """Send `more` again and again while it is taken, then leave."""
    fill(socks, more)
    assert ended(server, name) == 0, "the control: they wait"
    leave(socks, is_reset=is_reset)
    end = time.monotonic() + _END_S
    while (count := ended(server, name)) < _MANY:
        assert time.monotonic() < end, f"{count} of {_MANY} requests are over"
        time.sleep(0.1)


def fill(socks: list[socket.socket], more: bytes) -> None:
    """Send `more` again and again until nobody takes anything."""
    sent = dict.fromkeys(socks, 0)
    for sock in socks:
        sock.setblocking(False)
    while more and (writable := select.select([], socks, [], 0.2)[1]):
        for sock in writable:
            sent[sock] += sock.send(more[sent[sock] % len(more) :])


@pytest.mark.parametrize("is_reset", [False, True])
def test_upgrade_that_the_inside_never_answers_ends_with_its_client(
    server: Server, port: str, *, is_reset: bool
) -> None:
    name = f"upgrade-{is_reset}"
    keeps_nobody(server, begin(server, upgrade(port, name)), name, is_reset=is_reset)


@pytest.mark.parametrize("is_reset", [False, True])
def test_upload_that_the_inside_never_reads_ends_with_its_client(
    server: Server, port: str, *, is_reset: bool
) -> None:
    name = f"upload-{is_reset}"
    sent = head("POST", port, f"Content-Length: {_MUCH}", name=name)
    keeps_nobody(server, begin(server, sent), name, _PIECE, is_reset=is_reset)


def test_upload_that_the_inside_never_reads_is_answered(server: Server, port: str) -> None:
    with server.connect() as sock:
        sock.sendall(head("POST", port, f"Content-Length: {_MUCH}", name="answered"))
        fill([sock], _PIECE)
        sock.settimeout(20)
        answer = sock.recv(65_536)
    assert b" 502 " in answer
    assert b"port_unreachable" in answer


def test_batch_over_its_quota_ends_with_its_client(server: Server) -> None:
    with httpx.Client(base_url=server.address, headers={"X-API-Key": BOB}, timeout=40) as client:
        loud = {"code": "print('a' * 1_100_000)", "limits": {"output_kb": 2000}}
        while client.post("/execute", json=loud).status_code != 429:
            pass
    body = json.dumps({"executions": [{"code": "1"}]}).encode()
    sent = head(
        "POST", "/executions/batch", "Content-Type: application/json",
        f"Content-Length: {len(body)}", name="batch", key=BOB,
    )  # fmt: skip
    keeps_nobody(server, begin(server, sent + body), "batch", is_reset=False)


def test_terminal_that_reads_nothing_ends_with_its_client(server: Server) -> None:
    with httpx.Client(base_url=server.address, headers={"X-API-Key": ALICE}, timeout=40) as client:
        sandbox = f"/sandboxes/{new_sandbox(client)}"
        deaf = quote("stty raw -echo; echo deaf; sleep 600")
        socks = [server.connect() for _ in range(_MANY)]
        for sock in socks:
            sock.sendall(upgrade(f"{sandbox}/terminal?command={deaf}", "terminal"))
            read_until(sock, b"deaf")
        keeps_nobody(server, socks, "terminal", _FRAME, is_reset=True)
        commands = client.get(f"{sandbox}/commands").json()["commands"]
    assert {each["status"] for each in commands} == {"ended"}


def read_until(sock: socket.socket, wanted: bytes) -> None:
    found = b""
    while wanted not in found:
        data = sock.recv(65_536)
        assert data, found
        found += data
