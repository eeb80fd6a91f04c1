"""Closing an engine at any moment leaves nothing and answers everybody; `process` runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.model.errors import CellwallError, Conflict
from cellwall.model.execution import Event, Execution
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
        assert all(each.live == 0 for each in engine.statistics().runtimes.values())
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
        code = "print('up', flush=True)\nimport signal; signal.pause()"
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


class _Turns:
    """The waits of a coroutine, counted; `at` is called in the one of that number, if any."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], number: int | None, at: Callable[[], object]
    ) -> None:
        self._work, self._number, self._at = work, number, at

    def __await__(self) -> Generator[Any, Any, Any]:
        step = partial(self._work.send, None)
        for number in count():
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            if number == self._number:
                asyncio.get_running_loop().call_soon(self._at)
            step = partial(self._work.send, None)
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the cancellation, passed on
                step = partial(self._work.throw, error)


@pytest.mark.parametrize("is_parked", [True, False])
@pytest.mark.parametrize("number", [None, 0, 1, 2, 4])
def test_cancelled_run_leaves_nothing(
    tmp_path: Path, templates: BareTemplates, number: int | None, is_parked: bool
) -> None:
    """In one of its waits; `None`: before its first step. In the last one the program prints."""

    async def body(engine: Engine) -> None:
        if is_parked:
            await engine.run("pass", **CHOICE)
        code = "print('up', flush=True)\nimport signal; signal.pause()"

        def on_event(_event: Event) -> None:
            task.cancel()

        async def run() -> None:
            work = engine.run(code, on_event=on_event, **CHOICE)
            await _Turns(work, number, task.cancel)

        task = asyncio.ensure_future(run())
        if number is None:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(bucket.in_use == 0 for bucket in engine._pool._buckets.values())

    play(tmp_path, templates, body)
