"""Forks and snapshots through the Model Context Protocol, by the official client at both doors."""

from __future__ import annotations

import asyncio
import os
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
from kit.server.mcp_doors import (
    Door,
    StdioDoor,
    Visitor,
    at,
    facts_of,
    new_sandbox,
    play,
    text_of,
    wait_seen,
)
from kit.servers import ALICE, BOB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp.client.client import Client
    from mcp_types import CallToolResult

    from kit.servers import Server

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
SET = "import random\nvalue = 41\nopen('note.txt', 'w').write('kept')"
TELL = "print(value, open('note.txt').read())"
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.fixture(scope="module", params=["stdio", "http"])
def door(request: pytest.FixtureRequest, server: Server) -> Door:
    return StdioDoor() if request.param == "stdio" else at(server)


@pytest.fixture(scope="module")
def visitor(door: Door) -> Iterator[Visitor]:
    made = Visitor(door)
    yield made
    made.leave()


async def say(client: Client, sandbox: str, code: str) -> str:
    done = await client.call_tool("execute", {"sandbox_id": sandbox, "code": code})
    assert not done.is_error, text_of(done)
    return text_of(done)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must not fail; return its facts."""
    done: CallToolResult = await client.call_tool(tool, arguments)
    assert not done.is_error, text_of(done)
    return facts_of(done)


def test_copies_go_on_from_the_same_point_and_apart(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        source = await new_sandbox(client, template="python")
        await say(client, source, SET)
        made = await call(client, "fork_sandbox", sandbox_id=source, count=3)
        assert (made["failed"], made["left_behind"], made["carries"]) == (0, [], "session")
        assert all(each in made["text"] for each in made["sandbox_ids"])
        for number, each in enumerate(made["sandbox_ids"]):
            await say(client, each, f"value += {number}\nopen('note.txt', 'w').write('{number}')")
        found = [await say(client, each, TELL) for each in [source, *made["sandbox_ids"]]]
        assert found == ["41 kept", "41 0", "42 1", "43 2"]
        draws = {await say(client, each, "random.random()") for each in made["sandbox_ids"]}
        assert len(draws) == 3
        for each in made["sandbox_ids"]:
            await call(client, "destroy_sandbox", sandbox_id=each)

    visitor.play(scenario)


def test_what_is_kept_can_be_gone_back_to(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        # Other tests use the same server, and may have left some.
        for each in (await call(client, "list_snapshots"))["snapshots"]:
            await call(client, "delete_snapshot", snapshot=each["name"])
        source = await new_sandbox(client, template="python")
        await say(client, source, SET)
        await call(client, "snapshot_sandbox", sandbox_id=source, name="before", expires_s=600)
        await say(client, source, "value = 0\nopen('note.txt', 'w').write('lost')")
        await call(client, "destroy_sandbox", sandbox_id=source)
        listed = await call(client, "list_snapshots")
        assert [each["name"] for each in listed["snapshots"]] == ["before"]
        assert listed["text"].startswith("before: template python, ")
        for _ in range(2):
            back = await call(client, "restore_snapshot", snapshot="before", reseed=False)
            assert await say(client, back["sandbox_id"], TELL) == "41 kept"
            await call(client, "destroy_sandbox", sandbox_id=back["sandbox_id"])
        await call(client, "delete_snapshot", snapshot="before")
        assert (await call(client, "list_snapshots"))["text"] == "There are no snapshots."
        gone = await client.call_tool("restore_snapshot", {"snapshot": "before"})
        assert gone.is_error
        assert facts_of(gone)["failure"]["code"] == "not_found"

    visitor.play(scenario)


def test_what_is_not_copied_is_said_to_the_model(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        source = await new_sandbox(client, template="python")
        command = "sleep 300 >/dev/null 2>&1 & echo begun"
        await call(client, "run_command", sandbox_id=source, command=command)
        made = await call(client, "fork_sandbox", sandbox_id=source)
        assert "Not copied: other processes: 1." in made["text"]
        await call(client, "destroy_sandbox", sandbox_id=made["sandbox_ids"][0])
        await say(client, source, THREAD)
        for tool in ("fork_sandbox", "snapshot_sandbox"):
            refused = await client.call_tool(tool, {"sandbox_id": source})
            assert refused.is_error
            assert facts_of(refused)["failure"]["code"] == "conflict"
            assert "has 1 threads beside its own; end them" in text_of(refused)
            made = await call(client, tool, sandbox_id=source, threads="drop")
            assert "thread 'Thread-1 (wait)' (daemon)." in made["text"]
        assert await say(client, source, "6 * 7") == "42"

    visitor.play(scenario)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("fork_sandbox", {"count": 0}, "argument 'count'"),
        ("fork_sandbox", {"count": 65}, "argument 'count'"),
        ("fork_sandbox", {"copies": 2}, "there is no argument 'copies'"),
        ("fork_sandbox", {"sandbox_id": "other"}, "this session has none of that id"),
        ("snapshot_sandbox", {"name": "../x"}, "argument 'name'"),
        ("snapshot_sandbox", {"expires_s": 0}, "argument 'expires_s'"),
    ],
)
def test_wrong_arguments_are_named(
    visitor: Visitor, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async def scenario(client: Client) -> None:
        source = await new_sandbox(client, template="python")
        refused = await client.call_tool(tool, {"sandbox_id": source, **arguments})
        assert refused.is_error
        assert said in text_of(refused)

    visitor.play(scenario)


def test_copies_end_with_their_client(door: Door) -> None:
    marker = f"{os.getpid()}.{time.monotonic_ns() % 10**6}"

    async def scenario(client: Client) -> None:
        source = await new_sandbox(client, template="python")
        made = await call(client, "fork_sandbox", sandbox_id=source)
        command = f"sleep {marker} >/dev/null 2>&1 & echo begun"
        await call(client, "run_command", sandbox_id=made["sandbox_ids"][0], command=command)
        await asyncio.to_thread(wait_seen, marker, expected=True, limit_s=60)

    play(door, scenario)
    wait_seen(marker, expected=False, limit_s=60)


def test_snapshots_are_the_tenant_s_and_outlive_the_session(server: Server) -> None:
    async def kept(client: Client) -> None:
        source = await new_sandbox(client, template="python")
        await say(client, source, SET)
        await call(client, "snapshot_sandbox", sandbox_id=source, name="over-night")

    async def foreign(client: Client) -> None:
        assert (await call(client, "list_snapshots"))["snapshots"] == []
        for tool in ("restore_snapshot", "delete_snapshot"):
            refused = await client.call_tool(tool, {"snapshot": "over-night"})
            assert facts_of(refused)["failure"]["code"] == "not_found"

    async def later(client: Client) -> None:
        back = await call(client, "restore_snapshot", snapshot="over-night")
        assert await say(client, back["sandbox_id"], TELL) == "41 kept"
        await call(client, "delete_snapshot", snapshot="over-night")

    play(at(server), kept)
    play(at(server, BOB), foreign)
    play(at(server), later)


def test_copies_count_as_sandboxes_of_the_session(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_SANDBOXES", 3)

    async def main() -> None:
        mine = Session(OnServer(await aconnect(server.address, ALICE)), Catalog(state_dir()))
        try:
            source = await mine.create({"template": "python"})
            with pytest.raises(UsageError, match="has 1 sandboxes, and may have 3"):
                await mine.fork(source.id, 3, reseed=True)
            await mine.fork(source.id, 2, reseed=True)
            assert len(mine.running) == 3
            with pytest.raises(UsageError):
                await mine.restore("any", reseed=True)
        finally:
            await mine.close()

    asyncio.run(main())
