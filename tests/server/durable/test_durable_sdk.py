"""Executions in the background through the SDK, also across the end of a server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cellwall
from kit.server.crashes import House, died, program, wait_until
from kit.servers import ADMIN, ALICE, Server

pytestmark = pytest.mark.timeout(240)  # servers are started several times in one test

SLEEP = "import time\ntime.sleep(60)"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, {"most_running": 1}, ("--unix", str(tmp_path / "sock")))
    yield made
    made.stop()


def _address(server: Server) -> str:
    return f"unix:{server.unix}"


def test_submitted_programs_have_results_events_and_ends(box: House) -> None:
    with cellwall.connect(_address(box.start()), ALICE) as client:
        first = client.submit(program("a", "result = [1, 2]"), collect=["none.txt"])
        assert first.result(30).result == [1, 2]
        assert first.status() == "success"
        kinds = [event.kind for event in first.events()]
        assert kinds == ["stdout", "value", "end"]
        assert [event.kind for event in first.events(after=2)] == ["end"]
        long = client.submit(program("b", SLEEP))
        with pytest.raises(TimeoutError):
            long.result(0.2)
        waits = client.submit(program("c"))
        assert waits.status() == "queued"
        for each in (waits, long):
            each.cancel()
            assert each.result(30).verdict is cellwall.Verdict.CANCELLED
        assert box.ledger == ["a", "b"]
        with pytest.raises(cellwall.NotFound):
            client.execution("nothing").result()
        with pytest.raises(cellwall.UsageError):
            client.submit("1", timeout=-1)


def test_results_are_there_when_the_server_comes_back(box: House) -> None:
    server = box.start()
    with cellwall.connect(_address(server), ALICE) as client:
        long = client.submit(program("a", SLEEP))
        waits = client.submit(program("b"))
        wait_until(lambda: box.ledger == ["a"])
        box.kill(server)
        box.start()
        assert waits.result(30).stdout == "b\n"
        with pytest.raises(cellwall.Interrupted) as caught:
            client.execution(long.id).result()
        assert caught.value.code == "interrupted"
        assert box.ledger == ["a", "b"]


def test_a_restart_ends_calls_to_tools_and_what_waited_has_its_tools(box: House) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    server = box.start()
    waits = {"code": "print(tools.say(who='second'))", "tools": {"functions": {"say": {}}}}
    stream = {"Accept": "application/x-ndjson", "Idempotency-Key": "again"}
    with (
        ThreadPoolExecutor(2) as threads,
        cellwall.connect(_address(server), ALICE) as client,
    ):
        first = threads.submit(client.run, "tools.hang()", tools=[hang], timeout=60)
        assert begun.wait(30)
        second = threads.submit(died, server.client(), waits, **stream)
        admin = server.client(ADMIN)
        wait_until(lambda: admin.get("/stats").json()["server"]["queued"])
        box.kill(server)
        second.result(30)
        again = box.start().client()
        with pytest.raises((cellwall.Interrupted, cellwall.ServerUnreachable)):
            first.result(60)
        assert cancelled.wait(30)
        with again.stream("POST", "/execute", json=waits, headers=stream) as events:
            path = f"/executions/{events.headers['x-execution-id']}"
            with again.stream("GET", f"{path}/calls") as calls:
                call = json.loads(next(calls.iter_lines()))
            assert call["arguments"] == {"who": "second"}
            again.post(f"{path}/calls/1", json={"result": "heard"}).raise_for_status()
            lines = [json.loads(line) for line in events.iter_lines()]
        assert [line.get("text") for line in lines if line["type"] == "stdout"] == ["heard\n"]


def test_async_submitted_is_the_same(box: House) -> None:
    async def scene(address: str) -> list[str]:
        async with await cellwall.aconnect(address, ALICE) as client:
            made = await client.submit(program("a"))
            kinds: list[str] = [event.kind async for event in made.events()]
            assert (await made.result()).stdout == "a\n"
            assert await client.execution(made.id).status() == "success"
            return kinds

    assert asyncio.run(scene(_address(box.start()))) == ["stdout", "end"]
