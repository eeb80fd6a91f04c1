"""Terminals over WebSockets: a real pty, sizes, signals, floods (Q10)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from kit.servers import ADMIN, ALICE, BOB, Server, new_sandbox


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


@pytest.fixture
def sandbox(client: httpx.Client) -> str:
    return new_sandbox(client)


@contextmanager
def terminal(
    server: Server, sandbox: str, query: str = "", key: str = ALICE
) -> Iterator[tuple[ClientConnection, dict[str, Any]]]:
    address = f"ws://127.0.0.1:{server.port}/sandboxes/{sandbox}/terminal{query}"
    with connect(address, additional_headers={"X-API-Key": key}, max_size=None) as socket:
        yield socket, json.loads(socket.recv())


def read_until(socket: ClientConnection, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        message = socket.recv(timeout=20)
        assert isinstance(message, bytes), message
        found += message
    return found


def test_shell_is_on_a_terminal_of_the_asked_size(server: Server, sandbox: str) -> None:
    with terminal(server, sandbox, "?rows=40&cols=132") as (socket, started):
        assert (started["rows"], started["cols"]) == (40, 132)
        socket.send(b"stty size; tty\n")
        found = read_until(socket, b"/dev/pts/")
        assert b"40 132" in found


def test_resize_is_seen_inside(server: Server, sandbox: str) -> None:
    # Not in bash at its prompt: readline reads the size and sets what it read, over ours.
    with terminal(server, sandbox, "?command=read%20go%3B%20stty%20size") as (socket, _):
        socket.send(json.dumps({"type": "resize", "rows": 50, "cols": 90}))
        socket.send(json.dumps({"type": "input", "text": "go\n"}))
        read_until(socket, b"50 90")


def test_end_comes_with_its_outcome(server: Server, sandbox: str, client: httpx.Client) -> None:
    with terminal(server, sandbox, "?command=exit%203") as (socket, started):
        while isinstance(message := socket.recv(timeout=20), bytes):
            pass
        end = json.loads(message)
        assert (end["type"], end["verdict"], end["outcome"]["exit_code"]) == (
            "end", "nonzero_exit", 3,
        )  # fmt: skip
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000
    command = client.get(f"/sandboxes/{sandbox}/commands/{started['command_id']}").json()
    assert command["exit_code"] == 3
    assert command["terminal"] == {"rows": 24, "cols": 80}


def test_interrupt_key_reaches_the_program(server: Server, sandbox: str) -> None:
    with terminal(server, sandbox, "?command=exec%20sleep%20100") as (socket, _):
        socket.send(b"\x03")
        while isinstance(message := socket.recv(timeout=20), bytes):
            pass
    assert json.loads(message)["outcome"]["signal"] == 2


def test_bytes_pass_as_they_are(server: Server, sandbox: str) -> None:
    with terminal(server, sandbox, "?command=stty%20raw;printf%20%27%5C377%5C000%5C033%27") as (
        socket,
        _,
    ):
        assert read_until(socket, b"\x1b") == b"\xff\x00\x1b"


def test_leaving_hangs_up(server: Server, sandbox: str, client: httpx.Client) -> None:
    with terminal(server, sandbox, "?command=exec%20sleep%20100") as (_, started):
        pass
    path = f"/sandboxes/{sandbox}/commands/{started['command_id']}"
    ended = client.get(path, params={"wait": 20}).json()
    assert ended["signal"] in {1, 9}


def test_detached_terminal_waits_and_is_attached_again(server: Server, sandbox: str) -> None:
    # `sh` reads no size at its prompt, and so sets none over ours.
    with terminal(server, sandbox, "?command=exec%20sh&detach_s=60") as (socket, started):
        assert started["detach_s"] == 60
        socket.send(b"word=kept; sleep 0.5; echo unread-$word\n")
    with terminal(server, sandbox, f"/{started['command_id']}?rows=31&cols=71") as (socket, again):
        assert again == {**started, "type": "attached", "rows": 31, "cols": 71}
        read_until(socket, b"unread-kept")
        socket.send(b"stty size\n")
        read_until(socket, b"31 71")


def test_detached_terminal_without_a_client_is_hung_up(
    server: Server, sandbox: str, client: httpx.Client
) -> None:
    query = "?command=exec%20sleep%20100&detach_s=0.3"
    with terminal(server, sandbox, query) as (_, started):
        pass
    path = f"/sandboxes/{sandbox}/commands/{started['command_id']}"
    assert client.get(path, params={"wait": 20}).json()["signal"] in {1, 9}
    with (
        pytest.raises(InvalidStatus) as refused,
        terminal(server, sandbox, f"/{started['command_id']}"),
    ):
        pass
    assert refused.value.response.status_code == 409


def test_wait_is_bounded_by_the_operator(server: Server, sandbox: str) -> None:
    with terminal(server, sandbox, "?detach_s=604800") as (_, started):
        assert started["detach_s"] == 3600


def test_second_client_takes_over_from_the_first(server: Server, sandbox: str) -> None:
    """The first is closed with its code, and reads nothing of what comes afterwards."""
    with terminal(server, sandbox) as (first, started):
        first.send(b"echo $((70+1))-here\n")
        read_until(first, b"71-here")
        with terminal(server, sandbox, f"/{started['command_id']}") as (second, again):
            assert again["type"] == "attached"
            with pytest.raises(ConnectionClosed) as closed:
                list(iter(lambda: first.recv(timeout=20), None))
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4001
            second.send(b"echo $((70+2))-here\n")
            read_until(second, b"72-here")


def test_clients_that_take_over_in_a_row_leave_one(server: Server, sandbox: str) -> None:
    with terminal(server, sandbox, "?detach_s=60") as (_, started):
        for _ in range(10):
            with terminal(server, sandbox, f"/{started['command_id']}") as (socket, again):
                assert again["command_id"] == started["command_id"]
                socket.send(b"echo $((70+3))-here\n")
                read_until(socket, b"73-here")


def test_command_without_a_terminal_is_not_attached_to(
    server: Server, sandbox: str, client: httpx.Client
) -> None:
    body = {"argv": ["sleep", "60"], "background": True}
    made = client.post(f"/sandboxes/{sandbox}/commands", json=body).json()
    with pytest.raises(InvalidStatus) as refused, terminal(server, sandbox, f"/{made['id']}"):
        pass
    assert refused.value.response.status_code == 409


@pytest.mark.parametrize(("key", "status"), [("", 401), (BOB, 404), (ALICE, 101)])
def test_others_attach_to_no_terminal(server: Server, sandbox: str, key: str, status: int) -> None:
    """The control is its owner."""
    with terminal(server, sandbox) as (_, started):
        found = 101
        try:
            with terminal(server, sandbox, f"/{started['command_id']}", key=key):
                pass
        except InvalidStatus as refused:
            found = refused.response.status_code
        assert found == status


@pytest.mark.parametrize("message", ["nonsense", "{}", '{"type":"resize","rows":0,"cols":1}', "[]"])
def test_nonsense_closes_with_a_reason(server: Server, sandbox: str, message: str) -> None:
    with terminal(server, sandbox) as (socket, _):
        socket.send(message)
        with pytest.raises(ConnectionClosed):
            list(socket)
        assert socket.close_code == 1008
    failures = server.client(ADMIN).get("/stats").json()["server"]["background_failures"]
    assert failures == 0  # a client's nonsense is no failure of ours


def test_browser_may_carry_its_key_in_the_protocol(server: Server, sandbox: str) -> None:
    address = f"ws://127.0.0.1:{server.port}/sandboxes/{sandbox}/terminal"
    with connect(address, subprotocols=["cellwall", f"key.{ALICE}"]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "cellwall"
        assert json.loads(socket.recv())["type"] == "started"


@pytest.mark.parametrize(("key", "status"), [("", 401), (BOB, 404)])
def test_others_get_no_terminal(server: Server, sandbox: str, key: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused, terminal(server, sandbox, key=key):
        pass
    assert refused.value.response.status_code == status


def test_storm_of_sizes_and_a_paste_nobody_reads(server: Server, sandbox: str) -> None:
    """Q10: memory stays flat, the terminal still answers, everybody else too."""
    client = server.client()
    with terminal(server, sandbox, "?command=stty%20raw;exec%20sleep%20100") as (socket, _):
        before = server.rss_bytes()
        for n in range(2000):
            socket.send(json.dumps({"type": "resize", "rows": 10 + n % 50, "cols": 80}))
        until = time.monotonic() + 4
        sent = 0
        socket.socket.settimeout(0.5)
        try:
            while time.monotonic() < until:
                socket.send(b"p" * 65_536)
                sent += 65_536
        except (TimeoutError, OSError, ConnectionClosed):
            pass
        assert server.rss_bytes() - before < 32 * 1024 * 1024
        assert client.get("/health").status_code == 200


def test_flood_of_output_nobody_reads_leaves_memory_flat(server: Server, sandbox: str) -> None:
    client = server.client()
    with terminal(server, sandbox, "?command=yes") as (socket, _):
        read_until(socket, b"y")
        before = server.rss_bytes()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert client.get("/health").status_code == 200
        assert server.rss_bytes() - before < 16 * 1024 * 1024
        socket.socket.close()
