"""The first programs of an engine that answers first: another fork-server, the same walls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Execution
from cellwall.apps.engines import wait_parked
from cellwall.apps.mcp.tools.catalog import Catalog
from cellwall.apps.mcp.transport import stdio
from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.jail.fork_servers import Entry
from conftest import Require

pytestmark = pytest.mark.usefixtures("rehearsed")

_FACTS = """
from pathlib import Path
status = Path("/proc/self/status").read_text()
print(*[line for line in status.splitlines() if line.startswith(
    ("Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups"))], sep="\\n")
print(Path("/proc/self/limits").read_text())
mounts = Path("/proc/self/mountinfo").read_text().splitlines()
print(*sorted(" ".join(line.split()[4:6]) for line in mounts), sep="\\n")
print(sorted(__import__("os").environ.items()))
print(sorted(__import__("os").listdir("/proc/self/fd")))
"""


@pytest.fixture(scope="module", autouse=True)
def _jail_is_possible(require: Require) -> None:
    async def missing() -> str:
        engine = _engine(answers_first=False)
        try:
            await engine.runtime("namespace", "jail")
        except HostUnsupported as error:
            return str(error)
        finally:
            await engine.aclose()
        return ""

    reason = asyncio.run(missing())
    require("jail", not reason, reason)


def _engine(*, answers_first: bool) -> Engine:
    return Engine(settings=EngineSettings(pool_min=0, pool_max=0), answers_first=answers_first)


async def _entries(engine: Engine) -> tuple[Entry, ...]:
    runtime: Any = await engine.runtime("namespace", "jail")
    entries: tuple[Entry, ...] = runtime._servers.entries
    return entries


def _quick(entries: tuple[Entry, ...]) -> list[bool]:
    return [entry.server.settings.is_quick for entry in entries]


def _do(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


async def _facts(engine: Engine) -> tuple[Execution, str]:
    execution = await engine.run(_FACTS)
    assert execution.ok, execution
    return execution, re.sub(r"\b\d{5,}\b", "#", execution.stdout)  # ids on the host differ


def test_first_programs_have_the_same_walls_as_all_others() -> None:
    async def compared() -> None:
        first, usual = _engine(answers_first=True), _engine(answers_first=False)
        try:
            quick, quick_facts = await _facts(first)
            assert _quick(await _entries(first)) == [True]
            full, full_facts = await _facts(usual)
            assert _quick(await _entries(usual)) == [False]
        finally:
            await first.aclose()
            await usual.aclose()
        assert quick.outcome.isolation == full.outcome.isolation  # with the posture's digest
        assert quick_facts == full_facts
        assert "Seccomp:\t2" in quick_facts

    _do(compared())


def test_full_one_starts_when_more_is_asked_for_and_the_quick_one_goes() -> None:
    async def watched() -> None:
        engine = _engine(answers_first=True)
        try:
            for _ in range(2):
                assert (await engine.run("print(1)")).stdout == "1\n"
                await engine.wait_settled()
                assert _quick(await _entries(engine)) == [True]  # nothing for a single run
            assert (await engine.run("print(1)")).stdout == "1\n"
            await engine.wait_settled()
            assert (await engine.run("print(1)")).stdout == "1\n"
            await engine.wait_settled()
            assert _quick(await _entries(engine)) == [False]
        finally:
            await engine.aclose()

    _do(watched())


_FILLS = "head -c 9500000 /dev/zero > /dev/shm/x && echo kept"


@pytest.mark.parametrize("first", ["", "print(1)"])
def test_first_command_has_all_of_its_memory(first: str) -> None:
    async def watched() -> None:
        engine = _engine(answers_first=True)
        try:
            if first:
                assert (await engine.run(first)).ok
            for round_ in range(2):
                filled = await engine.run(_FILLS, language="bash", limits={"memory_mb": 16})
                assert filled.stdout == "kept\n", filled.outcome
                if not round_:  # later ones may be of the full one
                    assert all(_quick(await _entries(engine)))
        finally:
            await engine.aclose()

    _do(watched())


def test_probe_reports_all_whether_or_not_the_first_answer_waits() -> None:
    async def compared() -> None:
        features = []
        for answers_first in (True, False):
            engine = _engine(answers_first=answers_first)
            try:
                _, found = await engine.probe("jail")
                features.append([each.feature for each in found])
            finally:
                await engine.aclose()
        assert features[0] == features[1]

    _do(compared())


def test_session_comes_from_a_full_one() -> None:
    async def watched() -> None:
        engine = _engine(answers_first=True)
        try:
            async with await engine.create_sandbox() as sandbox:
                await sandbox.run("numbers = [1, 2]")
                assert (await sandbox.run("sum(numbers)")).text == "3"
                assert _quick(await _entries(engine)) == [False]
        finally:
            await engine.aclose()

    _do(watched())


def test_warm_start_of_the_mcp_door_keeps_the_full_one_alone(tmp_path: Path) -> None:
    async def watched() -> None:
        settings = EngineSettings(pool_min=1, pool_max=1, runtimes=("jail",))
        engine = Engine(settings=settings, answers_first=True)
        try:
            await stdio._warm(engine, Catalog(tmp_path))  # no template is built there but python
            await wait_parked(engine)
            await engine.wait_settled()
            assert engine.statistics().pool.parked == 1
            assert _quick(await _entries(engine)) == [False]
        finally:
            await engine.aclose()

    _do(watched())


def test_killed_quick_one_costs_no_run() -> None:
    async def attack() -> None:
        engine = _engine(answers_first=True)
        try:
            await engine.run("print(1)")
            (entry,) = await _entries(engine)
            entry.server.lose("a test")
            assert (await engine.run("print(2)")).stdout == "2\n"
            await engine.wait_settled()
            assert _quick(await _entries(engine)) == [False]
        finally:
            await engine.aclose()

    _do(attack())


def test_engine_that_closes_during_the_start_of_a_full_one_leaves_none() -> None:
    async def closed() -> None:
        engine = _engine(answers_first=True)
        try:
            for _ in range(3):
                await engine.run("print(1)")
            runtime: Any = await engine.runtime("namespace", "jail")
            servers = runtime._servers
            (start,) = servers._full_starts.values()
        finally:
            await engine.aclose()
        assert start.done()
        assert servers.entries == ()

    _do(closed())
