"""Kills at every step of a fork, a snapshot, a restore, a pause: nothing is left.

A step is a line of the engine's own code (`kit.copies.steps`). Before it a source, a target, what
runs in them, a fork-server or the engine itself is killed. The witnesses are the host's listings of
processes and cgroups, and a neighbour. CI takes a few steps of each operation; with
CELLWALL_TEST_STEPS=100000 it is each of them: 1,350 of a fork of two alone, so hours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.linux.cgroups import hierarchies
from cellwall.model.errors import CellwallError
from conftest import Require
from kit.arena import Arena
from kit.copies.steps import MOST, Steps, chosen
from kit.figures import children
from kit.jail.control_groups import control_groups
from kit.places import ROOT, TESTS
from kit.servers import state_of
from kit.waiting import is_alive

pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.timeout(240 + 20 * min(MOST, 500))]

Operation = Callable[["Scene"], Awaitable[None]]
KEPT = "kept"
ENGINE = Path(__file__).parents[2] / "kit" / "copies" / "killed_engine.py"


class Scene:
    """One session that is copied or paused, and the host's view of what may be killed."""

    def __init__(self, arena: Arena, source: AsyncSandbox, server: int) -> None:
        """What is there now is spared: the neighbour, and what stands still for the base."""
        self.engine = arena.engine
        self.arena = arena
        self.source = source
        self.made: list[AsyncSandbox] = []
        self._spared: set[int] = set()
        self._spared = set(self.inits(server))

    def inits(self, server: int) -> list[int]:
        """Return the inits of every sandbox that has come since."""
        found = [pid for worker in children(server) for pid in children(worker)]
        return [pid for pid in found if pid not in self._spared]

    def victims(self, kind: str, server: int) -> list[int]:
        """Return the pids that are killed at a step."""
        source, targets = pid_of(self.source), self.inits(server)
        return {
            "source": lambda: [source],
            "clone": lambda: children(source),
            "target": lambda: targets,
            "copy": lambda: [pid for each in targets for pid in children(each)],
            "fork-server": lambda: [server],
        }[kind]()


def pid_of(sandbox: AsyncSandbox) -> int:
    """Return the host's pid of its init."""
    return int(sandbox.live.runtime_sandbox.pid)  # type: ignore[attr-defined]


async def fork(scene: Scene) -> None:
    for each in await scene.source.fork(2):
        if each.made is not None:
            scene.made.append(each.made)
        else:
            assert isinstance(each.error, CellwallError), repr(each.error)


async def snapshot(scene: Scene) -> None:
    scene.engine.copies.delete((await scene.source.snapshot()).id, "")


async def restore(scene: Scene) -> None:
    scene.made.append(await scene.engine.copies.restore(KEPT, ""))


async def pause(scene: Scene) -> None:
    await scene.source.pause()
    await scene.source.resume()


OPERATIONS: dict[str, Operation] = {
    "fork": fork,
    "snapshot": snapshot,
    "restore": restore,
    "pause": pause,
}
VICTIMS = {
    "fork": ("source", "clone", "target", "copy", "fork-server"),
    "snapshot": ("source", "clone", "fork-server"),
    "restore": ("target", "copy", "fork-server"),
    "pause": ("source", "clone", "fork-server"),
}
CASES = [(operation, kind) for operation, kinds in VICTIMS.items() for kind in kinds]


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    made = Steps()
    yield made
    made.close()


@pytest.fixture(scope="module")
def arena(steps: Steps) -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox) -> str:
    """What it answers; nothing if it has ended, with an error of ours."""
    try:
        return (await sandbox.run("print(x)", timeout=10)).stdout
    except CellwallError:
        return ""


async def _killed(arena: Arena, steps: Steps, operation: str, kind: str, at: int) -> int:
    """Kill at one step; return how many there are."""
    async with arena.sandbox() as source, arena.sandbox() as neighbour:
        for each in (source, neighbour):
            await each.run("x = 1; big = bytearray(b'x' * (1 << 20)); open('f', 'w').write('y')")
        kept = await source.snapshot(KEPT)
        _, server = await arena.fork_server()
        scene = Scene(arena, source, server)
        killed: list[int] = []

        def kill() -> None:
            for pid in scene.victims(kind, server):
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

        try:
            with steps.armed(at, kill):
                await OPERATIONS[operation](scene)
        except CellwallError:
            assert killed, f"step {at}: nothing was killed, and it failed"
        count = steps.count
        said = [await _said(each) for each in (source, neighbour, *scene.made)]
        for each in scene.made:
            await each.close()
        arena.engine.copies.delete(kept.id, "")
    assert set(said) <= {"1\n", ""}, f"step {at}: {said}"
    if kind != "fork-server" or not killed:
        assert said[1] == "1\n", f"step {at}: the neighbour: {said}"
    if kind in {"target", "copy"}:
        assert said[0] == "1\n", f"step {at}: the source: {said}"
    return count


@pytest.mark.parametrize(("operation", "kind"), CASES)
def test_kill_at_every_step_leaves_nothing(
    arena: Arena, steps: Steps, operation: str, kind: str
) -> None:
    arena.do(_killed(arena, steps, "fork", kind, 0))  # the base of the fork-server, which stays
    count = arena.do(_killed(arena, steps, operation, kind, 0))  # nothing is killed: the control
    assert count > 30
    with arena.leaving_nothing():
        for at in chosen(count):
            arena.do(_killed(arena, steps, operation, kind, at))
        if kind == "fork-server":  # there is one again, and its base
            arena.do(_killed(arena, steps, operation, kind, 0))
    assert arena.engine._sandboxes == {}
    assert arena.engine.copies.snapshots("") == []


# -- the engine itself -----------------------------------------------------------------------------


def _engine(folder: Path, operation: str, version: int, step: int) -> tuple[int, list[list[str]]]:
    """Run an engine that kills itself at a step; return its pid and the words it said."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{TESTS}"}
    environment["CELLWALL_STATE_DIR"] = str(state_of(folder))
    argv = [sys.executable, str(ENGINE), operation, str(version), str(step)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as child:
        said, _ = child.communicate(timeout=60)
    assert child.returncode in {0, -signal.SIGKILL}, f"step {step}: {said}"
    return child.pid, [line.split() for line in said.splitlines()]


ENGINES = [("fork", 2), ("snapshot", 2), ("restore", 2), ("pause", 2), ("pause", 1)]


@pytest.mark.parametrize(("operation", "version"), ENGINES)
def test_engine_killed_at_every_step_leaves_nothing(
    arena: Arena, tmp_path: Path, require: Require, operation: str, version: int
) -> None:
    """Processes end by themselves, frozen ones too; directories of cgroups with the next sweep."""
    layout = hierarchies.discover()
    place = layout.v1_freezer if version == 1 else layout.freezing
    require(f"freezer of cgroup v{version}", place is not None and place.version == version, "")
    _, said = _engine(tmp_path, operation, version, 0)
    (count,) = (int(words[1]) for words in said if words[0] == "count")
    files = _listed(tmp_path)
    for at in chosen(count):
        pid, said = _engine(tmp_path, operation, version, at)
        below = [int(word) for words in said if words[0] == "below" for word in words[1:]]
        if not below:  # it was sooner at its end this time
            assert [words[0] for words in said] == ["count"]
            continue
        assert control_groups(pid), f"step {at}"  # the control: there is something to leave
        until = time.monotonic() + 10
        while (left := [each for each in below if is_alive(each)]) and time.monotonic() < until:
            time.sleep(0.02)
        assert left == [], f"step {at}: they live on"
        arena.do(arena.engine.sweep())
        assert control_groups(pid) == set(), f"step {at}"
    assert _listed(tmp_path) == files


def _listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
