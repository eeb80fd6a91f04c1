"""A fork-server that was started before its engine: the same walls, and an end in every case."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings
from cellwall.engine import head_start
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.jail.starting.head_start import HeadStart
from conftest import Require
from kit.arena import Traces
from kit.waiting import wait_until

_FACTS = """
from pathlib import Path
status = Path("/proc/self/status").read_text()
print(*[line for line in status.splitlines() if line.startswith(
    ("Cap", "NoNewPrivs", "Seccomp", "Groups", "SigIgn", "SigCgt", "Umask"))], sep="\\n")
mounts = Path("/proc/self/mountinfo").read_text().splitlines()
print(*sorted(" ".join(line.split()[4:6]) for line in mounts), sep="\\n")
print(sorted(__import__("os").environ.items()), __import__("os").getcwd())
print(sorted(__import__("os").listdir("/proc/self/fd")))
"""


@pytest.fixture(scope="module", autouse=True)
def _jail_is_possible(require: Require) -> None:
    async def missing() -> str:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            await engine.runtime("namespace", "jail")
            await engine.template("python")
        except HostUnsupported as error:
            return str(error)
        finally:
            await engine.aclose()
        return ""

    reason = asyncio.run(missing())
    require("jail", not reason, reason)


def _begun() -> HeadStart:
    built = TemplateStore(state_dir()).find("python")
    assert built is not None
    ahead = HeadStart(state_dir())
    ahead.go_on(built)
    return ahead


def _boot(ahead: HeadStart) -> int:
    assert ahead._begun is not None
    return ahead._begun.launched.boot.pid


def _engine(ahead: HeadStart | None, **options: Any) -> Engine:
    settings = EngineSettings(pool_min=0, pool_max=0, **options)
    return Engine(settings=settings, answers_first=True, head_start=ahead)


async def _facts(ahead: HeadStart | None) -> tuple[object, str]:
    engine = _engine(ahead)
    try:
        execution = await engine.run(_FACTS)
        assert execution.ok, execution
        if ahead is not None:  # the control: it was used
            assert ahead._begun is None
        return execution.outcome.isolation, execution.stdout
    finally:
        await engine.aclose()


def test_its_sandboxes_have_the_walls_of_all_others() -> None:
    async def compared() -> None:
        isolation, facts = await _facts(_begun())
        assert (isolation, facts) == await _facts(None)
        assert "Seccomp:\t2" in facts

    asyncio.run(asyncio.wait_for(compared(), 120))


def _never_told() -> None:
    HeadStart(state_dir()).close()


def _never_used() -> None:
    _begun().close()


def _of_an_engine_that_runs_nothing() -> None:
    async def idle() -> None:
        await _engine(_begun()).aclose()

    asyncio.run(idle())


def _of_an_engine_of_another_runtime() -> None:
    async def other() -> None:
        engine = _engine(_begun(), runtimes=("process",), allow_process=True)
        try:
            assert (await engine.run("print(1)", isolation="process")).stdout == "1\n"
        finally:
            await engine.aclose()

    asyncio.run(other())


@pytest.mark.parametrize(
    "use",
    [_never_told, _never_used, _of_an_engine_that_runs_nothing, _of_an_engine_of_another_runtime],
)
def test_one_that_is_not_used_leaves_nothing(use: Callable[[], None]) -> None:
    before = Traces.now()
    use()
    wait_until(lambda: Traces.now().is_no_more_than(before), "its processes end")


def test_one_whose_boot_was_killed_costs_no_run() -> None:
    ahead = _begun()
    os.kill(_boot(ahead), signal.SIGKILL)

    async def run() -> str:
        engine = _engine(ahead)
        try:
            return (await engine.run("print(1)")).stdout
        finally:
            await engine.aclose()

    assert asyncio.run(asyncio.wait_for(run(), 60)) == "1\n"


def test_one_of_another_template_is_not_taken() -> None:
    ahead = _begun()
    assert ahead.take("0" * 32) is None
    boot = _boot(ahead)
    ahead.close()
    assert not Path(f"/proc/{boot}").exists()


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"runtime": "gvisor"}, {}),
        ({"isolation": "kernel"}, {}),
        ({"trust": "untrusted"}, {}),
        ({"image": "debian"}, {}),
        ({}, {"CELLWALL_RUNTIMES": "gvisor"}),
        ({}, {"CELLWALL_DEFAULT_ISOLATION": "kernel"}),
    ],
)
def test_nothing_is_begun_where_another_runtime_may_be_chosen(
    options: dict[str, str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_start.begun({}) as ahead:
        assert ahead is not None  # the control
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with head_start.begun(options) as ahead:
        assert ahead is None
