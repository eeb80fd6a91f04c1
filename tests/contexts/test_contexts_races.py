"""Contexts that are closed, restarted, cancelled and asked for at the same time.

Host and guest agree afterwards: a name can be used again, and nothing runs where it was not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cellwall import AsyncSandbox
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.errors import NotFound, UsageError
from cellwall.model.execution import Execution
from cellwall.model.outcome import Verdict
from conftest import Require

_SLEEP = "import time; print('on', flush=True); time.sleep(600)"


def with_sandbox(
    scenario: Callable[[AsyncSandbox], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def work() -> None:
        async with asyncio.timeout(40), AsyncSandbox.create(**options) as sandbox:
            await scenario(sandbox)

    asyncio.run(work())


async def busy(sandbox: AsyncSandbox, context: str) -> asyncio.Task[Execution]:
    """Have it run something that does not end by itself."""
    on = asyncio.Event()
    running = asyncio.ensure_future(
        sandbox.run(_SLEEP, context=context, on_stdout=lambda _text: on.set())
    )
    await on.wait()
    return running


async def queued(cell: Coroutine[Any, Any, Execution]) -> asyncio.Task[Execution]:
    """Send a cell to a context that is busy."""
    waiting = asyncio.ensure_future(cell)
    for _ in range(3):
        await asyncio.sleep(0)
    return waiting


@pytest.mark.parametrize("spins", [1, 2, 4, 16, 256, 4096])
def test_a_cancelled_create_leaves_the_name_free(spins: int) -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        for _ in range(3):
            made = asyncio.ensure_future(sandbox.contexts.create("two"))
            for _ in range(spins):
                await asyncio.sleep(0)
            made.cancel()
            await asyncio.wait([made])
            if not made.cancelled():
                await sandbox.contexts.close("two")
        assert await sandbox.contexts.list() == ["python"]
        await sandbox.contexts.create("two")
        assert await sandbox.contexts.list() == ["python", "two"]
        assert (await sandbox.run("1 + 1", context="two")).text == "2"
        await sandbox.contexts.close("two")

    with_sandbox(scenario)


@pytest.mark.parametrize("language", ["bash", "javascript"])
def test_a_cancelled_first_cell_of_a_language_spoils_no_later_one(
    require: Require, language: str
) -> None:
    known = registry.find(language)
    require(language, is_installed(known), f"run: {known.install}")

    async def scenario(sandbox: AsyncSandbox) -> None:
        first = asyncio.ensure_future(sandbox.run("echo=1", language))
        for _ in range(8):
            await asyncio.sleep(0)
        waiting = await queued(sandbox.run("echo=2", language))
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        for ran in (await waiting, await sandbox.run("echo=3", language)):
            assert (ran.verdict, ran.language) == (Verdict.OK, language)

    with_sandbox(scenario)


def test_a_cell_that_waits_for_a_closed_context_runs_in_no_other_of_its_name() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        await sandbox.contexts.create("w")
        running = await busy(sandbox, "w")
        waiting = [
            await queued(sandbox.run("open('ran', 'w')", language, context="w"))
            for language in ("python", None)
        ]
        await sandbox.contexts.close("w")
        made = await sandbox.contexts.create("w", "bash")
        assert (made, made.language) == ("w", "bash")
        assert (await running).outcome.signal == 9
        for cell in waiting:
            with pytest.raises(NotFound, match="closed meanwhile"):
                await cell
        assert not await sandbox.files.exists("ran")
        assert (await sandbox.run("echo $((6 * 7))", context="w")).stdout == "42\n"

    with_sandbox(scenario)


def test_restarts_at_the_same_time_are_one() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        for _ in range(3):
            await sandbox.run("kept = 1")
            restarts = asyncio.gather(*(sandbox.contexts.restart() for _ in range(3)))
            _, ran = await asyncio.gather(restarts, sandbox.run("'kept' in globals()"))
            assert (ran.text, ran.verdict) == ("False", Verdict.OK)
        assert (await sandbox.run("1 + 1")).outcome.notes == ()

    with_sandbox(scenario)


def test_a_cell_that_waits_runs_in_what_was_restarted() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        for _ in range(3):
            await sandbox.run("kept = 1")
            running = await busy(sandbox, "python")
            waiting = await queued(sandbox.run("'kept' in globals()"))
            await sandbox.contexts.restart()
            assert (await running).outcome.signal == 9
            ran = await waiting
            assert (ran.text, ran.verdict) == ("False", Verdict.OK)
        assert (await sandbox.run("1 + 1")).outcome.notes == ()

    with_sandbox(scenario)


def test_a_restart_that_is_cancelled_leaves_the_name_usable() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        for spins in (1, 4, 64, 1024):
            await sandbox.run("kept = 1")
            restart = asyncio.ensure_future(sandbox.contexts.restart())
            for _ in range(spins):
                await asyncio.sleep(0)
            restart.cancel()
            await asyncio.wait([restart])
            assert (await sandbox.run("'kept' in globals()")).text == "False"

    with_sandbox(scenario)


def test_a_late_end_of_a_cell_does_not_end_what_was_restarted() -> None:
    # Its process is gone, but it still waits for the tool it had called.
    async def scenario(sandbox: AsyncSandbox) -> None:
        called, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> int:
            called.set()
            try:
                await go_on.wait()
            finally:
                await asyncio.shield(go_on.wait())
            return 1

        running = asyncio.ensure_future(sandbox.run("tools.slow()", tools={"slow": slow}))
        await called.wait()
        await sandbox.contexts.restart()
        go_on.set()
        assert (await running).verdict is Verdict.SIGNALLED
        kept = await sandbox.run("kept = 41")
        assert (kept.verdict, kept.outcome.notes) == (Verdict.OK, ())
        assert (await sandbox.run("kept")).text == "41"

    with_sandbox(scenario)


def test_two_first_cells_of_a_missing_language_are_both_told() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        cells = [sandbox.run("1", language="jupyter:nowhere") for _ in range(2)]
        for answer in await asyncio.gather(*cells, return_exceptions=True):
            assert isinstance(answer, UsageError)
            assert "install" in str(answer)

    with_sandbox(scenario)
