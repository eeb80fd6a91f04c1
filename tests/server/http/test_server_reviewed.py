"""What a review looked at and found to hold, where no other test here says it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.servers import ALICE, BOB, Server, configuration, error_of, new_sandbox, read_all, start

_JSON = {"Content-Type": "application/json"}
_KEY = b"Host: localhost\r\nX-API-Key: " + ALICE.encode() + b"\r\n"

ODD = {
    "integer of 20 MB": b'{"code":"1","arguments":{"n":' + b"9" * 20_000_000 + b"}}",
    "exponent": b'{"code":"1","timeout":1e99999999999}',
    "depth of an argument": b'{"code":"1","arguments":{"a":' + b"[" * 9000 + b"]" * 9000 + b"}}",
    "half a surrogate pair in code": b'{"code":"\\udc00"}',
    "half a surrogate pair in stdin": b'{"code":"1","stdin":"\\ud800"}',
    "half a surrogate pair in a variable": b'{"code":"1","env":{"A":"\\ud800"}}',
    "half a surrogate pair in an argument": b'{"code":"1","args":["\\ud800"]}',
    "half a surrogate pair in a file's name": b'{"code":"1","files":{"\\ud800":"x"}}',
    "NUL in a variable": b'{"code":"1","env":{"A":"a\\u0000b"}}',
    "NUL in an argument": b'{"code":"1","args":["a\\u0000b"]}',
    "infinity in an argument": b'{"code":"1","arguments":{"a":-Infinity}}',
    "key that comes twice as another type": b'{"code":"1","code":{"a":1}}',
    "bytes behind it": b'{"code":"1"}\x00',
    "byte order mark of UTF-16": b"\xff\xfe{\x00}\x00",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_json_is_a_400_and_costs_little(server: Server, name: str) -> None:
    """Control: what only looks odd is a program."""
    client, began = server.client(), time.monotonic()
    answer = client.post("/execute", content=ODD[name], headers=_JSON)
    assert answer.status_code == 400, answer.text[:200]
    error_of(answer)
    assert time.monotonic() - began < 20
    plain = {"code": "print('\u202e\U0001f600', end='')", "stdin": "\u2066", "timeout": 20}
    assert client.post("/execute", json=plain).json()["stdout"] == "\u202e\U0001f600"


@pytest.mark.parametrize(
    "name", ["\u202egpj.exe", "a\u2066b", "line\u2028end"], ids=["override", "isolate", "line"]
)
def test_names_that_turn_text_cannot_forge_a_line_of_the_log(server: Server, name: str) -> None:
    client = server.client()
    box = f"/sandboxes/{new_sandbox(client)}"
    client.put(f"{box}/files", params={"path": name}, content=b"x").raise_for_status()
    client.get(f"/{name}")
    written = server.log.read_bytes().decode("utf-8")
    assert not set("\u202e\u2066\u2028") & set(written)


# -- one request or two --------------------------------------------------------------------------


def test_target_of_absolute_form_is_a_path_of_this_server(server: Server) -> None:
    """RFC 9112, 3.2.2; whatever host it names, `Host` is what is checked."""
    for target in (b"http://localhost/stats", b"http://evil.example/stats"):
        head = b"GET " + target + b" HTTP/1.1\r\nConnection: close\r\n" + _KEY + b"\r\n"
        answer = server.raw(head)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.split()[1] in {b"200", b"400", b"403", b"404"}
    evil = b"GET /stats HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n"
    assert server.raw(evil + _KEY.partition(b"\r\n")[2] + b"\r\n").startswith(b"HTTP/1.1 403 ")


def test_requests_in_one_packet_are_answered_in_turn(server: Server) -> None:
    one = b"GET /quota HTTP/1.1\r\n" + _KEY + b"\r\n"
    bobs = one.replace(ALICE.encode(), BOB.encode())
    last = one.replace(b"GET /quota HTTP/1.1\r\n", b"GET /quota HTTP/1.1\r\nConnection: close\r\n")
    with server.connect() as sock:
        sock.sendall(one + bobs + one + last)
        answers = read_all(sock)
    found = [part.split(b'"')[0] for part in answers.split(b'"tenant":"')[1:]]
    assert found == [b"alice", b"bob", b"alice", b"alice"]


# -- what lies on disk ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The state directory of a server that has done something, while it runs."""
    before = os.umask(0)
    server = start(tmp_path, "--port", "0", config=configuration(warm=[]))
    os.umask(before)
    client = server.client()
    client.post("/execute", json={"code": "print(1)"}).raise_for_status()
    new_sandbox(client, metadata={"a": "b"})
    yield tmp_path / "state" / "server"
    server.stop()


def test_nobody_else_may_read_what_the_server_keeps(folder: Path) -> None:
    """Whatever umask it was started with."""
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert len(found) > 2
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}


# -- idempotency ---------------------------------------------------------------------------------


def test_key_of_a_call_is_its_tenants_its_bodys_and_its_paths(server: Server) -> None:
    client, headers = server.client(), {"Idempotency-Key": f"reviewed-{time.monotonic_ns()}"}

    def ask(whose: Any, path: str, **body: object) -> Any:
        return whose.post(path, json=body, headers=headers)

    first = ask(client, "/execute", code="print(1)").json()["execution_id"]
    again = ask(client, "/execute", code="print(1)")
    assert again.json()["execution_id"] == first
    assert again.headers["idempotent-replay"] == "true"
    for path, body in (("/execute", {"code": "print(2)"}), ("/sandboxes", {})):
        refused = ask(client, path, **body)
        assert (refused.status_code, error_of(refused)["code"]) == (409, "idempotency")
    theirs = ask(server.client(BOB), "/execute", code="print(1)").json()["execution_id"]
    assert theirs != first
