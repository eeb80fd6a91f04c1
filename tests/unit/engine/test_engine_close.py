"""Closing an engine at any moment leaves nothing and answers everybody; `process` runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.model.errors import CellwallError, Conflict
from cellwall.model.execution import Execution
from cellwall.model.outcome import Verdict
from cellwall.testing.bare import BareTemplates

CHOICE: dict[str, Any] = {"runtime": "process", "isolation": "process"}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> BareTemplates:
    return BareTemplates(tmp_path_factory.mktemp("template") / "env")


def play(
    tmp_path: Path, templates: BareTemplates, body: Callable[[Engine], Awaitable[None]]
) -> None:
    async def main() -> None:
        engine = Engine(tmp_path, EngineSettings(allow_process=True), templates=templates)
        try:
            await body(engine)
        finally:
            await engine.aclose()
        assert engine.statistics().runtimes["process"].live == 0
        assert list((tmp_path / "process").glob("*")) == []

    asyncio.run(main())


def test_close_while_starting_leaves_nothing(tmp_path: Path, templates: BareTemplates) -> None:
    async def body(engine: Engine) -> None:
        runs = [asyncio.ensure_future(engine.run("print(1)", **CHOICE)) for _ in range(5)]
        await asyncio.sleep(0)
        await engine.aclose()
        answers = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(answer, (Execution, CellwallError)) for answer in answers)

    play(tmp_path, templates, body)


def test_close_while_running_answers_cancelled(tmp_path: Path, templates: BareTemplates) -> None:
    async def body(engine: Engine) -> None:
        up = asyncio.Event()
        code = "print('up', flush=True)\nimport time; time.sleep(60)"
        run = asyncio.ensure_future(engine.run(code, on_event=lambda _: up.set(), **CHOICE))
        await up.wait()
        await engine.aclose()
        assert (await run).verdict is Verdict.CANCELLED

    play(tmp_path, templates, body)


def test_closed_engine_refuses(tmp_path: Path, templates: BareTemplates) -> None:
    async def body(engine: Engine) -> None:
        await engine.run("pass", **CHOICE)
        await engine.aclose()
        with pytest.raises(Conflict):
            await engine.run("pass", **CHOICE)

    play(tmp_path, templates, body)


@pytest.mark.parametrize("turns", [0, 1, 3, 8, 20])
def test_cancelled_run_leaves_nothing(tmp_path: Path, templates: BareTemplates, turns: int) -> None:
    async def body(engine: Engine) -> None:
        await engine.run("pass", **CHOICE)
        run = asyncio.ensure_future(engine.run("import time; time.sleep(60)", **CHOICE))
        for _ in range(turns):
            await asyncio.sleep(0.001)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    play(tmp_path, templates, body)
