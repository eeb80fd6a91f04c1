"""The code tool itself: what models get wrong, state, death, cancelling, threads, a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import cellwall
from cellwall.integrations.code_tool import CodeTool
from kit.agents.counting_run import left_open
from kit.servers import ALICE, Server, running

NEW = "ran in a new one"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = left_open()
    yield
    assert left_open() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'code' is missing"),
        ({"code": "1", "timeout": 5}, "no argument 'timeout'"),
        ({"code": 5}, "not text but a number"),
        ({"code": None}, "not text but null"),
        ({"code": "a\0b"}, "NUL"),
        ({"code": "\ud800"}, "surrogate"),
        ("print(1)", "not JSON"),
        ('{"code": ', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not an object but a list"),
        (None, "not an object but null"),
    ],
)
def test_a_call_that_makes_no_sense_is_answered(arguments: object, said: str) -> None:
    with CodeTool() as tool:
        answer = tool.call(arguments)
    assert answer.is_error
    assert answer.execution is None
    assert said in answer.text
    assert '{"code": "print(6 * 7)"}' in answer.text  # what a right one looks like


@pytest.mark.parametrize("code", ["", " \n"])
def test_a_call_without_code_ends_well(code: str) -> None:
    """Models write empty blocks; Python runs an empty file."""
    with CodeTool() as tool:
        answer = tool.call({"code": code})
    assert not answer.is_error
    assert answer.execution is not None
    assert answer.execution.ok


def test_languages_are_an_argument_of_their_own() -> None:
    with CodeTool(languages=("python", "bash")) as tool:
        assert tool.parameters["properties"]["language"]["enum"] == ["python", "bash"]
        assert "'language' is missing" in tool.call({"code": "ls"}).text
        assert "no language 'perl'" in tool.call({"code": "ls", "language": "perl"}).text
        tool.call({"code": "open('x.txt', 'w').write('shared')", "language": "python"})
        assert tool.call({"code": "cat x.txt", "language": "bash"}).text == "shared"


def test_state_is_kept_and_failures_are_told() -> None:
    with CodeTool(timeout=20, budget_chars=2_000) as tool:
        assert not tool.call('{"code": "x = 20"}').is_error
        assert tool.call({"code": "x + 1"}).text == "21"
        failed = tool.call({"code": "1 / 0"})
        assert failed.is_error
        assert "ZeroDivisionError" in failed.text
        long = tool.call({"code": "print('spam' * 10_000)"})
        assert len(long.text) <= 2_000
        assert ".cellwall/output" in long.text  # the rest, in a file inside


@pytest.mark.cgroups
def test_a_dead_sandbox_is_replaced_and_the_model_is_told() -> None:
    with CodeTool(limits={"memory_mb": 128}, files={"in.txt": b"still here"}) as tool:
        tool.call({"code": "x = 1"})
        assert "[memory]" in tool.call({"code": "b = bytearray(1 << 30)"}).text
        after = tool.call({"code": "print('x' in globals(), open('in.txt').read())"})
        assert NEW in after.text
        assert "False still here" in after.text
        assert NEW not in tool.call({"code": "1"}).text


def test_who_looks_at_the_new_sandbox_first_does_not_keep_it_from_the_model() -> None:
    with CodeTool() as tool:
        tool.call({"code": "x = 1"})
        tool.sandbox.close()
        tool.sandbox.files.write("in.csv", "1")  # for the next call, in the new one already
        assert tool.call({"code": 1}).is_error  # runs nothing
        assert NEW in tool.call({"code": "print(open('in.csv').read())"}).text
        assert NEW not in tool.call({"code": "1"}).text


def test_a_new_sandbox_that_could_not_be_made_at_once_is_still_told_of() -> None:
    with CodeTool() as tool:
        tool.call({"code": "x = 1"})
        tool.sandbox.close()
        tool._keeper._files["/etc/none"] = "1"
        with pytest.raises(cellwall.FileError):
            tool.call({"code": "1"})
        tool._keeper._files.clear()
        assert NEW in tool.call({"code": "1"}).text


def test_a_sandbox_that_the_server_has_forgotten_is_replaced() -> None:
    with (
        running(store="none", retention_s=0) as own,
        cellwall.connect(own.address, ALICE) as client,
        CodeTool(client=client) as tool,
    ):
        tool.call({"code": "x = 1"})
        lost = tool.sandbox.id
        client.attach(lost).close()  # as its idle time would
        deadline = time.monotonic() + 20
        while any(each.id == lost for each in client.sandboxes()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert NEW in tool.call({"code": "print(2)"}).text


def test_copies_of_a_tool_go_on_in_their_own_ways() -> None:
    """Each copy has a sandbox of its own, and closes it; one that died is replaced as ever."""
    with CodeTool(limits={"memory_mb": 256}) as tool:
        tool.call({"code": "x = [1]"})
        copies = tool.fork(2)
        for number, each in enumerate(copies):
            each.call({"code": f"x.append({number})"})
        assert [each.call({"code": "x"}).text for each in (tool, *copies)] == [
            "[1]", "[1, 0]", "[1, 1]",
        ]  # fmt: skip
        assert len({each.sandbox.id for each in (tool, *copies)}) == 3
        copies[0].sandbox.close()
        assert NEW in copies[0].call({"code": "1"}).text
        for each in copies:
            each.close()
        assert tool.call({"code": "x"}).text == "[1]"


def test_a_tool_begins_from_a_snapshot_each_time() -> None:
    with CodeTool() as tool:
        tool.call({"code": "x = 41"})
        kept = tool.sandbox.snapshot()
    try:
        with CodeTool(snapshot=kept.id) as later:
            assert later.call({"code": "x + 1"}).text == "42"
            later.sandbox.close()
            assert later.call({"code": "x"}).text.endswith("\n41")
        with pytest.raises(cellwall.UsageError, match="limits"):
            CodeTool(snapshot=kept.id, limits={"memory_mb": 256})
    finally:
        cellwall.Snapshots().delete(kept.id)
    with CodeTool(snapshot=kept.id) as gone, pytest.raises(cellwall.NotFound):
        gone.call({"code": "1"})


def test_a_closed_tool_makes_no_sandbox() -> None:
    tool = CodeTool()
    tool.call({"code": "1"})
    tool.close()
    tool.close()
    with pytest.raises(cellwall.UsageError, match="closed"):
        tool.call({"code": "1"})


def test_a_sandbox_of_the_callers_is_not_closed_or_replaced() -> None:
    with cellwall.Sandbox() as sandbox:
        with CodeTool(sandbox=sandbox) as tool:
            tool.call({"code": "x = 1"})
        assert sandbox.run("x").text == "1"
        sandbox.close()
        with pytest.raises(cellwall.SandboxUnavailable):
            CodeTool(sandbox=sandbox).call({"code": "x"})


def test_what_the_program_around_it_does_wrong_is_raised() -> None:
    with CodeTool("no-such-template") as tool, pytest.raises(cellwall.NotFound):
        tool.call({"code": "1"})
    with CodeTool(timeout=-1) as tool, pytest.raises(cellwall.UsageError):
        tool.call({"code": "1"})


def test_threads_that_come_first_share_one_sandbox() -> None:
    with CodeTool() as tool, ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(tool.call, [{"code": "print(1)"}] * 8))
    assert {answer.text for answer in answers} == {"1"}
    assert len({a.execution.sandbox_id for a in answers if a.execution}) == 1


def test_cancelling_ends_the_program() -> None:
    endless = "import time\nopen('begun', 'w').close()\nfor n in range(6000): time.sleep(0.1)"

    async def conversation() -> str:
        async with CodeTool() as tool:
            await tool.acall({"code": "n = None"})
            running = asyncio.ensure_future(tool.acall({"code": endless}))
            while not await asyncio.to_thread(tool.sandbox.files.exists, "begun"):
                pass  # each look is a way there and back
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            # Cells of a context queue: this one would wait for ten minutes.
            return (await tool.acall({"code": "n < 5999"})).text

    assert asyncio.run(conversation()) == "True"


def test_the_event_loop_goes_on_meanwhile() -> None:
    async def conversation() -> bool:
        async with CodeTool() as tool:
            await tool.acall({"code": "1"})
            wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
            running = asyncio.ensure_future(tool.acall({"code": wait}))
            await asyncio.to_thread(tool.sandbox.files.write, "go", "")
            return (await running).is_error

    assert asyncio.run(conversation()) is False


def test_sandboxes_of_a_server(server: Server) -> None:
    with cellwall.connect(server.address, ALICE) as client:
        before = len(client.sandboxes(state="running"))
        with CodeTool(client=client, files={"a.txt": "there"}) as tool:
            assert tool.call({"code": "x = open('a.txt').read()"}).execution is not None
            assert tool.call({"code": "x"}).text == "'there'"
            assert asyncio.run(tool.acall({"code": "x"})).text == "'there'"
            assert len(client.sandboxes(state="running")) == before + 1
            client.attach(tool.sandbox.id).close()
            assert NEW in tool.call({"code": "1"}).text
        assert len(client.sandboxes(state="running")) == before
