"""Request bodies are bounded together: callers that send slowly, or never end, cannot fill memory.

Each connection sends all of a large body but its last byte, and then nothing. What the server holds
is read from outside, as its resident memory.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kit.servers import ALICE, BOB, Server, error_of, read_all, running

_MIB = 1024 * 1024
_BODY_BYTES = 8 * _MIB
_OF_A_TENANT = 4
"""So many fit into half of the 64 MiB there are at least."""
_MANY = 24
_BATCH = ("/executions/batch", "application/x-ndjson")
_KINDS = {
    "program": ("/execute", "application/json"),
    "message": ("/mcp", "application/json"),
}


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    with running(bodies_mb=64, body_bytes=_BODY_BYTES) as made:
        yield made


def _program(code: str = "print(6 * 7)", **more: object) -> bytes:
    """Return a request of the largest size."""
    empty = json.dumps({"code": f"{code}#", **more})
    filling = "x" * (_BODY_BYTES - len(empty))
    return json.dumps({"code": f"{code}#{filling}", **more}).encode()


def _stalled(server: Server, kind: tuple[str, str]) -> socket.socket:
    """Send a request but its last byte; what the server refuses meanwhile is not sent."""
    path, media = kind
    accept = media if kind == _BATCH else "application/json, text/event-stream"
    body = _program()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {ALICE}\r\n"
        f"content-type: {media}\r\naccept: {accept}\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    sock = server.connect()
    with contextlib.suppress(ConnectionError):
        sock.sendall(head.encode() + body[:-1])
    return sock


@contextlib.contextmanager
def _many(
    server: Server, count: int, kind: tuple[str, str] = _KINDS["program"]
) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_stalled(server, kind)) for _ in range(count)]


def _refused(socks: list[socket.socket], count: int) -> dict[socket.socket, bytes]:
    """Return what those were told whose connection the server has closed, once they are `count`."""
    told = dict.fromkeys(socks, b"")
    closed: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ, sock)
        while len(closed) < count:
            ready = selector.select(20)
            assert ready, f"{len(closed)} of {count} were closed"
            for key, _ in ready:
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = key.data.recv(65536)
                told[key.data] += data
                if not data:
                    selector.unregister(key.data)
                    closed.append(key.data)
    return {sock: told[sock] for sock in closed}


def _until_read(server: Server, socks: list[socket.socket]) -> None:
    """Return when the server has taken all that was sent from the kernel, and looked at it.

    Asked of the kernel: a request to the server would take bytes itself, and spoil one of them.
    """
    ports = {sock.getsockname()[1] for sock in socks}
    end = time.monotonic() + 30
    while waiting := _queued_bytes(server.port, ports):
        assert time.monotonic() < end, f"{waiting} bytes are not read"
        assert server.client(None).get("/health").status_code == 200
    # Its loop takes turns: what it had read before this came has been looked at when this ends.
    assert server.client(None).get("/health").status_code == 200


def _queued_bytes(port: int, ports: set[int]) -> int:
    """Return what lies between clients at `ports` and the server: sent or received, and not read.

    Lines of /proc/net/tcp: number, local address:port, remote, state, tx_queue:rx_queue, in
    hexadecimal (Documentation/networking/proc_net_tcp.rst).
    """
    found = 0
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        local, remote = (int(word.partition(":")[2], 16) for word in words[1:3])
        sent, received = (int(word, 16) for word in words[4].split(":"))
        if local == port and remote in ports:
            found += received
        elif remote == port and local in ports:
            found += sent
    return found


def _ended(sock: socket.socket) -> bytes:
    """Send the last byte, return the answer."""
    sock.sendall(b"}")
    return read_all(sock)


def _until_taken(client: httpx.Client) -> None:
    """What is held of connections that are gone is given back as soon as the server sees it."""
    for _ in range(200):
        answer = client.post("/execute", content=_program(), headers=_JSON)
        if answer.status_code == 200:
            return
        assert answer.status_code == 503, answer.text[:500]
    raise AssertionError("never given back")


_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("kind", _KINDS.values(), ids=_KINDS)
def test_callers_that_never_end_hold_their_tenants_share_at_most(
    own: Server, kind: tuple[str, str]
) -> None:
    own.client().post(kind[0], json={"code": "1"})  # what serves it is imported
    before = own.rss_bytes()
    with _many(own, _MANY, kind) as socks:
        refused = _refused(socks, _MANY - _OF_A_TENANT)
        grown = own.rss_bytes() - before
        assert own.client(BOB).post("/execute", json={"code": "1"}).status_code == 200
    for told in refused.values():
        if told:  # what came too late to be thrown away resets the connection
            assert told.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in told.lower()
            assert b"body: those of this tenant under way hold all of the 32 MiB" in told
    assert any(refused.values())
    assert grown < 2 * _OF_A_TENANT * _BODY_BYTES
    _until_taken(own.client())


def test_lines_of_batches_that_never_end_are_refused_one_by_one() -> None:
    with running(bodies_mb=64, body_bytes=_BODY_BYTES) as server:
        before = server.rss_bytes()
        with _many(server, _OF_A_TENANT, _BATCH) as first:
            _until_read(server, first)
            with _many(server, _MANY - _OF_A_TENANT, _BATCH) as others:
                refused = [_ended(sock) for sock in others]
            taken = [_ended(sock) for sock in first]
        grown = server.peak_bytes() - before
    for told in refused:
        assert b'{"index":0,"error":{"code":"capacity","message":"body: those of this' in told
        assert b'{"type":"end","count":1,"failed":1}' in told
    assert all(b'"verdict":"ok"' in told for told in taken)
    assert grown < _MANY * _BODY_BYTES // 2


@pytest.mark.parametrize("kind", [*_KINDS.values(), _BATCH], ids=[*_KINDS, "programs"])
def test_control_without_that_they_hold_what_they_send(kind: tuple[str, str]) -> None:
    with running(bodies_mb=4096, body_bytes=_BODY_BYTES) as server:
        before = server.rss_bytes()
        with _many(server, _MANY, kind) as socks:
            answers = [_ended(sock) for sock in socks]
        assert not any(b'"capacity"' in each for each in answers)
        assert all(each.startswith(b"HTTP/1.1 ") for each in answers)
        assert server.peak_bytes() - before > _MANY * _BODY_BYTES // 2


def test_who_was_taken_in_is_served(own: Server) -> None:
    with _many(own, _OF_A_TENANT + 1) as socks:
        refused = _refused(socks, 1)
        taken = next(sock for sock in socks if sock not in refused)
        taken.sendall(b"}")
        assert taken.recv(65536).startswith(b"HTTP/1.1 200 ")
    _until_taken(own.client())


def test_a_large_program_sets_aside_what_the_server_needs_for_it() -> None:
    """Whoever comes back from the disk when it is its turn has no connection to be refused."""
    with running(f"[tiers.default]\nmemory_mb = {512 + 31}\n") as server:
        client = server.client()
        assert client.post("/execute", json={"code": "1"}).status_code == 200
        refused = client.post("/execute", content=_program(), headers=_JSON)
        assert refused.status_code == 400
        assert "can never fit" in error_of(refused)["message"]
        smaller = _program(limits={"memory_mb": 511})
        assert client.post("/execute", content=smaller, headers=_JSON).status_code == 200


def test_what_runs_for_nobody_is_counted_until_its_end(own: Server) -> None:
    client = own.client()
    body = _program("import time; time.sleep(600)", background=True, timeout=600)
    ids = [
        client.post("/execute", content=body, headers=_JSON).json()["execution_id"]
        for _ in range(_OF_A_TENANT)
    ]
    refused = client.post("/execute", content=body, headers=_JSON)
    assert refused.status_code == 503, refused.text[:500]
    for each in ids:
        assert client.delete(f"/executions/{each}").status_code == 200
    _until_taken(client)
