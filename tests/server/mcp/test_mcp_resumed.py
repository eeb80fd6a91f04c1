"""Streams of `/mcp` go on where they broke, for their session alone and within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp_types import JSONRPCNotification, JSONRPCResponse

from cellwall.apps.mcp.transport import events
from cellwall.apps.mcp.transport.events import Events, Share
from kit.servers import ALICE, BOB, Server

pytestmark = pytest.mark.timeout(240)
VERSION = "2025-11-25"
HEADERS = {"Accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION}
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": VERSION,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
SLEEP = "import time; time.sleep(7); print('late')"


@pytest.fixture
def alice(server: Server) -> Iterator[httpx.Client]:
    client = server.client(ALICE)
    client.headers.update(HEADERS)
    yield client
    client.close()


def session(client: httpx.Client) -> dict[str, str]:
    answer = client.post("/mcp", json=HELLO)
    assert answer.status_code == 200, answer.text
    mine = {"mcp-session-id": answer.headers["mcp-session-id"]}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    client.post("/mcp", json=ready, headers=mine)
    return mine


def call(number: int, code: str, *, reports: bool = False) -> dict[str, Any]:
    params: dict[str, Any] = {"name": "run_code", "arguments": {"template": "python", "code": code}}
    if reports:
        params["_meta"] = {"progressToken": number}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def first_event(lines: Iterator[str]) -> dict[str, str]:
    """Return the fields of the next event, comments apart."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line and fields:
            return fields
        name, colon, value = line.partition(":")
        if colon and name:
            fields[name] = value.strip()
    raise AssertionError("the stream ended")


def broken_off(client: httpx.Client, mine: dict[str, str], asked: dict[str, Any]) -> dict[str, str]:
    """Ask, read the first event, and hang up."""
    with client.stream("POST", "/mcp", json=asked, headers=mine, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return first_event(answer.iter_lines())


def messages(text: str) -> list[Any]:
    lines = (line.removeprefix("data:").strip() for line in text.splitlines() if "data:" in line)
    return [json.loads(line) for line in lines if line]


@contextlib.contextmanager
def standing(client: httpx.Client, mine: dict[str, str]) -> Iterator[None]:
    """Hold a stream of the session open, as clients do that want to hear of everything."""
    with client.stream("GET", "/mcp", headers=mine, timeout=60) as answer:
        assert answer.status_code == 200
        yield


@pytest.mark.parametrize("reports", [False, True], ids=["plain", "with progress"])
def test_an_answer_comes_on_another_connection(alice: httpx.Client, reports: bool) -> None:
    mine = session(alice)
    alice.post("/mcp", json=call(2, "1"), headers=mine)  # by the SDK, which knows us then
    with standing(alice, mine):
        primed = broken_off(alice, mine, call(3, SLEEP, reports=reports))
        assert (primed["data"], primed["retry"]) == ("", "500")
        later = {**mine, "last-event-id": primed["id"]}
        with alice.stream("GET", "/mcp", headers=later, timeout=60) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            found = next(
                message
                for line in lines
                if line.startswith("data:") and line.removeprefix("data:").strip()
                for message in messages(line)
                if message.get("id") == 3
            )
    assert found["result"]["structuredContent"]["stdout"] == "late\n"


def test_an_answer_is_heard_again_by_its_session_alone(server: Server, alice: httpx.Client) -> None:
    mine, other = session(alice), session(alice)
    asked = alice.post("/mcp", json=call(2, "print('mine')"), headers=mine)
    number = next(line for line in asked.text.splitlines() if line.startswith("id:"))
    later = {"last-event-id": number.removeprefix("id:").strip()}
    again = alice.get("/mcp", headers={**mine, **later}, timeout=30)
    assert [message["id"] for message in messages(again.text)] == [2]
    theirs = alice.get("/mcp", headers={**other, **later}, timeout=30)
    assert (theirs.status_code, messages(theirs.text)) == (200, [])
    refused = server.client(BOB).get("/mcp", headers={**HEADERS, **mine, **later})
    assert refused.status_code == 404


# -- the store -------------------------------------------------------------------------------------


def note(text: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="m", params={"text": text})


async def replayed(store: Events, event_id: str) -> tuple[list[str], str | None]:
    heard: list[str] = []

    async def hear(event: Any) -> None:
        heard.append(event.event_id)

    stream = await store.replay_events_after(event_id, hear)
    return heard, stream


def test_a_stream_is_replayed_alone_and_ends_with_its_answer() -> None:
    async def work() -> None:
        store = Events(Share())
        first = await store.store_event("a", None)
        other = await store.store_event("b", note("x"))
        second = await store.store_event("a", note("y"))
        assert await replayed(store, first) == ([second], "a")
        assert await replayed(store, other) == ([], "b")
        last = await store.store_event("a", JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
        assert await replayed(store, first) == ([second, last], None)
        assert await replayed(store, "99") == ([], None)

    asyncio.run(work())


def test_what_is_kept_is_bounded_for_a_session_and_its_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "SESSION_BYTES", 10_000)
    monkeypatch.setattr(events, "TENANT_BYTES", 15_000)
    share = Share()

    async def work() -> None:
        stores = [Events(share) for _ in range(3)]
        ids = [await stores[0].store_event("a", note("x" * 3_000)) for _ in range(5)]
        assert share.used_bytes <= 10_000
        assert await replayed(stores[0], ids[0]) == ([], None)  # it has given way
        assert await replayed(stores[0], ids[3]) == ([ids[4]], "a")
        for store in stores[1:]:
            for _ in range(5):
                await store.store_event("a", note("x" * 3_000))
        assert share.used_bytes <= 15_000
        for store in stores:
            store.close()
            store.close()
        assert share.used_bytes == 0

    asyncio.run(work())


def test_many_small_events_are_bounded_too() -> None:
    async def work() -> None:
        share = Share()
        store = Events(share)
        for _ in range(events.MOST_EVENTS * 2):
            await store.store_event("a", None)
        assert share.used_bytes <= events.MOST_EVENTS * 300

    asyncio.run(work())
