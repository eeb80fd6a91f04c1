"""Connections through the real init, to servers of the test's own on loopback."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.init import ports
from cellwall.guest.init.ports import MOST_CONNECTIONS
from kit.guest.guest_host import Host
from kit.waiting import DEADLINE_S


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=MOST_CONNECTIONS) as listener:
        listener.settimeout(DEADLINE_S)
        yield listener


@pytest.fixture(autouse=True)
def accepted() -> Iterator[list[socket.socket]]:
    """Close what the test's servers accepted."""
    _accepted.clear()
    yield _accepted
    for line in _accepted:
        line.close()


_accepted: list[socket.socket] = []


def connect(host: Host, port: int, window: int = 1 << 20) -> int:
    return host.send("port_connect", port=port, window=window)


def connected(host: Host, server: socket.socket, **fields: int) -> tuple[int, socket.socket]:
    number = connect(host, server.getsockname()[1], **fields)
    line = server.accept()[0]
    line.settimeout(DEADLINE_S)
    _accepted.append(line)
    assert host.next()[0] == {"ev": "connected", "id": number}
    assert host.next()[0]["ev"] == "credit"
    return number, line


def received(line: socket.socket) -> bytes:
    return b"".join(iter(lambda: line.recv(65536), b""))


def data_of(host: Host, size: int) -> bytes:
    seen = b""
    while len(seen) < size:
        header, body = host.next()
        assert header["ev"] == "data"
        seen += body
    return seen


def test_each_direction_ends_by_itself(host: Host, server: socket.socket) -> None:
    number, line = connected(host, server)
    host.send("stdin", b"question", number=number)
    host.send("stdin_close", number=number)
    assert received(line) == b"question"
    line.sendall(b"answer")
    assert data_of(host, 6) == b"answer"
    line.close()
    assert host.next()[0] == {"ev": "end", "id": number}
    assert host.next()[0] == {"ev": "closed", "id": number, "reset": False}


def test_server_may_end_first(host: Host, server: socket.socket) -> None:
    number, line = connected(host, server)
    line.shutdown(socket.SHUT_WR)
    assert host.next()[0]["ev"] == "end"
    host.send("stdin", b"late", number=number)
    host.send("stdin_close", number=number)
    assert received(line) == b"late"
    assert host.next()[0] == {"ev": "closed", "id": number, "reset": False}


def test_port_of_nobody_is_refused(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    before = host.descriptors()
    header, _ = host.ask("port_connect", port=port, window=1)
    assert (header["ev"], header["code"]) == ("fail", "refused")
    assert "refused" in header["message"].lower()
    assert host.descriptors() == before


def test_server_that_only_speaks_ipv6_is_found(host: Host) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        number = connect(host, server.getsockname()[1])
        assert host.next()[0] == {"ev": "connected", "id": number}


def reset(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def test_reset_by_the_server_is_one(host: Host, server: socket.socket) -> None:
    number, line = connected(host, server)
    reset(line)
    assert host.next()[0] == {"ev": "closed", "id": number, "reset": True}


def test_reset_by_the_host_is_one(host: Host, server: socket.socket) -> None:
    before = host.descriptors()
    number, line = connected(host, server)
    host.send("signal", number=number, signal=9)
    assert host.next()[0] == {"ev": "closed", "id": number, "reset": True}
    with pytest.raises(ConnectionResetError):
        line.recv(1)
    assert host.descriptors() == before


def test_close_lets_what_was_written_arrive(host: Host, server: socket.socket) -> None:
    number, line = connected(host, server)
    host.send("stdin", b"x" * 100_000, number=number)
    host.send("close", number=number)
    assert received(line) == b"x" * 100_000
    assert host.wait_for("closed", number)[0]["reset"] is False


@pytest.fixture
def slow_server() -> Iterator[socket.socket]:
    """A server whose connections take little before it reads."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        yield listener


def stuff(host: Host, number: int) -> None:
    """Write until some of it has to wait in init."""
    for _ in range(256):
        host.send("stdin", b"x" * 65536, number=number)
    says_before_answer(host)


def test_close_waits_for_a_slow_server_until_it_is_given_up(
    host: Host, slow_server: socket.socket
) -> None:
    number, _ = connected(host, slow_server)
    stuff(host, number)
    host.send("close", number=number)
    assert "closed" not in says_before_answer(host)
    host.send("signal", number=number, signal=9)
    assert says_before_answer(host) == ["closed"]


def test_reset_frees_what_waits_for_a_server(host: Host, slow_server: socket.socket) -> None:
    number, line = connected(host, slow_server, window=0)
    stuff(host, number)
    reset(line)
    while (header := host.next()[0])["ev"] == "credit":
        pass
    assert header == {"ev": "closed", "id": number, "reset": True}


def says_before_answer(host: Host) -> list[str]:
    asked = host.send("context_list")
    found: list[str] = []
    while True:
        header, _ = host.next()
        if header["id"] == asked:
            return found
        found.append(header["ev"])


def test_no_more_comes_than_was_granted(host: Host, server: socket.socket) -> None:
    number, line = connected(host, server, window=1000)
    line.sendall(bytes(300_000))
    assert data_of(host, 1000) == bytes(1000)
    assert says_before_answer(host) == []
    host.send("credit", number=number, bytes=299_000)
    assert data_of(host, 299_000) == bytes(299_000)


def test_reset_reaches_a_host_that_granted_nothing(host: Host, server: socket.socket) -> None:
    number, line = connected(host, server, window=0)
    reset(line)
    assert says_before_answer(host) == []  # and init sleeps instead of turning
    host.send("stdin", b"x", number=number)
    assert host.next()[0] == {"ev": "closed", "id": number, "reset": True}


def test_too_many_connections_are_refused_and_places_come_back(
    host: Host, server: socket.socket
) -> None:
    before = host.descriptors()
    lines = [connected(host, server) for _ in range(MOST_CONNECTIONS)]
    port = server.getsockname()[1]
    assert host.ask("port_connect", port=port, window=1)[0]["code"] == "busy"
    host.send("signal", number=lines[0][0], signal=9)
    assert host.next()[0]["ev"] == "closed"
    lines.append(connected(host, server))
    for _, line in lines[1:]:
        reset(line)
    for _ in lines[1:]:
        assert host.next()[0]["ev"] == "closed"
    assert host.descriptors() == before


def test_attempt_that_nobody_answers_can_be_given_up(host: Host) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # fills the backlog
            number = connect(host, port)
            assert says_before_answer(host) == []
            host.send("signal", number=number, signal=9)
            assert host.next()[0] == {"ev": "closed", "id": number, "reset": True}


@pytest.mark.parametrize(
    "fields",
    [{}, {"port": 0}, {"port": 65536}, {"port": "80"}, {"port": 80, "window": -1}, {"port": True}],
)
def test_senseless_request_is_refused(host: Host, fields: dict[str, Any]) -> None:
    assert host.ask("port_connect", **{"window": 1, **fields})[0]["code"] == "invalid"


def test_listing_shows_who_listens(host: Host, server: socket.socket) -> None:
    port = server.getsockname()[1]
    header, body = host.ask("port_list")
    assert header["ev"] == "reply"
    assert {"port": port, "address": "127.0.0.1"} in json.loads(body)
    server.close()
    assert port not in [entry["port"] for entry in json.loads(host.ask("port_list")[1])]


_ROW = (
    "   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 1\n"
)


def test_table_longer_than_the_bound_is_read_up_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    table.write_text("header\n" + "".join(_ROW.format(port=n) for n in range(1, 9000)))
    assert len(ports._listening(str(table), socket.AF_INET)) < 8999
    monkeypatch.setattr(ports, "_MOST_TABLE_BYTES", 1 << 30)
    assert len(ports._listening(str(table), socket.AF_INET)) == 8999


def test_addresses_are_read_in_either_family() -> None:
    assert ports._address("0100007F", socket.AF_INET) == "127.0.0.1"
    assert ports._address("00000000000000000000000001000000", socket.AF_INET6) == "::1"
