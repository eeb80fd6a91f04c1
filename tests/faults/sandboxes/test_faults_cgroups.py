"""FI-31, 32, 39: cgroups that cannot be removed, that are not ours, whose pids belong to others.

On the real hierarchies of this host. What keeps a cgroup busy is a real process of the test's own,
put there from outside; the witnesses are that process, and the kernel's listing of directories.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Limits
from cellwall.linux import owner_label
from cellwall.linux.cgroups import hierarchies, leftovers
from cellwall.linux.cgroups.engine_tree import EngineGroups
from cellwall.runtimes.shared import cgroup_keeper
from conftest import Require
from kit.arena import LIMITS, Arena
from kit.jail.control_groups import control_groups, is_left

pytestmark = [pytest.mark.attack]


@pytest.fixture(autouse=True)
def _on_cgroups(require: Require) -> None:
    require("cgroups", bool(hierarchies.discover().hard), "run `cellwall doctor`")


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours; what happens to it is the witness."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def _counted(engine: Engine) -> int:
    return engine.statistics().runtimes["jail"].detail["cgroups_not_removed"]


async def _until(condition: Any, what: str) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
    assert condition(), what


def _join(path: str, pid: int) -> None:
    Path(path, "cgroup.procs").write_text(str(pid), encoding="ascii")


def _there(paths: set[str]) -> set[str]:
    return {path for path in paths if os.path.isdir(path)}


# -- FI-39 -----------------------------------------------------------------------------------


def test_busy_cgroup_is_counted_retried_and_removed_once_it_is_free(
    monkeypatch: pytest.MonkeyPatch, bystander: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(cgroup_keeper, "_REMOVE_TRIES", 3)
    monkeypatch.setattr(cgroup_keeper, "_QUARANTINE_FIRST_S", 0.05)

    async def scenario() -> None:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            sandbox = await engine.create_sandbox(limits=LIMITS)
            made = sandbox.live.runtime_sandbox._resources  # type: ignore[attr-defined]  # a jail's
            mine = {path for hierarchy, path in made.groups.paths if "memory" in str(hierarchy)}
            for path in mine:
                _join(path, bystander.pid)
            assert _counted(engine) == 0
            await sandbox.close()
            await _until(lambda: _counted(engine) == 1, "it is counted")
            assert _there(mine) == mine
            assert (await engine.run("print('others are fine')")).ok
            bystander.kill()
            bystander.wait()
            await _until(lambda: _counted(engine) == 0, "it is removed in the end")
            assert _there(mine) == set()
        finally:
            await engine.aclose()

    before = {path for path in control_groups(os.getpid()) if is_left(path)}
    asyncio.run(scenario())
    # Other engines of this process may have removed theirs meanwhile.
    assert {path for path in control_groups(os.getpid()) if is_left(path)} <= before
    assert bystander.returncode == -signal.SIGKILL  # the test's own: nobody else ended it


def test_engine_closes_though_a_cgroup_stays_busy_and_the_next_sweep_takes_it(
    monkeypatch: pytest.MonkeyPatch, bystander: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(cgroup_keeper, "_REMOVE_TRIES", 3)

    async def scenario() -> set[str]:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        sandbox = await engine.create_sandbox(limits=LIMITS)
        jail: Any = sandbox.live.runtime_sandbox
        paths = jail._resources.groups.paths
        for _, path in paths:
            _join(path, bystander.pid)
        await sandbox.close()
        await engine.aclose()
        return {path for _, path in paths}

    left = asyncio.run(scenario())
    assert _there(left) == left
    assert bystander.poll() is None  # an engine that closes kills what it started, nothing else
    label = Path(next(iter(left))).parent.name.removeprefix("cellwall.")
    leftovers.sweep(hierarchies.discover(), lambda each: each == label)
    assert _there(left) == set()


def test_directories_given_back_twice_serve_one_sandbox_at_a_time() -> None:
    """A worker that dies leaves two who would give back the same ones."""
    groups = EngineGroups(hierarchies.discover(), owner_label.new_label())
    try:
        first = groups.create(Limits())
        assert groups.take_back(first) == groups.take_back(first) == []
        made = [groups.create(Limits()) for _ in range(8)]
        paths = [path for each in made for _, path in each.paths]
        assert len(paths) == len(set(paths))
        for each in made:
            groups.take_back(each)
    finally:
        groups.remove()


@pytest.mark.cgroups
def test_the_host_goes_before_all_sandboxes_together() -> None:
    layout = hierarchies.discover()
    groups = EngineGroups(layout, owner_label.new_label())
    try:
        made = groups.create(Limits())
        (own,) = [Path(path) for hierarchy, path in made.paths if "cpu" in hierarchy.controllers]
        weight, usual = (
            ("cpu.shares", 1024) if (own / "cpu.shares").exists() else ("cpu.weight", 100)
        )
        assert int((own / weight).read_text()) == usual  # all of them alike
        assert int((own.parent / weight).read_text()) == usual // 2
        groups.take_back(made)
    finally:
        groups.remove()


def test_directories_that_were_removed_in_part_serve_nobody(
    bystander: subprocess.Popen[bytes],
) -> None:
    """A process leaves one after the other, and whoever removes them may come in between."""
    groups = EngineGroups(hierarchies.discover(), owner_label.new_label())
    try:
        first = groups.create(Limits())
        _join(first.paths[0][1], bystander.pid)
        assert len(groups.take_back(first)) == 1
        bystander.kill()
        bystander.wait()
        while groups.take_back(first):
            pass  # the kernel has not let go of the process yet
        made = [groups.create(Limits()) for _ in range(8)]
        paths = {path for each in made for _, path in each.paths}
        assert _there(paths) == paths
        for each in made:
            groups.take_back(each)
    finally:
        groups.remove()


# -- FI-31 -----------------------------------------------------------------------------------


@pytest.fixture
def lookalikes(bystander: subprocess.Popen[bytes]) -> Iterator[list[Path]]:
    """Directories of others that nearly bear our names, each with a process in it."""
    base = hierarchies.discover().hierarchies[0].base
    alive = owner_label.new_label()
    boot, namespace, pid, started, nonce = alive.split("-")
    names = [
        f"cellwall.{secrets.token_hex(8)}",
        f"cellwall-{alive}",
        f"xcellwall.{boot}-{namespace}-1-1-{nonce}",
        f"cellwall.{boot}-{namespace}-1-1-{nonce}.service",
        f"cellwall.{boot}-{namespace}-{pid}-{started}-{nonce}",
        f"cellwall.{boot}-{int(namespace) + 1}-1-1-{nonce}",
        f"cellwall.00000000-{int(namespace) + 1}-1-1-{nonce}",
        f"CELLWALL.{boot}-{namespace}-1-1-{nonce}",
    ]
    paths = [base / name for name in names]
    for path in paths:
        (path / "1").mkdir(parents=True)
    yield paths
    bystander.kill()
    bystander.wait()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            (path / "1").rmdir()
            path.rmdir()


def test_what_nearly_bears_our_name_is_never_touched(
    lookalikes: list[Path], bystander: subprocess.Popen[bytes]
) -> None:
    for path in lookalikes:
        _join(str(path / "1"), bystander.pid)
        _, kept = leftovers.sweep(hierarchies.discover(), owner_label.is_dead_in_this_boot)
        assert str(path) not in kept
        assert bystander.poll() is None, path
        assert (path / "1").is_dir(), path


def test_what_bears_a_dead_engines_name_is_swept_with_what_is_in_it(
    bystander: subprocess.Popen[bytes],
) -> None:
    """The control: the one difference to the look-alikes is that its owner is certainly dead."""
    boot, namespace, _, _, nonce = owner_label.new_label().split("-")
    path = hierarchies.discover().hierarchies[0].base / f"cellwall.{boot}-{namespace}-1-1-{nonce}"
    (path / "1").mkdir(parents=True)
    _join(str(path / "1"), bystander.pid)
    leftovers.sweep(hierarchies.discover(), owner_label.is_dead_in_this_boot)
    assert bystander.wait(10) == -signal.SIGKILL
    assert not path.exists()


# -- FI-32 -----------------------------------------------------------------------------------


def test_pid_that_left_the_cgroup_between_two_looks_is_not_killed(
    bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed, then gone: what has the number when the kill comes is somebody else."""
    path = hierarchies.discover().hierarchies[0].base / f"faults-{secrets.token_hex(4)}"
    path.mkdir()
    _join(str(path), bystander.pid)
    real = os.pidfd_open

    def leave_meanwhile(pid: int) -> int:
        _join(str(path.parent), pid)
        return real(pid)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pidfd_open", leave_meanwhile)
            leftovers.kill_listed(path)
        assert bystander.poll() is None
        _join(str(path), bystander.pid)
        leftovers.kill_listed(path)  # the control: listed twice, it is killed
        assert bystander.wait(10) == -signal.SIGKILL
    finally:
        path.rmdir()


@pytest.mark.parametrize("case", ["FI-32"])
def test_label_of_a_reused_pid_is_dead_and_its_new_owner_lives(
    arena: Arena, bystander: subprocess.Popen[bytes], case: str
) -> None:
    """The engine that is gone had the pid that the bystander has now, at another time."""
    boot, namespace, _, _, nonce = owner_label.new_label().split("-")
    started = owner_label.start_time(bystander.pid)
    assert started is not None
    gone = f"{boot}-{namespace}-{bystander.pid}-{started - 1}-{nonce}"
    path = hierarchies.discover().hierarchies[0].base / f"cellwall.{gone}"
    path.mkdir()
    assert owner_label.is_dead(gone)
    assert not owner_label.is_dead(f"{boot}-{namespace}-{bystander.pid}-{started}-{nonce}")
    arena.do(arena.engine.sweep())
    assert not path.exists()
    assert bystander.poll() is None
