"""Paused sandboxes at their worst moments: killed owners, kills, crowds, a thousand pauses.

In both freezers of the kernel. One frozen in cgroup v1 takes no signal, which the controls show.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings
from cellwall.linux.cgroups import hierarchies, leftovers
from cellwall.linux.cgroups.engine_tree import PREFIX
from cellwall.linux.cgroups.hierarchies import Layout
from cellwall.model.errors import CellwallError, SandboxUnavailable
from cellwall.model.outcome import Verdict
from conftest import Require

pytestmark = [pytest.mark.attack]

VERSIONS = (1, 2)
OWNER = """
import asyncio, sys
from dataclasses import replace
from cellwall import Engine
from cellwall.linux.cgroups import hierarchies

async def main():
    engine = Engine()
    jail, _ = await engine.probe("jail")
    found = hierarchies.discover()
    jail.layout = replace(found, freezing=found.v1_freezer) if sys.argv[1] == "1" else found
    sandbox = await engine.create_sandbox(runtime="jail")
    await sandbox.run("x = 1")
    await sandbox.commands.start("sleep 1000")
    await sandbox.pause()
    groups = sandbox.live.runtime_sandbox._resources.groups
    guard = jail._freezer_threads.guard._process
    print(0 if guard is None else guard.pid, *groups.members(), flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""


def on_a_loop(test: Callable[[int], Coroutine[Any, Any, None]]) -> Callable[[int], None]:
    """Make an asynchronous test of a version an ordinary one."""

    @functools.wraps(test)
    def run(version: int) -> None:
        asyncio.run(test(version))

    return run


def layout_of(version: int) -> Layout:
    found = hierarchies.discover()
    return replace(found, freezing=found.v1_freezer) if version == 1 else found


@pytest.fixture(params=VERSIONS, ids=["v1", "v2"])
def version(request: pytest.FixtureRequest, require: Require) -> int:
    """The version of the freezer."""
    number: int = request.param
    freezing = layout_of(number).freezing
    is_there = freezing is not None and freezing.version == number
    require(f"freezer of cgroup v{number}", is_there and os.geteuid() == 0, "as root, with both")
    return number


@contextlib.asynccontextmanager
async def engine_on(version: int, **settings: Any) -> AsyncIterator[Engine]:
    engine = Engine(settings=replace(EngineSettings.from_environment(), **settings))
    try:
        jail: Any = (await engine.probe("jail"))[0]
        jail.layout = layout_of(version)
        yield engine
    finally:
        await engine.aclose()


def directories() -> set[str]:
    """Return our directories in the hierarchies for freezing."""
    found = hierarchies.discover()
    bases = [each.base for each in (found.freezing, found.v1_freezer) if each is not None]
    mine = f"-{os.getpid()}-"
    return {str(path) for base in bases for path in base.glob(f"{PREFIX}*") if mine in path.name}


def is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def wait_until(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def owner(version: int) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """A process with one paused sandbox; its guard, and the pids that are frozen."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(version)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        guard, *pids = map(int, process.stdout.readline().split())
        assert len(pids) >= 3  # init, its context, the command
        assert bool(guard) == (version == 1)
        yield process, guard, pids
        process.kill()


def test_killed_owner_leaves_nothing_frozen(
    owner: tuple[subprocess.Popen[str], int, list[int]],
) -> None:
    process, _, pids = owner
    assert all(map(is_there, pids))
    process.kill()
    assert wait_until(lambda: not any(map(is_there, pids)))  # no sweep comes


@pytest.mark.alone  # the engine of a test beside it would sweep first
@pytest.mark.parametrize("version", [1], ids=["v1"])
def test_sweep_ends_what_stays_frozen_when_the_guard_dies_too(
    owner: tuple[subprocess.Popen[str], int, list[int]], version: int
) -> None:
    process, guard, pids = owner
    os.kill(guard, signal.SIGKILL)
    label = next(
        line.rsplit(PREFIX, 1)[1].split("/")[0]
        for line in Path(f"/proc/{pids[0]}/cgroup").read_text().splitlines()
        if ":freezer:" in line
    )
    process.kill()
    process.wait()
    time.sleep(1)  # nothing happens that could be waited for: no signal reaches them
    assert all(map(is_there, pids))  # the control
    removed, kept = leftovers.sweep(hierarchies.discover(), lambda found: found == label)
    assert (removed > 0, kept) == (True, [])
    assert wait_until(lambda: not any(map(is_there, pids)))


@on_a_loop
async def test_sandbox_that_is_paused_too_long_ends(version: int) -> None:
    async with engine_on(version, paused_s=1.0) as engine:
        sandbox = await engine.create_sandbox(runtime="jail")
        for _ in range(3):  # pauses add up
            await sandbox.pause()
            await asyncio.sleep(0.3)
            await sandbox.resume()
        assert engine.statistics().paused == 0
        await sandbox.pause()
        async with asyncio.timeout(5):
            while engine.statistics().sandboxes:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.02)
        with pytest.raises(SandboxUnavailable, match="paused for 1 s"):
            await sandbox.run("1")


@on_a_loop
async def test_thousand_pauses_leave_nothing(version: int) -> None:
    async with engine_on(version) as engine:
        sandbox = await engine.create_sandbox(runtime="jail")
        await sandbox.run("n = 0")
        await sandbox.pause()
        await sandbox.run("n += 1")
        await engine.pool.wait_full()
        await engine.wait_settled()
        before = (
            len(os.listdir("/proc/self/fd")),
            len(directories()),
            len(os.listdir("/proc/self/task")),
        )
        for each in range(1000):
            await sandbox.pause()
            await (sandbox.run("n += 1") if each % 10 == 0 else sandbox.resume())
        execution = await sandbox.run("print(n)")
        assert execution.stdout == "101\n"
        after = (
            len(os.listdir("/proc/self/fd")),
            len(directories()),
            len(os.listdir("/proc/self/task")),
        )
        assert after[:2] == before[:2]
        assert after[2] <= before[2] + 2
    assert not directories()


@on_a_loop
async def test_fifty_paused_sandboxes_use_no_cpu_time(version: int) -> None:
    async with engine_on(version) as engine:
        made = [
            await engine.create_sandbox(runtime="jail", limits={"memory_mb": 64}) for _ in range(50)
        ]
        for sandbox in made:
            await sandbox.commands.start("while :; do sleep 0.1; done")
        await asyncio.gather(*(sandbox.pause() for sandbox in made))
        assert engine.statistics().paused == 50
        before = sum(each.live.readings().cpu_s for each in made)
        await asyncio.sleep(1)
        assert sum(each.live.readings().cpu_s for each in made) == before
        await asyncio.gather(*(sandbox.resume() for sandbox in made))
        await asyncio.sleep(0.5)
        assert sum(each.live.readings().cpu_s for each in made) > before  # the control
        await asyncio.gather(*(sandbox.pause() for sandbox in made[::2]))
    assert not directories()


@on_a_loop
async def test_processes_that_multiply_stand_still(version: int) -> None:
    """Those born while the others are being frozen are caught, too."""
    async with engine_on(version) as engine:
        sandbox = await engine.create_sandbox(runtime="jail", limits={"cpus": 2})
        churn = "for a in 1 2 3 4; do (while :; do /bin/true & wait; done) & done; wait"
        await sandbox.commands.start(churn)
        await asyncio.sleep(0.2)
        for _ in range(5):
            await sandbox.pause()
            before = sandbox.live.readings().cpu_s
            await asyncio.sleep(0.2)
            assert sandbox.live.readings().cpu_s == before
            await sandbox.resume()
            await asyncio.sleep(0.05)
        assert (await sandbox.run("print(1)")).stdout == "1\n"


@on_a_loop
async def test_sandbox_that_is_killed_during_a_pause_is_gone(version: int) -> None:
    """At any moment of it; whoever waits gets an error of ours."""
    async with engine_on(version) as engine:
        for step in range(24):
            sandbox = await engine.create_sandbox(runtime="jail")
            running = asyncio.ensure_future(sandbox.run("import time; time.sleep(60)"))
            await asyncio.sleep(0.02)
            pausing = asyncio.ensure_future(sandbox.pause())
            await asyncio.sleep(0.0015 * (step % 12))
            await sandbox.close()
            with contextlib.suppress(CellwallError):
                await pausing
            execution = await running
            assert execution.verdict is Verdict.CANCELLED
        await engine.wait_settled()
        assert engine.statistics().runtimes["jail"].detail["cgroups_not_removed"] == 0
    assert not directories()


@on_a_loop
async def test_memory_limit_of_a_paused_sandbox_still_holds(version: int) -> None:
    async with engine_on(version) as engine:
        sandbox = await engine.create_sandbox(runtime="jail", limits={"memory_mb": 64})
        await sandbox.pause()
        execution = await sandbox.run("b'x' * (200 << 20)")
        assert execution.verdict is Verdict.MEMORY
