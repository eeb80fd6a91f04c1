"""Executions in the background through the SDK, also across the end of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crashes import House, program, wait_until
from servers import ALICE, Server

import cellwall

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
            client.submit("", timeout=1)


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
    called: list[str] = []
    cancelled: list[str] = []

    async def note(who: str) -> str:
        called.append(who)
        if who == "first":
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cancelled.append(who)
        return who.upper()

    def code(who: str) -> str:
        return f"print(tools.note({who!r}))"

    async def scene() -> None:
        server = box.start()
        async with await cellwall.aconnect(_address(server), ALICE) as client:
            options: dict[str, Any] = {"tools": [note], "timeout": 60}
            first = asyncio.ensure_future(client.arun(code("first"), **options))
            await asyncio.to_thread(wait_until, lambda: called)
            second = asyncio.ensure_future(client.arun(code("second"), **options))
            for _ in range(1000):
                if (await client.statistics())["executions"]["queued"]:
                    break
            await asyncio.to_thread(box.kill, server)
            await asyncio.to_thread(box.start)
            with pytest.raises(cellwall.Interrupted):
                await first
            assert cancelled == ["first"]
            assert (await second).stdout == "SECOND\n"
            assert called == ["first", "second"]  # neither of them a second time

    asyncio.run(scene())


def test_async_submitted_is_the_same(box: House) -> None:
    async def scene(address: str) -> list[str]:
        async with await cellwall.aconnect(address, ALICE) as client:
            made = await client.submit(program("a"))
            kinds: list[str] = [event.kind async for event in made.events()]
            assert (await made.result()).stdout == "a\n"
            assert await client.execution(made.id).status() == "success"
            return kinds

    assert asyncio.run(scene(_address(box.start()))) == ["stdout", "end"]
