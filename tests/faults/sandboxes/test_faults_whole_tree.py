"""After a limit the whole tree is dead within 2 s and nothing is left after 5 s, on every runtime.

The witness is outside: the host's kernel lists the sandbox's processes while they run, and a
pidfd of each becomes readable when it has ended, however it is called and whoever its parent is.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Execution, Verdict
from kit.arena import Arena, descendants
from kit.jail.control_groups import is_occupied

pytestmark = [pytest.mark.attack, pytest.mark.alone, pytest.mark.root]
_DEAD_S = 2.0
_GONE_S = 5.0
_LEVELS = {"jail": "namespace", "docker": "namespace", "docker+runsc": "kernel", "gvisor": "kernel"}

_TREE = """
import os, signal, time
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
for _ in range(6): os.wait()
print("up", flush=True)
"""
_ENDS: dict[Verdict, tuple[str, dict[str, Any]]] = {
    Verdict.WALL_TIME: ("time.sleep(600)", {"timeout": 3}),
    Verdict.CPU_TIME: ("while True: pass", {"timeout": 40, "limits": {"cpu_s": 2}}),
    Verdict.MEMORY: (
        "kept = []\nwhile True: kept.append(b'x' * (4 << 20))",
        {"timeout": 40, "limits": {"memory_mb": 128}},
    ),
}


@pytest.fixture(scope="module", params=_LEVELS)
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    """One engine for each runtime."""
    name: str = request.param
    made = None
    if "docker" in name:
        state, templates = request.getfixturevalue("docker_ground")
        settings = EngineSettings(pool_min=0, pool_max=0)
        made = Arena(
            lambda: Engine(state, settings, templates=templates),
            runtime=name,
            isolation=_LEVELS[name],
        )
        daemon = request.getfixturevalue("docker_daemon")
        made.containers = lambda: len(daemon.containers())
    yield made or request.getfixturevalue("gvisor_arena" if name == "gvisor" else "session_arena")
    if made is not None:
        made.close()


@pytest.fixture(scope="session")
def session_arena() -> Iterator[Arena]:
    """A jail's; the session's own has the name that this module gives to all of them."""
    made = Arena()
    yield made
    made.close()


def _groups(pid: int) -> set[str]:
    """The memory and pids cgroups of a process, as its kernel names them."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return set()
    return set(re.findall(r"^\d+:(?:memory|pids|):(/.+)$", text, re.MULTILINE))


class _Watched:
    """The processes of one sandbox, and when each of them ended by the kernel's word."""

    def __init__(self, pid: int) -> None:
        own = _groups(os.getpid()) | _groups(1)
        below = {pid, *descendants(pid)}
        self.groups = {group for each in below for group in _groups(each)} - own
        every = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        self.pids = below | {each for each in every if _groups(each) & self.groups}
        self.ended_at: dict[int, float] = {}
        self.all_ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for each in self.pids:
            fd = os.pidfd_open(each)
            self._loop.add_reader(fd, self._on_ended, each, fd)

    def _on_ended(self, pid: int, fd: int) -> None:
        self.ended_at[pid] = time.monotonic()
        self._loop.remove_reader(fd)
        os.close(fd)
        if len(self.ended_at) == len(self.pids):
            self.all_ended.set()

    def left(self) -> list[str]:
        """Cgroups of its that still have processes, on any hierarchy."""
        points = re.findall(
            r" (/\S+) \S+ (?:\S+ )*- cgroup2? ", Path("/proc/self/mountinfo").read_text()
        )
        return [
            path for point in points for group in self.groups if is_occupied(path := point + group)
        ]


async def _limited(arena: Arena, verdict: Verdict) -> tuple[Execution, _Watched, float, float]:
    code, options = _ENDS[verdict]
    watched: list[_Watched] = []
    up_at = 0.0

    def on_event(_event: object) -> None:
        nonlocal up_at
        if not watched:
            (live,) = arena.engine._programs.under_way
            up_at = time.monotonic()
            watched.append(_Watched(live.runtime_sandbox.pid))  # type: ignore[attr-defined]

    choice = {**arena.choice, "on_event": on_event, **options}
    choice["limits"] = {"memory_mb": 256, **choice.get("limits", {})}
    execution = await arena.engine.run(_TREE + code, **choice)
    answered_at = time.monotonic()
    async with asyncio.timeout(_GONE_S):
        await watched[0].all_ended.wait()
        await arena.engine.pool.wait_buried()
        while watched[0].left() or arena.containers():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.02)
    return execution, watched[0], up_at, answered_at


@pytest.mark.parametrize("verdict", _ENDS)
def test_whole_tree_is_dead_soon_after_a_limit_and_nothing_is_left(
    arena: Arena, verdict: Verdict
) -> None:
    arena.settle()
    execution, watched, up_at, answered_at = arena.do(_limited(arena, verdict))
    assert execution.verdict is verdict, execution
    assert len(watched.pids) >= 3
    if arena.choice.get("isolation") != "kernel":  # there the host sees the inside's kernel instead
        assert len(watched.pids) >= 8
    assert watched.groups
    last = max(watched.ended_at.values())
    assert last - answered_at < _DEAD_S
    if verdict is Verdict.WALL_TIME:
        assert last - up_at < execution.limits.wall_s + _DEAD_S
