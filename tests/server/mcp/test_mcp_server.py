"""`/mcp` of a server: whose a session is, and what meets a request before the protocol does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from cellwall.apps.mcp import session
from cellwall.apps.mcp.library import OnServer
from cellwall.apps.mcp.session import Session
from cellwall.apps.mcp.tools.catalog import Catalog
from cellwall.client import aconnect
from cellwall.engine.templates.store import state_dir
from cellwall.model.errors import UsageError
from kit.server.mcp_doors import HttpDoor, at, new_sandbox, play, text_of
from kit.servers import ADMIN, ALICE, BOB, Server, configuration, error_of, running, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx
    from mcp.client.client import Client

pytestmark = pytest.mark.timeout(240)
HEADERS = {"Accept": "application/json, text/event-stream"}
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


@pytest.fixture
def alice(server: Server) -> Iterator[httpx.Client]:
    client = server.client(ALICE)
    client.headers.update(HEADERS)
    yield client
    client.close()


def _session(client: httpx.Client) -> str:
    answer = client.post("/mcp", json=HELLO)
    assert answer.status_code == 200, answer.text
    return answer.headers["mcp-session-id"]


def test_nobody_without_a_key_reaches_it(server: Server) -> None:
    for key in (None, "wrong"):
        answer = server.client(key).post("/mcp", json=HELLO, headers=HEADERS)
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "unauthorized"


@pytest.mark.parametrize(
    ("header", "value"), [("Host", "evil.example"), ("Origin", "https://evil.example")]
)
def test_a_page_of_another_origin_is_refused(alice: httpx.Client, header: str, value: str) -> None:
    assert alice.post("/mcp", json=HELLO).status_code == 200  # the control
    answer = alice.post("/mcp", json=HELLO, headers={header: value})
    assert answer.status_code == 403


def test_a_session_is_its_keys_alone(server: Server, alice: httpx.Client) -> None:
    mine = {"mcp-session-id": _session(alice)}
    assert alice.post("/mcp", json=PING, headers=mine).status_code == 200  # the control
    theirs = server.client(BOB)
    for call in ("post", "get", "delete"):
        more = {"json": PING} if call == "post" else {}
        answer = getattr(theirs, call)("/mcp", headers={**HEADERS, **mine}, **more)
        assert answer.status_code == 404
    assert alice.post("/mcp", json=PING, headers=mine).status_code == 200
    assert alice.delete("/mcp", headers=mine).status_code == 200
    assert alice.post("/mcp", json=PING, headers=mine).status_code == 404


def test_a_version_without_sessions_is_refused_by_name(alice: httpx.Client) -> None:
    answer = alice.post("/mcp", json=PING, headers={"mcp-protocol-version": "2026-07-28"})
    assert answer.status_code == 400
    assert "2025-11-25" in answer.json()["error"]["data"]["supported"]


def _call(number: int, **arguments: Any) -> dict[str, Any]:
    params = {"name": "run_code", "arguments": {"template": "python", **arguments}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def test_a_quick_call_is_answered_as_json_and_a_long_one_as_a_stream(alice: httpx.Client) -> None:
    mine = {"mcp-session-id": _session(alice)}
    alice.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=mine)
    alice.post("/mcp", json=_call(1, code="1"), headers=mine)  # by the SDK, which knows us then
    quick = alice.post("/mcp", json=_call(2, code="print(6 * 7)"), headers=mine)
    assert quick.headers["content-type"] == "application/json"
    assert quick.json()["result"]["structuredContent"]["stdout"] == "42\n"
    code = "import time; time.sleep(5.5); print('late')"
    slow = alice.post("/mcp", json=_call(3, code=code), headers=mine, timeout=120)
    assert slow.headers["content-type"] == "text/event-stream"
    (line,) = (each for each in slow.text.splitlines() if each.startswith("data: "))
    message = json.loads(line.removeprefix("data: "))
    assert message["id"] == 3
    assert message["result"]["structuredContent"]["stdout"] == "late\n"


def test_a_call_is_one_record_of_the_log_with_its_execution(tmp_path: Path) -> None:
    server = start(tmp_path, "--port", "0", config=configuration())
    try:
        client = server.client(ALICE)
        client.headers.update(HEADERS)
        mine = {"mcp-session-id": _session(client)}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        client.post("/mcp", json=ready, headers=mine)
        answers = [client.post("/mcp", json=_call(n, code="1"), headers=mine) for n in (1, 2)]
        messages = [json.loads(each.text[each.text.index("{") :]) for each in answers]
        executions = [
            each["result"]["_meta"]["cellwall/execution"]["id"] for each in messages
        ]  # the SDK's way and ours
    finally:
        server.stop()
    lines = (tmp_path / "server.log").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    for execution in executions:
        routes = [each["route"] for each in records if each.get("execution_id") == execution]
        assert routes == ["/mcp"]


def test_sandboxes_are_the_tenants_and_die_with_the_session(server: Server) -> None:
    made: list[str] = []

    async def scenario(client: Client) -> None:
        made.append(await new_sandbox(client, template="python"))
        assert server.client(ALICE).get(f"/sandboxes/{made[0]}").json()["status"] == "running"
        assert server.client(BOB).get(f"/sandboxes/{made[0]}").status_code == 404

    play(at(server), scenario)
    until = time.monotonic() + 30
    while server.client(ALICE).get(f"/sandboxes/{made[0]}").json()["status"] != "stopped":
        assert time.monotonic() < until


@pytest.mark.parametrize("is_there", [True, False], ids=["alive", "ended"])
def test_only_sandboxes_that_live_count(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(session, "MOST_SANDBOXES", 1)

    async def main() -> None:
        mine = Session(OnServer(await aconnect(server.address, ALICE)), Catalog(state_dir()))
        first = await mine.create({"template": "python"})
        if not is_there:  # it ends without a word to the session
            server.client(ALICE).delete(f"/sandboxes/{first.id}").raise_for_status()
        try:
            with pytest.raises(UsageError) if is_there else contextlib.nullcontext():
                await mine.create({"template": "python"})
            assert len(mine.running) == 1
        finally:
            await mine.close()

    asyncio.run(main())


def test_quotas_and_audit_hold_for_tools() -> None:
    with running("[tiers.default]\nsandboxes = 1\n") as server:
        door = HttpDoor(f"{server.address}/mcp")

        async def scenario(client: Client) -> None:
            await new_sandbox(client, template="python")
            second = await client.call_tool("create_sandbox", {"template": "python"})
            assert second.is_error
            assert "quota sandboxes" in text_of(second)
            assert "Next: delete one" in text_of(second)

        play(door, scenario)
        records = server.client(ADMIN).get("/audit", params={"limit": 1000}).json()["records"]
        made = [each for each in records if each["action"] == "sandbox.create"]
        assert {each["tenant"] for each in made} == {"alice"}
