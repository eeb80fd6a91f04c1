"""A tenant who gives words for secrets: nobody's records change, and its own secrets stay out.

The witnesses are the audit, the log and the metrics, read from outside. Control in each: a value
that is a secret, in a name that its tenant chose, is taken out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kit.servers import (
    ADMIN,
    ALICE,
    BOB,
    Record,
    Server,
    configuration,
    logged,
    metrics_address,
    new_sandbox,
    start,
)

_SECRET = "correct-horse-battery"
_WORDS = (
    "sandbox:", "execution:", "command:", "wall_time", "127.0.0.1", "/sandboxes/{sandbox_id}",
    "/sandboxes", "/execute", "sandbox.delete", "sandbox.create", "execution.accept",
    "nonzero_exit", "javascript", '"template":"python"', "python", "leftovers removed",
    "cellwall.request",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config = configuration(warm=[], metrics_port=0, log_format="json")
    made = start(tmp_path, "--port", "0", config=config)
    yield made
    made.stop()


def give(client: httpx.Client, *values: str) -> None:
    """Let the server learn values, as those of environment variables."""
    env = {f"A{number}": value for number, value in enumerate(values)}
    client.post("/execute", json={"code": "1", "env": env}).raise_for_status()


def records(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        params = {"after": found[-1]["seq"]} if found else {}
        page = server.client(ADMIN).get("/audit", params={**params, "limit": 1000}).json()
        found += page["records"]
        if page["next"] is None:
            return found


def line_of(server: Server, request_id: str) -> Record:
    return logged(server, lambda each: each.get("request_id") == request_id, request_id)


def act(server: Server, key: str, name: str) -> tuple[str, list[dict[str, Any]]]:
    """Create a sandbox, write a file called `name` and delete it; return its id and records."""
    client = server.client(key)
    sandbox = new_sandbox(client)
    path = f"/sandboxes/{sandbox}"
    client.put(f"{path}/files", params={"path": name}, content=b"x").raise_for_status()
    client.delete(path, headers={"X-Request-Id": f"delete.{sandbox}"}).raise_for_status()
    return sandbox, [each for each in records(server) if sandbox in json.dumps(each)]


def test_words_of_one_tenant_change_nothing_of_anybody(server: Server) -> None:
    alice = server.client(ALICE)
    box = new_sandbox(alice)
    program = alice.post("/execute", json={"code": "1"}).json()["execution_id"]
    give(alice, *_WORDS, box, program, "bob-was-here.txt")
    for key, tenant in ((ALICE, "alice"), (BOB, "bob")):
        sandbox, found = act(server, key, "bob-was-here.txt" if key == BOB else "mine.txt")
        actions = {each["action"]: each for each in found}
        assert {"sandbox.create", "file.write", "sandbox.delete", "sandbox.end"} <= set(actions)
        assert {each["tenant"] for each in found} == {tenant}
        assert all(f"sandbox:{sandbox}" in each["object"] for each in found)
        assert "[redacted]" not in json.dumps(found)
        line = line_of(server, f"delete.{sandbox}")
        assert (line["route"], line["tenant"]) == ("/sandboxes/{sandbox_id}", tenant)
    alice.delete(f"/sandboxes/{box}").raise_for_status()
    own = [each for each in records(server) if each["object"] == f"sandbox:{box}"]
    assert {"sandbox.delete", "sandbox.end"} <= {each["action"] for each in own}
    ran = [each for each in records(server) if each["object"] == f"execution:{program}"]
    assert [each["result"] for each in ran] == ["", "ok"]
    assert "[redacted]" not in server.log.read_text(encoding="utf-8")


def test_metrics_keep_their_labels(server: Server) -> None:
    give(server.client(ALICE), *_WORDS)
    give(server.client(BOB), "x-value-of-bobs")
    page = httpx.get(metrics_address(server), timeout=20).text
    assert 'route="/execute"' in page
    assert 'template="python"' in page
    assert "[redacted]" not in page


def test_secret_in_a_name_that_its_tenant_chose_is_taken_out(server: Server) -> None:
    """The other's file of the same name shows it: to that tenant's records it is no secret."""
    give(server.client(ALICE), _SECRET)
    _, of_alice = act(server, ALICE, f"{_SECRET}.txt")
    _, of_bob = act(server, BOB, f"{_SECRET}.txt")
    assert _SECRET not in json.dumps(of_alice)
    assert "path:[redacted].txt" in json.dumps(of_alice)
    assert f"path:{_SECRET}.txt" in json.dumps(of_bob)
    named = server.client(ALICE, **{"X-Request-Id": _SECRET})
    named.get("/stats").raise_for_status()
    logged(server, lambda each: each.get("route") == "/stats" and each["tenant"] == "alice")
    assert _SECRET not in server.log.read_text(encoding="utf-8")


def test_words_do_not_hide_what_a_background_program_did(server: Server) -> None:
    """Its turn may come with another's request: whose values count is not decided by that."""
    alice, bob = server.client(ALICE), server.client(BOB)
    give(alice, *_WORDS)
    made = bob.post("/execute", json={"code": "1", "background": True}).json()["execution_id"]
    assert bob.get(f"/executions/{made}", params={"wait": 30}).json()["verdict"] == "ok"
    found = [each for each in records(server) if each["object"] == f"execution:{made}"]
    assert [each["action"] for each in found] == ["execution.accept", "execution.end"]
    assert "[redacted]" not in json.dumps(found)


def test_id_of_a_request_that_its_tenant_chose_is_cleaned(server: Server) -> None:
    """In the audit; the other tenant's request of that id keeps it, for there it is no secret."""
    give(server.client(ALICE), _SECRET)
    sandboxes = {}
    for key in (ALICE, BOB):
        client = server.client(key)
        sandboxes[key] = new_sandbox(client)
        headers = {"X-Request-Id": _SECRET}
        client.delete(f"/sandboxes/{sandboxes[key]}", headers=headers).raise_for_status()
    asked = {
        each["tenant"]: each["request"]
        for each in records(server)
        if each["action"] == "sandbox.delete"
        and each["object"] in {f"sandbox:{box}" for box in sandboxes.values()}
    }
    assert asked == {"alice": "[redacted]", "bob": _SECRET}
