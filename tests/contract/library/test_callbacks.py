"""What becomes of a run whose caller's own callback fails."""

from __future__ import annotations

import asyncio

import pytest

from cellwall import Engine, Event


class Mine(Exception):
    """The caller's."""


def _fail(event: Event) -> None:
    raise Mine(event.kind)


@pytest.mark.parametrize(
    "code", ["print(1)", "import time\nprint(1)\ntime.sleep(600)", "print(1, end='')", "1/0"]
)
def test_an_error_of_the_callers_callback_ends_the_run_and_is_the_callers(code: str) -> None:
    async def scenario() -> None:
        engine = Engine()
        try:
            with pytest.raises(Mine):
                await asyncio.wait_for(engine.run(code, on_event=_fail), 20)
            again = await engine.run("print('fine')")
            assert (again.stdout, again.outcome.verdict.value) == ("fine\n", "ok")
        finally:
            await engine.aclose()

    asyncio.run(scenario())


def test_a_session_goes_on_after_one() -> None:
    async def scenario() -> None:
        engine = Engine()
        try:
            sandbox = await engine.create_sandbox()
            code = "import time\nprint(1)\ntime.sleep(600)"
            with pytest.raises(Mine):
                await asyncio.wait_for(sandbox.run(code, on_event=_fail), 20)
            assert (await sandbox.run("print(2)")).stdout == "2\n"
        finally:
            await engine.aclose()

    asyncio.run(scenario())
