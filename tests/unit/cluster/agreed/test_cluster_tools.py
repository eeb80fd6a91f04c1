"""What a call of a tool of MCP makes, as a gateway reads it before a node does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellwall.cluster.gateway.agreed.copies import copies_in
from cellwall.cluster.gateway.routing import way_of
from cellwall.cluster.gateway.work.tools import called
from cellwall.engine.scheduling.quotas import exceeded
from cellwall.model.errors import UsageError


def _call(name: object, **given: Any) -> bytes:
    params = {"name": name, "arguments": given}
    return json.dumps(
        {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    ).encode()


@pytest.mark.parametrize(
    ("tool", "makes"),
    [
        ("run_code", "program"),
        ("create_sandbox", "sandbox"),
        ("restore_snapshot", "sandbox"),
        ("fork_sandbox", "fork"),
        ("execute", ""),
        ("no_such", ""),
        (["run_code"], ""),
    ],
)
def test_call_makes_what_its_tool_does(tool: object, makes: str) -> None:
    assert called(_call(tool)).makes == makes


def test_call_of_forks_says_how_many() -> None:
    assert copies_in(called(_call("fork_sandbox", count=3)).body) == 3


def test_message_that_calls_no_tool_makes_nothing() -> None:
    assert called(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}').makes == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"method": "tools/list", "method": "tools/call", "params": {"name": "run_code"}}',
        b'{"method": "tools/call", "params": {"name": "execute", "name": "run_code"}}',
    ],
)
def test_message_that_a_node_might_read_in_another_way_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match="no single message"):
        called(body)


def test_refused_call_is_answered_in_the_words_for_models() -> None:
    said = called(_call("run_code")).refused(exceeded("running", 4, 4, "let one end"))
    assert (said["id"], said["result"]["isError"]) == (7, True)
    assert "quota running: 4 of 4 are in use" in said["result"]["content"][0]["text"]
    assert said["result"]["structuredContent"]["failure"]["code"] == "quota"


def test_only_what_a_client_posts_is_a_call() -> None:
    assert [way_of(method, "/mcp").makes for method in ("POST", "GET", "DELETE")] == [
        "call",
        "",
        "",
    ]
