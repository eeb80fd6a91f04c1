"""A tenant that keeps everything open it can, and the others behind the same address.

API-18: caps for each key's tenant, for every kind of what stays open. The witness is the other
tenant, and who has no key. Control: with a quota as large as the server, nobody else is served.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from kit.servers import (
    ALICE,
    BOB,
    Server,
    configuration,
    error_of,
    new_sandbox,
    running,
    start,
)

_ALL = 48
_SHARE = _ALL // 8
_SLEEP = "import time; time.sleep(600)"
_KEY = f"Host: localhost\r\nX-API-Key: {ALICE}\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of few connections, behind what it takes for a proxy."""
    with running(most_connections=_ALL, proxies=["127.0.0.0/8"], flag_refusals=0) as made:
        yield made


class Opened:
    """Connections of one tenant, from one address, each with a request that does not end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stack = contextlib.ExitStack()
        self._sessions = 0

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, head: str, more: str = "") -> bytes:
        """Send a request on a connection of its own; return the first words of its answer."""
        sock = self._stack.enter_context(self._server.connect())
        sock.sendall(f"{head} HTTP/1.1\r\n{_KEY}{more}\r\n".encode())
        return sock.recv(200)

    def mcp(self) -> bytes:
        """Begin a session of the protocol, and open its stream."""
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
        hello["clientInfo"] = {"name": "test", "version": "1"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        with httpx.Client(base_url=self._server.address, timeout=40) as client:
            headers = {"X-API-Key": ALICE, "Accept": "application/json, text/event-stream"}
            began = client.post("/mcp", json=body, headers=headers)
        if began.status_code != 200:
            return began.text.encode() + b" 429 " * (began.status_code == 429)
        session = f"Mcp-Session-Id: {began.headers['mcp-session-id']}\r\n"
        said = self.ask("GET /mcp", f"Accept: text/event-stream\r\n{session}")
        until = time.monotonic() + 20
        while b" 429 " in said and self._sessions < _SHARE and time.monotonic() < until:
            # The call that began the session counts until the server has put it away.
            said = self.ask("GET /mcp", f"Accept: text/event-stream\r\n{session}")
        self._sessions += 1
        return said

    def websocket(self, path: str, key: str | None = ALICE) -> int:
        """Open one; return the status."""
        headers = {} if key is None else {"X-API-Key": key}
        address = f"ws://127.0.0.1:{self._server.port}{path}"
        try:
            self._stack.enter_context(connect(address, additional_headers=headers))
        except InvalidStatus as refused:
            return refused.response.status_code
        return 101


@pytest.fixture(scope="module")
def box(server: Server) -> str:
    """A sandbox with a server inside that answers slowly, and WebSockets at once."""
    client = server.client()
    box = f"/sandboxes/{new_sandbox(client)}"
    program = (
        "import socket, time\ns = socket.create_server(('127.0.0.1', 8000)); kept = []\n"
        "print('ready', flush=True)\nwhile True:\n    line = s.accept()[0]; line.recv(9999)\n"
        "    line.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\nx'); kept.append(line)\n"
    )
    made = client.post(
        f"{box}/commands", json={"argv": ["python", "-c", program], "background": True}
    )
    with client.stream("GET", f"{box}/commands/{made.json()['id']}/events") as events:
        assert "ready" in next(events.iter_lines())
    return box


@pytest.fixture
def program(server: Server) -> Iterator[str]:
    client = server.client()
    asked = {"code": _SLEEP, "background": True, "timeout": 600}
    made = client.post("/execute", json=asked).json()["execution_id"]
    yield f"/executions/{made}"
    client.delete(f"/executions/{made}")


def serves_others(server: Server) -> bool:
    """Report whether a stranger and the other tenant are served."""
    with contextlib.suppress(httpx.HTTPError):
        bob = server.client(BOB)
        alive = httpx.get(f"{server.address}/health", timeout=20).status_code
        ran = bob.post("/execute", json={"code": "print(6 * 7)"})
        return (alive, ran.status_code) == (200, 200) and ran.json()["stdout"] == "42\n"
    return False


KINDS = {
    "events": lambda it, box, program: it.ask(f"GET {program}/events"),
    "server-sent events": lambda it, box, program: it.ask(
        f"GET {program}/events", "Accept: text/event-stream\r\n"
    ),
    "watch": lambda it, box, program: it.ask(f"GET {box}/files/watch?path=."),
    "port": lambda it, box, program: it.ask(f"GET {box}/ports/8000/"),
    "MCP": lambda it, box, program: it.mcp(),
    "terminal": lambda it, box, program: it.websocket(f"{box}/terminal"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_stream_takes_more_than_a_share(
    server: Server, box: str, program: str, kind: str
) -> None:
    with Opened(server) as opened:
        found = [KINDS[kind](opened, box, program) for _ in range(_SHARE + 2)]
        is_open = [each == 101 or b" 200 " in bytes(str(each), "ascii") for each in found]
        assert is_open == [True] * _SHARE + [False] * 2
        assert "429" in str(found[-1])
        refused = server.client().get("/stats")
        assert (refused.status_code, error_of(refused)["quota"]) == (429, "connections")
        assert refused.headers["retry-after"] == "1"
        assert serves_others(server)
    wait_free(server)


def wait_free(server: Server) -> None:
    """Return when what was open has ended, and the tenant is served again."""
    deadline = time.monotonic() + 20
    while server.client().get("/quota").status_code == 429:
        assert time.monotonic() < deadline
    use = server.client().get("/quota").json()
    assert use["quotas"]["connections"] == _SHARE
    assert use["use"]["connections"] <= _SHARE


def test_long_polls_and_calls_of_all_kinds_count_together(
    server: Server, box: str, program: str
) -> None:
    with Opened(server) as opened, contextlib.ExitStack() as stack:
        for _ in range(2):  # an answer that is held says nothing yet
            sock = stack.enter_context(server.connect())
            sock.sendall(f"GET {program}?wait=60 HTTP/1.1\r\n{_KEY}\r\n".encode())
        for kind in ("events", "server-sent events", "watch", "port"):
            KINDS[kind](opened, box, program)
        wait_until(lambda: b" 429 " in opened.ask("GET /stats"))
        assert serves_others(server)
    wait_free(server)


def wait_until(is_true: Any) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline


def test_what_a_signed_token_opens_counts_for_who_signed(server: Server, box: str) -> None:
    signed = server.client().post(f"{box}/ports/sign", json={"port": 8000}).json()["token"]
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(_SHARE + 1):
            sock = stack.enter_context(server.connect())
            head = f"GET {box}/ports/8000/?cellwall_token={signed} HTTP/1.1\r\nHost: localhost\r\n"
            sock.sendall(f"{head}\r\n".encode())
            found.append(sock.recv(100))
        assert [b" 200 " in each for each in found] == [True] * _SHARE + [False]
        assert b" 429 " in found[-1]
        assert server.client().get("/stats").status_code == 429
        assert serves_others(server)
    wait_free(server)


def test_refused_call_with_a_slow_body_is_no_connection_more(server: Server, program: str) -> None:
    """A byte now and then would keep it for a minute, as it does where a body is too long."""
    with Opened(server) as opened:
        for _ in range(_SHARE):
            opened.ask(f"GET {program}/events")
        with server.connect() as sock:
            head = f"POST /execute HTTP/1.1\r\n{_KEY}Content-Type: application/json\r\n"
            sock.sendall(f"{head}Content-Length: 5000\r\n\r\n{{".encode())
            sock.settimeout(0.3)
            began, said = time.monotonic(), b""
            with contextlib.suppress(ConnectionError):  # it is closed while we send
                while time.monotonic() - began < 20:
                    with contextlib.suppress(TimeoutError):
                        said += sock.recv(1000)
                    sock.sendall(b" ")
            assert time.monotonic() - began < 10
            assert b" 429 " in said
    wait_free(server)


def test_control_without_the_quota_nobody_else_is_served() -> None:
    tiers = f"[tiers.default]\nconnections = {2 * _ALL}\n"
    with running(tiers, most_connections=_ALL, proxies=["127.0.0.1"]) as server:
        made = server.client().post(
            "/execute", json={"code": _SLEEP, "background": True, "timeout": 600}
        )
        path = f"/executions/{made.json()['execution_id']}"
        with Opened(server) as opened:
            assert any(b" 503 " in opened.ask(f"GET {path}/events") for _ in range(_ALL + 2))
            assert not serves_others(server)
        server.client().delete(path)


def test_address_of_a_proxy_is_everybodys() -> None:
    """Control: another address than the proxies' has its bound."""
    for proxies, is_served in ((["127.0.0.1"], True), (["10.0.0.0/8"], False), ([], False)):
        with running(most_connections_per_address=3, proxies=proxies) as server:
            socks = [server.connect() for _ in range(6)]
            try:
                assert asked_on(socks[-1]) is is_served
                assert asked_on(socks[0])
            finally:
                for sock in socks:
                    sock.close()


def asked_on(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return b" 200 " in sock.recv(1000)
    return False


def test_connections_that_nobody_uses_give_way() -> None:
    """Whoever keeps them open: a key is no more needed for that than for `/health`."""
    with running(most_connections=16, proxies=["127.0.0.1"]) as server:
        idle = [server.connect() for _ in range(14)]
        assert all(map(asked_on, idle))
        more = [server.connect() for _ in range(10)]
        try:
            assert all(map(asked_on, more))
            assert idle[0].recv(10) == b""  # the longest unused was closed
            assert serves_others(server)
        finally:
            for sock in (*idle, *more):
                sock.close()


def test_share_holds_behind_a_unix_socket() -> None:
    folder = Path(tempfile.mkdtemp(prefix="cw"))
    config = configuration(most_connections=_ALL)
    server = start(folder, "--unix", str(folder / "s"), config=config)
    try:
        made = server.client().post(
            "/execute", json={"code": _SLEEP, "background": True, "timeout": 600}
        )
        path = f"/executions/{made.json()['execution_id']}/events"
        with contextlib.ExitStack() as stack:
            found = []
            for _ in range(_SHARE + 1):
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(20)
                sock.connect(str(folder / "s"))
                sock.sendall(f"GET {path} HTTP/1.1\r\n{_KEY}\r\n".encode())
                found.append(sock.recv(200))
            assert [b" 200 " in each for each in found] == [True] * _SHARE + [False]
            assert server.client(BOB).get("/stats").status_code == 200
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
