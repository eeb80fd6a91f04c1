"""Hostile clients of the E2B door: frames, lengths, protobuf, hosts and paths that nothing sends.

Each request is made at random from a seed that is printed when it fails. The server must answer it
with a status of the client's fault, or end the connection, and must serve a right request as
before. `CELLWALL_TEST_FUZZ_S` says for how many seconds; a right request comes between them, as the
positive control.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.server.e2b_doors import E2BServer, created, e2b_server
from kit.servers import BOB

_SECONDS = float(os.environ.get("CELLWALL_TEST_FUZZ_S", "10"))
pytestmark = pytest.mark.timeout(_SECONDS + 120)
_ANSWER_S = 20.0
_CONTROL_EVERY = 50
_MOST_BYTES = 256 * 1024
_PATHS = (
    *("/process.Process/Start", "/process.Process/Connect", "/process.Process/StreamInput"),
    *("/process.Process/List", "/process.Process/SendInput", "/filesystem.Filesystem/Stat"),
    *("/filesystem.Filesystem/WatchDir", "/filesystem.Filesystem/ListDir"),
    *("/execute", "/contexts", "/files?path=x", "/sandboxes", "/v2/sandboxes", "/templates"),
)
_TYPES = (
    *("application/connect+json", "application/connect+proto", "application/json"),
    *("application/proto", "multipart/form-data; boundary=x", "text/plain", "", "x" * 300),
)
_WORDS = ("process", "cmd", "args", "envs", "cwd", "stdin", "pid", "path", "depth", "code", "pty")
_TRICKS = ("..", "%2e%2e", "\x00", "//", "\\", "☃", "-", "--", "49983", "0", "99999", "a" * 300)


@dataclass
class _Target:
    port: int
    sandbox: str
    token: str
    foreign: str
    """A sandbox of another tenant."""


@pytest.fixture(scope="module")
def server() -> Iterator[E2BServer]:
    with e2b_server('domain = "boxes.test"\n', allowed_hosts=["*.boxes.test"]) as made:
        yield made


@pytest.fixture(scope="module")
def target(server: E2BServer) -> _Target:
    made = created(server.client(), metadata={"of": "alice"}, timeout=3600)
    foreign = created(server.client(BOB), timeout=3600)["sandboxID"]
    port = int(server.address.rpartition(":")[2])
    return _Target(port, made["sandboxID"], made["envdAccessToken"], foreign)


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 5, 64, 4096, chance.randrange(_MOST_BYTES))))


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def _protobuf(chance: random.Random, depth: int = 0) -> bytes:
    """Return fields of any number and type, whose lengths may be wrong, one in another."""
    found = b""
    for _ in range(chance.randrange(6)):
        kind = chance.randrange(8)
        number = chance.choice((0, 1, 2, 3, 15, chance.getrandbits(29)))
        inner = _protobuf(chance, depth + 1) if depth < 6 else _noise(chance)[:64]
        size = chance.choice((len(inner), len(inner), chance.getrandbits(63)))
        found += _varint(number << 3 | kind)
        found += _varint(size) + inner if kind == 2 else chance.randbytes(chance.randrange(9))
    return found


def _json(chance: random.Random) -> bytes:
    """Return an object of words that calls have, with values of any kind, perhaps cut."""

    def value(depth: int) -> object:
        leaves = (None, True, -1, 2**63, 1e308, "", "x" * 5000, chance.choice(_TRICKS))
        if depth > 3 or chance.random() < 0.6:
            return chance.choice(leaves)
        if chance.random() < 0.5:
            return [value(depth + 1) for _ in range(chance.randrange(4))]
        return {chance.choice(_WORDS): value(depth + 1) for _ in range(chance.randrange(4))}

    text = json.dumps(
        {chance.choice(_WORDS): value(0) for _ in range(chance.randrange(5))}
    ).encode()
    nested = b"[" * chance.randrange(100_000)
    return chance.choice((text, text, text[: chance.randrange(len(text) + 1)], nested))


def _enveloped(chance: random.Random) -> bytes:
    """Return frames of Connect: flags and lengths right, wrong, huge or cut."""
    found = b""
    for _ in range(chance.randrange(4)):
        message = chance.choice((_noise, _protobuf, _json))(chance)
        size = chance.choice((len(message), len(message), 0, 1, 0x7FFFFFFF, 0xFFFFFFFF))
        flags = chance.choice((0, 0, 0, 1, 2, 3, 0x80, 0xFF))
        found += struct.pack(">BI", flags, size) + message
    return found[: len(found) - chance.choice((0, 0, 0, 1, 4))]


def _host(chance: random.Random, target: _Target) -> str:
    here = f"127.0.0.1:{target.port}"
    odd = "-".join(chance.choice((*_TRICKS, target.sandbox, "8000")) for _ in range(3))
    theirs = f"8000-{target.foreign}.boxes.test"
    return chance.choice((here, here, here, f"{odd}.boxes.test", theirs, "", odd, f"[{odd}]"))


def _head(chance: random.Random, target: _Target, body: bytes) -> bytes:
    token = chance.choice((target.token, target.token, target.token[:-1], "", "x" * 5000))
    fields = {
        "Host": _host(chance, target),
        "Content-Type": chance.choice(_TYPES),
        "E2b-Sandbox-Id": chance.choice((target.sandbox, target.sandbox, target.foreign, "..")),
        "E2b-Sandbox-Port": chance.choice(("49983", "49999", "8000", "-1", "x", "1e3")),
        "X-Access-Token": token,
        "Connect-Protocol-Version": chance.choice(("1", "2", "")),
        "Connect-Timeout-Ms": chance.choice(("1000", "-1", "9" * 30, "x")),
        "Connect-Content-Encoding": chance.choice(("identity", "gzip", "x")),
        "Content-Length": str(chance.choice((len(body), len(body), len(body), 0, 10**18, -1))),
    }
    if chance.random() < 0.5:  # the body alone is hostile
        return _right_head(chance, target, body)
    kept = {name: text for name, text in fields.items() if chance.random() < 0.9}
    path = chance.choice(_PATHS) + chance.choice(("", "", "", "/../x", "?a=%00", "%2e%2e"))
    method = chance.choice(("POST", "POST", "POST", "GET", "PUT", "OPTIONS", "X" * 30))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in kept.items())]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")


def _right_head(chance: random.Random, target: _Target, body: bytes) -> bytes:
    fields = {
        "Host": f"127.0.0.1:{target.port}",
        "Content-Type": chance.choice(_TYPES[:4]),
        "E2b-Sandbox-Id": target.sandbox,
        "E2b-Sandbox-Port": chance.choice(("49983", "49999")),
        "X-Access-Token": target.token,
        "Content-Length": str(len(body)),
    }
    lines = [f"POST {chance.choice(_PATHS)} HTTP/1.1"]
    lines += [f"{name}: {text}" for name, text in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _sent(target: _Target, data: bytes, number: int) -> int:
    """Send these bytes on a connection of their own; return the status, 0 for no answer.

    Each has another address of loopback's: wrong keys are counted by address.
    """
    ours = (f"127.2.{number // 250 % 250}.{number % 250 + 1}", 0)
    there = ("127.0.0.1", target.port)
    with socket.create_connection(there, timeout=_ANSWER_S, source_address=ours) as held:
        try:
            held.sendall(data)
            held.shutdown(socket.SHUT_WR)
            first = held.recv(4096)
        except OSError as error:  # it ended the connection, perhaps before we had sent all
            if isinstance(error, TimeoutError):
                raise
            return 0
    assert first == b"" or first.startswith(b"HTTP/1.1 "), first[:80]
    return int(first[9:12]) if first else 0


def test_nothing_that_a_client_sends_breaks_the_door(server: E2BServer, target: _Target) -> None:
    seed = int(os.environ.get("CELLWALL_TEST_FUZZ_SEED", time.time_ns() % 10**9))
    chance, until = random.Random(seed), time.monotonic() + _SECONDS
    makers: tuple[Callable[[random.Random], bytes], ...] = (_enveloped, _json, _protobuf, _noise)
    statuses: dict[int, int] = {}
    count = 0
    while time.monotonic() < until or count < _CONTROL_EVERY:
        count += 1
        body = chance.choice(makers)(chance)
        data = _head(chance, target, body) + body
        status = _sent(target, data, count)
        statuses[status] = statuses.get(status, 0) + 1
        assert status < 500 or status in {501, 502}, (
            f"seed {seed}, request {count}: {data[:2000]!r}"
        )
        if count % _CONTROL_EVERY == 0:
            _serves_as_before(server, target)
    print(f"{count} requests of seed {seed}: {dict(sorted(statuses.items()))}")
    refused = sum(number for status, number in statuses.items() if 400 <= status < 500)
    assert refused > count / 3, statuses
    assert refused > statuses.get(401, 0) + statuses.get(403, 0), "the door's keys saw all of it"


def _serves_as_before(server: E2BServer, target: _Target) -> None:
    """Its own sandbox works; that of the other tenant is as it was, and has nothing new in it."""
    daemon = {"E2b-Sandbox-Id": target.sandbox, "X-Access-Token": target.token}
    answer = server.client(None, **daemon).post(
        "/process.Process/List", json={}, headers={"E2b-Sandbox-Port": "49983"}
    )
    assert answer.status_code == 200, answer.text
    mine = server.client().get(f"/sandboxes/{target.sandbox}").json()
    assert mine["metadata"] == {"of": "alice"}
    theirs = server.client(BOB).get(f"/sandboxes/{target.foreign}")
    assert theirs.status_code == 200, theirs.text
    assert server.client().get(f"/sandboxes/{target.foreign}").status_code == 404
    assert Path(f"/proc/{server.server.process.pid}").exists()
