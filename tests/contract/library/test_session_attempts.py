"""Cells and commands of a session that are cancelled, again and at bad moments, or spoilt.

Either what ran has ended soon and the sandbox goes on, or the sandbox has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cellwall import AsyncSandbox, arun
from cellwall.engine.attempts.attempt import Handle
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.errors import NotFound, UsageError
from cellwall.model.outcome import Verdict
from conftest import Require

_TIDY = """
import time
try:
    print('on', flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print('tidying', flush=True)
    time.sleep(0.2)
    raise
"""
_STUBBORN = """
import time
while True:
    try:
        print('on', flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print('tidying', flush=True)
"""
_LONGER_THAN_THE_GRACE = "import time; time.sleep(1.5); print(kept)"


class Mine(Exception):
    """The caller's."""


def with_sandbox(
    scenario: Callable[[AsyncSandbox], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def work() -> None:
        async with asyncio.timeout(30), AsyncSandbox.create(**options) as sandbox:
            await scenario(sandbox)

    asyncio.run(work())


async def until(claim: Callable[[], bool]) -> None:
    while not claim():  # noqa: ASYNC110 - what the other side makes true, and tells nobody
        await asyncio.sleep(0.01)


class Cell:
    """A cell under way, and how far it has come."""

    def __init__(self, sandbox: AsyncSandbox, code: str, **options: Any) -> None:
        self.heard = ""
        self.handles: list[Handle] = []
        self.task = asyncio.ensure_future(
            sandbox.run(code, on_stdout=self._hear, on_start=self.handles.append, **options)
        )

    def _hear(self, text: str) -> None:
        self.heard += text

    async def says(self, word: str) -> None:
        await until(lambda: word in self.heard)


@pytest.mark.parametrize("limit_s", [None, 0.3])
@pytest.mark.parametrize("again", ["handle", "task"])
def test_who_asks_again_kills_nothing_that_ends_in_time(again: str, limit_s: float | None) -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        await sandbox.run("kept = 41")
        cell = Cell(sandbox, _TIDY, timeout=limit_s)
        await cell.says("on")
        if limit_s is None:
            cell.handles[0].cancel()
        await cell.says("tidying")
        if again == "handle":
            cell.handles[0].cancel()
            verdict = (await cell.task).verdict
            assert verdict is (Verdict.CANCELLED if limit_s is None else Verdict.WALL_TIME)
        else:
            cell.task.cancel()
            await asyncio.wait([cell.task])
            assert cell.task.cancelled()
        assert (await sandbox.run(_LONGER_THAN_THE_GRACE)).stdout == "41\n"

    with_sandbox(scenario)


def test_a_cell_cancelled_twice_that_ends_in_time_leaves_the_sandbox() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        await sandbox.run("kept = 41")
        cell = Cell(sandbox, _TIDY)
        for word in ("on", "tidying"):
            await cell.says(word)
            cell.task.cancel()
        await asyncio.wait([cell.task])
        assert cell.task.cancelled()
        await until(lambda: not sandbox.live.running)
        assert (await sandbox.run(_LONGER_THAN_THE_GRACE)).stdout == "41\n"

    with_sandbox(scenario)


def test_a_cell_cancelled_twice_that_goes_on_ends_with_its_context() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        await sandbox.run("kept = 1")
        cell = Cell(sandbox, _STUBBORN)
        for word in ("on", "tidying"):
            await cell.says(word)
            cell.task.cancel()
        await asyncio.wait([cell.task])
        await until(lambda: not sandbox.live.running)
        after = await sandbox.run("'kept' in globals()")
        assert after.text == "False"
        assert "new one" in " ".join(after.outcome.notes)

    with_sandbox(scenario)


def test_a_stream_left_early_hears_out_what_is_said_at_its_end() -> None:
    # Apart from each other: what comes together is one event.
    many = "for i in range(400): print(i, flush=True); time.sleep(0.0005)"

    async def scenario(sandbox: AsyncSandbox) -> None:
        await sandbox.run("kept = 41")
        events = sandbox.stream(_TIDY.replace("time.sleep(0.2)", many))
        async for event in events:
            if event.kind == "stdout":
                break
        await events.aclose()  # type: ignore[attr-defined]  # a generator, typed as less
        assert (await sandbox.run("print(kept)", timeout=5)).stdout == "41\n"

    with_sandbox(scenario)


def test_an_error_in_on_start_ends_the_cell_and_is_the_callers() -> None:
    def fail(handle: Handle) -> None:
        raise Mine

    async def scenario(sandbox: AsyncSandbox) -> None:
        await sandbox.run("kept = 41")
        with pytest.raises(Mine):
            await sandbox.run("import time; time.sleep(600)", on_start=fail)
        assert not sandbox.live.running
        assert (await sandbox.run("print(kept)")).stdout == "41\n"

    with_sandbox(scenario)


@pytest.mark.parametrize("trick", ["rm -rf ~/.cellwall", "chmod 0 ~/.cellwall"])
def test_a_program_that_takes_its_folder_away_still_has_a_result(
    require: Require, trick: str
) -> None:
    require("perl", is_installed(registry.find("perl")), "run: apt-get install perl")

    async def scenario(sandbox: AsyncSandbox) -> None:
        ran = await sandbox.run(f"system('{trick}'); print 'done';", language="perl")
        assert (ran.stdout, ran.verdict) == ("done", Verdict.OK)

    with_sandbox(scenario)


def test_a_failing_callback_of_a_command_reaches_who_waits() -> None:
    def fail(text: str) -> None:
        raise Mine(text)

    async def scenario(sandbox: AsyncSandbox) -> None:
        command = await sandbox.commands.start("echo hi; sleep 600", on_stdout=fail)
        for _ in range(2):
            with pytest.raises(Mine, match="hi"):
                await command.wait()
        assert not command.is_running
        assert await sandbox.commands.list() == []
        assert not sandbox.live.running

    with_sandbox(scenario)


@pytest.mark.parametrize("spins", [0, 1, 2, 4, 16, 256])
def test_a_cancelled_start_leaves_no_command(spins: int) -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        for _ in range(4):
            start = asyncio.ensure_future(sandbox.commands.start(["sleep", "777"]))
            for _ in range(spins):
                await asyncio.sleep(0)
            start.cancel()
            await asyncio.wait([start])
            if not start.cancelled():
                await start.result().kill()
        await until(lambda: not sandbox.live.running)
        assert await sandbox.commands.list() == []
        count = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep  *77[7]'"
        assert (await sandbox.commands.run(count)).stdout == "0\n"

    with_sandbox(scenario)


def test_a_start_cancelled_as_its_sandbox_ends_is_cancelled() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        start = asyncio.ensure_future(sandbox.commands.start("sleep 5"))
        await asyncio.sleep(0)
        await sandbox.close()
        assert start.cancel()
        await asyncio.wait([start])
        assert start.cancelled()

    with_sandbox(scenario)


def test_a_start_that_cannot_be_says_why() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        with pytest.raises(NotFound, match="no-such-program"):
            await sandbox.commands.start(["no-such-program"])

    with_sandbox(scenario)


@pytest.mark.parametrize("pty", [None, (24, 80)])
def test_a_signal_that_is_none_is_refused_and_the_command_runs_on(
    pty: tuple[int, int] | None,
) -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        command: Any = await sandbox.commands.start(["sleep", "600"], pty=pty)
        for wrong in (9999, 65, 0, -9, "KILL"):
            with pytest.raises(UsageError, match="signal"):
                await command.kill(wrong)
        assert [each.id for each in await sandbox.commands.list()] == [command.id]
        await command.kill()
        assert (await command.wait()).outcome.signal == 9

    with_sandbox(scenario)


@pytest.mark.cgroups
def test_a_command_that_needs_too_much_memory_ends_alone() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        await sandbox.run("kept = 41")
        hog = await sandbox.commands.run(["python3", "-c", "a = bytearray(500 << 20)"])
        assert hog.outcome.verdict is Verdict.MEMORY
        assert (await sandbox.run("print(kept)")).stdout == "41\n"
        assert (await sandbox.run("b = bytearray(500 << 20)")).verdict is Verdict.MEMORY
        assert (await sandbox.run("'kept' in globals()")).text == "False"

    with_sandbox(scenario, limits={"memory_mb": 64})


def test_a_listener_that_fails_keeps_the_end_from_nobody() -> None:
    def fail(reason: str) -> None:
        raise Mine(reason)

    async def scenario(sandbox: AsyncSandbox) -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        heard: list[str] = []
        sandbox.on_ended(fail)
        sandbox.on_ended(heard.append)
        await sandbox.close()
        assert heard == ["it was closed"]
        assert isinstance(told[0]["exception"], Mine)

    with_sandbox(scenario)


def test_a_name_to_collect_is_no_list_of_letters() -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match="collect"):
            await arun("1", collect="out.txt")

    asyncio.run(scenario())
