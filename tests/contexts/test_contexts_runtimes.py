"""Contexts of JavaScript and Bash on runtimes other than the jail."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from cellwall.embedded import Runner, Sandbox
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.templates.store import state_dir
from cellwall.model.errors import HostUnsupported
from cellwall.model.outcome import Verdict
from conftest import Require
from kit.languages.spoken import BASH, JAVASCRIPT, TEXT, Spoken

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.needs("node"),
    pytest.mark.xdist_group("containers"),  # one daemon, one image
]
_RUNTIMES = {"process": "process", "gvisor": "kernel", "docker": "namespace"}
both = pytest.mark.parametrize("spoken", [JAVASCRIPT, BASH], ids=lambda each: each.language)


def _engine() -> Engine:
    return Engine(state_dir(), EngineSettings(allow_process=True))


async def _what_is_missing(runtime: str) -> str:
    engine = _engine()
    try:
        await engine.runtime(_RUNTIMES[runtime], runtime)
    except HostUnsupported as error:
        return str(error)
    finally:
        await engine.aclose()
    return ""


@pytest.fixture(scope="module", params=list(_RUNTIMES))
def sandbox(request: pytest.FixtureRequest, require: Require) -> Iterator[Sandbox]:
    runtime: str = request.param
    if runtime == "docker":
        request.getfixturevalue("docker_daemon")
    if runtime == "gvisor":
        require("runsc", shutil.which("runsc") is not None, "run: apt-get install runsc")
    missing = asyncio.run(_what_is_missing(runtime))
    require(runtime, not missing, missing)
    runner = Runner(_engine)
    try:
        options: dict[str, Any] = {"runtime": runtime, "isolation": _RUNTIMES[runtime]}
        limits = {"memory_mb": 1024, "processes": 200}
        with Sandbox(limits=limits, runner=runner, **options) as made:
            yield made
    finally:
        runner.close()


@both
def test_state_is_kept(sandbox: Sandbox, spoken: Spoken) -> None:
    sandbox.run(spoken.keep, language=spoken.language)
    execution = sandbox.run(spoken.kept, language=spoken.language)
    shown = execution.results[-1]["text/plain"] if spoken.shown else execution.stdout.strip()
    assert shown == "42"


def test_javascript_calls_tools_of_the_host(sandbox: Sandbox) -> None:
    def double(number: int) -> int:
        return number * 2

    code = "(await Promise.all([1, 2, 3].map((number) => tools.double({ number })))).join()"
    execution = sandbox.run(code, language="javascript", tools=[double])
    assert execution.text == "'2,4,6'", execution


@both
def test_streams_input_and_text(sandbox: Sandbox, spoken: Spoken) -> None:
    split = sandbox.run(spoken.split, language=spoken.language)
    assert (split.stdout, split.stderr) == ("out\n", "err\n")
    echo = sandbox.run(spoken.echo, language=spoken.language, stdin=f"{TEXT}\n")
    assert echo.stdout == f"{TEXT}\n"


@both
def test_wall_limit_ends_the_cell_and_keeps_the_state(sandbox: Sandbox, spoken: Spoken) -> None:
    sandbox.run(spoken.keep, language=spoken.language)
    execution = sandbox.run(spoken.loop, language=spoken.language, timeout=1)
    assert (execution.verdict, execution.stdout) == (Verdict.WALL_TIME, "on\n")
    assert sandbox.run(spoken.kept, language=spoken.language).verdict is Verdict.OK


@both
def test_end_of_the_interpreter_is_seen_by_the_kernel(sandbox: Sandbox, spoken: Spoken) -> None:
    execution = sandbox.run(spoken.leave, language=spoken.language)
    assert (execution.verdict, execution.exit_code) == (Verdict.NONZERO_EXIT, 3)
    after = sandbox.run(spoken.say, language=spoken.language)
    assert after.stdout == f"{TEXT}\n"
    assert any("without its state" in note for note in after.outcome.notes)


def test_files_are_shared(sandbox: Sandbox) -> None:
    sandbox.run(JAVASCRIPT.write, language="javascript")
    assert sandbox.run(BASH.read, language="bash").stdout == TEXT


def test_program_runs_in_a_node_that_waited(sandbox: Sandbox) -> None:
    runtime = sandbox.isolation.runtime
    code = "console.log(process.argv.slice(2), require.main === module); process.exit(4)"
    execution = sandbox._thread.call(
        lambda engine, _put: engine.run(
            code,
            language="javascript",
            args=["a"],
            runtime=runtime,
            isolation=_RUNTIMES[runtime],
        )
    )
    assert (execution.stdout, execution.exit_code) == ("[ 'a' ] true\n", 4)
