"""A stream that has nothing to say: its signs of life, and who hears them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import cellwall
from kit.servers import ALICE, Server, new_sandbox, running

_QUIET = {"code": "import time; time.sleep(1.5); print('late')"}


@pytest.fixture(scope="module")
def lively() -> Iterator[Server]:
    """A server whose quiet streams say ten times a second that they live."""
    with running(alive_s=0.1) as made:
        yield made


def heard(server: Server, method: str, path: str, accept: str, **asked: Any) -> list[bytes]:
    """Return the pieces of an answer as they came."""
    client = server.client(Accept=accept)
    with client.stream(method, path, **asked) as answer:
        assert answer.status_code == 200
        return list(answer.iter_raw())


@pytest.mark.parametrize("door", ["/execute", "batch", "cell", "command", "events"])
def test_quiet_stream_of_lines_says_that_it_lives(lively: Server, door: str) -> None:
    """Control: each line is one object to who knows nothing of it, and none is missing."""
    path = door
    body: dict[str, Any] = dict(_QUIET)
    if door == "batch":
        path, body = "/executions/batch", {"executions": [_QUIET]}
    elif door == "events":
        made = lively.client().post("/execute", json={**_QUIET, "background": True}).json()
        path, body = f"/executions/{made['execution_id']}/events", {}
    elif door != "/execute":
        path = f"/sandboxes/{new_sandbox(lively.client())}/"
        path += "execute" if door == "cell" else "commands"
        body = body if door == "cell" else {"command": "sleep 1.5; echo late"}
    asked = {"json": body} if body else {}
    method = "POST" if body else "GET"
    pieces = heard(lively, method, path, "application/x-ndjson", **asked)
    assert pieces.count(b" ") >= 3
    lines = b"".join(pieces).decode().splitlines()
    found = [json.loads(line) for line in lines]
    assert found[-1]["type"] == "end"
    assert "late" in str(found)


def test_quiet_stream_of_server_sent_events_says_it_in_comments(lively: Server) -> None:
    pieces = heard(lively, "POST", "/execute", "text/event-stream", json=_QUIET)
    assert pieces.count(b": alive\n\n") >= 3
    assert b"\n\n \n" not in b"".join(pieces)


def test_library_over_http_hears_nothing_of_it(lively: Server) -> None:
    with cellwall.connect(lively.address, ALICE) as client:
        said: list[str] = []
        assert client.run(_QUIET["code"]).stdout == "late\n"
        with client.Sandbox() as sandbox:
            assert sandbox.run(_QUIET["code"], on_stdout=said.append).stdout == "late\n"
        assert said == ["late\n"]


def test_stream_is_quiet_where_the_operator_wants_it() -> None:
    with running(alive_s=0) as server:
        pieces = heard(server, "POST", "/execute", "application/x-ndjson", json=_QUIET)
    assert b" " not in pieces
