"""Faults of our own: killed embedders, cancelled callers, set-up steps that fail, endurance.

Whatever goes wrong on our side of the wall, nothing is left on the host and the error names the
step. The witness counts processes, cgroups, mounts and descriptors before and after.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import (
    CellwallError,
    Engine,
    EngineSettings,
    Event,
    Execution,
    SandboxBroken,
    Verdict,
)
from cellwall.linux.cgroups.hierarchies import Layout
from cellwall.linux.cgroups.sandbox_groups import Groups
from cellwall.runtimes.jail.starting import bundle as bundle_room
from cellwall.runtimes.shared import guest_bundle
from kit.arena import LIMITS, Arena, Traces, descendants
from kit.jail.control_groups import control_groups

pytestmark = pytest.mark.attack


@pytest.fixture(autouse=True)
def _settled(arena: Arena) -> None:
    """What the test before left to the background would be counted as a trace of this one's."""
    arena.settle()


_TREE = """
import os, signal, time
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(12):
    if os.fork() == 0:
        os.setsid()
        while True: time.sleep(60)
print("up", flush=True)
{end}
"""


class Deaths:
    """Descriptors of processes; readable when their process is dead."""

    def __init__(self, pids: set[int]) -> None:
        self._fds = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # dead already
                self._fds.append(os.pidfd_open(pid))

    def wait_all_s(self, timeout_s: float) -> float:
        """Seconds until all are dead; fails when that takes longer than `timeout_s`."""
        began = time.monotonic()
        for fd in self._fds:
            left = began + timeout_s - time.monotonic()
            ready, _, _ = select.select([fd], [], [], max(0.0, left))
            assert ready, f"alive after {timeout_s} s"
            os.close(fd)
        return time.monotonic() - began


async def _until_up(
    arena: Arena, end: str, **options: Any
) -> tuple[asyncio.Task[Execution], set[int]]:
    """Start the tree; return its task and the host's pids of all of it."""
    before = descendants(os.getpid())
    up = asyncio.Event()

    def on_event(event: Event) -> None:
        if "up" in (event.text or ""):
            up.set()

    work = arena.engine.run(_TREE.format(end=end), on_event=on_event, **options)
    task: asyncio.Task[Execution] = asyncio.ensure_future(work)
    await up.wait()
    pids = descendants(os.getpid()) - before
    assert len(pids) >= 14  # init, the program and its twelve
    return task, pids


_ENDS = [
    pytest.param("while True: time.sleep(60)", {"timeout": 0.7}, Verdict.WALL_TIME, id="wall"),
    pytest.param(
        "held = b'x' * (256 << 20)",
        {"limits": {**LIMITS, "memory_mb": 64}},
        Verdict.MEMORY,
        id="memory",
        marks=pytest.mark.cgroups,
    ),
    pytest.param(
        "while True: pass", {"limits": {**LIMITS, "cpu_s": 0.5}}, Verdict.CPU_TIME, id="cpu"
    ),
    pytest.param("time.sleep(0.5)\nos._exit(0)", {}, Verdict.OK, id="own-end"),
]


@pytest.mark.alone
@pytest.mark.parametrize(("end", "options", "verdict"), _ENDS)
def test_whole_tree_is_dead_within_a_quarter_second_of_the_limit(
    arena: Arena, end: str, options: dict[str, Any], verdict: Verdict
) -> None:
    async def attack() -> None:
        task, pids = await _until_up(arena, end, **options)
        deaths = Deaths(pids)
        execution = await task
        late_s = deaths.wait_all_s(0.25)
        assert execution.verdict is verdict, execution
        if verdict is Verdict.WALL_TIME:
            late_s += execution.outcome.usage.wall_s - 0.7
        assert late_s <= 0.25

    with arena.leaving_nothing():
        arena.do(attack())
        began = time.monotonic()
        arena.settle()
        assert time.monotonic() - began < 1.0


@pytest.mark.alone
@pytest.mark.parametrize("case", ["FI-24-running"])
def test_whole_tree_is_dead_within_a_quarter_second_of_cancel(arena: Arena, case: str) -> None:
    async def attack() -> None:
        task, pids = await _until_up(arena, "while True: time.sleep(60)")
        deaths = Deaths(pids)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        deaths.wait_all_s(0.25)

    with arena.leaving_nothing():
        arena.do(attack())


_EMBEDDER = """
import json, os, sys
sys.path[:0] = json.loads(sys.argv[1])
import cellwall
sandbox = cellwall.Sandbox(limits={"processes": 30})
tree = sys.argv[2]
sandbox.commands.start(["python", "-c", tree], on_stdout=lambda text: print("up", flush=True))
sys.stdin.read()
"""


def _embedder() -> subprocess.Popen[str]:
    paths = [path for path in sys.path if path]
    tree = _TREE.format(end="while True: time.sleep(60)")
    return subprocess.Popen(
        [sys.executable, "-c", _EMBEDDER, json.dumps(paths), tree],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CELLWALL_POOL_SIZE": "0"},  # nothing of it changes while we count
    )


def _kill_embedder() -> tuple[int, set[str]]:
    """Its pid, and the cgroups that its sandboxes had; all of them are dead within a second."""
    with _embedder() as embedder:
        assert embedder.stdout is not None
        assert embedder.stdout.readline() == "up\n"
        below = descendants(embedder.pid)
        assert len(below) > 14
        deaths = Deaths(below)
        left = control_groups(embedder.pid)
        embedder.send_signal(signal.SIGKILL)
        assert deaths.wait_all_s(1.0) <= 1.0
        embedder.wait()
    return embedder.pid, left


def test_killed_embedder_takes_its_sandboxes_along() -> None:
    _kill_embedder()


@pytest.mark.cgroups
@pytest.mark.parametrize("case", ["FI-03"])
def test_killed_embedder_takes_its_sandboxes_along_and_the_next_start_sweeps(case: str) -> None:
    pid, left = _kill_embedder()
    assert left
    assert control_groups(pid) == left  # nobody was there to remove them
    next_one = Arena()
    try:
        assert control_groups(pid) == set()
    finally:
        next_one.close()


@pytest.mark.parametrize("which", [pytest.param(0, id="boot"), pytest.param(1, id="fork-server")])
def test_killed_fork_server_is_replaced_and_its_sandboxes_end(arena: Arena, which: int) -> None:
    async def attack() -> None:
        task, pids = await _until_up(arena, "while True: time.sleep(60)", timeout=20)
        deaths = Deaths(pids)
        os.kill((await arena.fork_server())[which], signal.SIGKILL)
        deaths.wait_all_s(1.0)
        assert (await task).verdict is Verdict.SANDBOX_ERROR
        async with asyncio.timeout(10):
            claims = [arena.arun("print('fine')") for _ in range(6)]
            ends = await asyncio.gather(*claims, return_exceptions=True)
            assert {type(end) for end in ends} <= {Execution, SandboxBroken}, ends
            assert (await arena.arun("print('fine')")).ok

    with arena.leaving_nothing():
        arena.do(attack())


_BROKEN = [
    pytest.param(
        "jail/processes/boot.py", "_build_root(config)", "template's root", id="boot-root"
    ),
    pytest.param(
        "jail/processes/boot.py",
        'process.set_hostname("cellwall")',
        "template's root",
        id="boot-uts",
    ),
    pytest.param(
        "jail/processes/boot.py", "os.setresuid(0, 0, 0)", "user namespace", id="boot-user"
    ),
    pytest.param("jail/processes/forkserver.py", "report = guest.warm(", "preload", id="preload"),
    pytest.param(
        "jail/processes/forkserver.py", "guest.warm_sessions(", "preload", id="preload-for-sessions"
    ),
    pytest.param(
        "jail/processes/forkserver.py", "pid = worker.cloner.clone()", "clone", id="N16-clone"
    ),
    pytest.param(
        "jail/processes/forkserver.py", "_write_maps(worker.root_id, ", "id map", id="id-maps"
    ),
    pytest.param(
        "jail/processes/sandbox_init.py", "do_all(lock.become_user)", "_lock", id="become-user"
    ),
    pytest.param(
        "jail/processes/sandbox_init.py", "executor.walk(request.ready.runs)", "_lock", id="mounts"
    ),
    pytest.param(
        "jail/processes/sandbox_init.py", "do_all(OWN_CGROUP", "_lock", id="cgroup-namespace"
    ),
    pytest.param(
        "jail/processes/sandbox_init.py", "do_all(lock.privileges)", "_lock", id="privileges"
    ),
    pytest.param("jail/processes/sandbox_init.py", "do_all(lock.files)", "_lock", id="landlock"),
    pytest.param("jail/processes/sandbox_init.py", "do_all(lock.filter)", "_lock", id="seccomp"),
    pytest.param(
        "jail/processes/sandbox_init.py", "do_all(lock.descriptors)", "_lock", id="open-files"
    ),
]


_FAILING = "raise OSError(12, 'failed on purpose')\n"


def _changed(bundle: Path, file: str, line: str, inserted: str, target: Path) -> Path:
    """A copy of the guest bundle with something inserted before each such line of one file."""
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name == f"cellwall/{file}":
                lines = text.decode().splitlines(keepends=True)
                places = [n for n, found in enumerate(lines) if found.strip().startswith(line)]
                assert places
                for at in reversed(places):
                    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
                    lines.insert(at, indent + inserted)
                text = "".join(lines).encode()
            if name != f"cellwall/{file}c":
                new.writestr(name, text)
    target.chmod(0o644)
    return target


async def _refused(code: str, *, is_session: bool = False) -> CellwallError:
    """The error of a program; or of a session, where programs must not be disturbed."""
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        if is_session:
            assert (await engine.run("print(1)")).stdout == "1\n"
        with pytest.raises(CellwallError) as caught:
            await (engine.create_sandbox() if is_session else engine.run(code))
        return caught.value
    finally:
        await engine.aclose()


@pytest.mark.parametrize(("file", "line", "step"), _BROKEN)
def test_failing_setup_step_is_named_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_init: None,
    file: str,
    line: str,
    step: str,
) -> None:
    real = guest_bundle.build_bundle
    target = tmp_path / "broken.pyz"
    monkeypatch.setattr(
        bundle_room,
        "build_bundle",
        lambda *given: _changed(real(*given), file, line, _FAILING, target),
    )
    before = Traces.now()
    is_session = "sessions" in line
    error = asyncio.run(_refused("print('the nonce that nobody may see')", is_session=is_session))
    assert Traces.now() == before
    assert step in str(error)
    assert "failed on purpose" in str(error)
    assert error.remedy


_DIRT = [
    pytest.param(
        "import _thread, time; _thread.start_new_thread(time.sleep, (60,))\n",
        "threads exist",
        id="N18-thread",
    ),
    pytest.param("left = os.dup(2)\n", "is open after the preload", id="N18-descriptor"),
    pytest.param(
        "left = socket.socket(socket.AF_UNIX)\n", "is open after the preload", id="N18-socket"
    ),
]


_STAGES = [
    pytest.param("_fork_workers(config, worker, worker_fds[:programs]", id="programs"),
    pytest.param("_fork_workers(config, worker, worker_fds[programs:]", id="sessions"),
]


@pytest.mark.parametrize(("dirt", "said"), _DIRT)
@pytest.mark.parametrize("stage", _STAGES)
def test_dirty_preload_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, dirt: str, said: str
) -> None:
    real, file = guest_bundle.build_bundle, "jail/processes/forkserver.py"
    target = tmp_path / "dirty.pyz"
    monkeypatch.setattr(
        bundle_room,
        "build_bundle",
        lambda *given: _changed(real(*given), file, stage, dirt, target),
    )
    before = Traces.now()
    is_session = "worker_fds[programs:]" in stage
    error = asyncio.run(_refused("print('the nonce that nobody may see')", is_session=is_session))
    assert Traces.now() == before
    assert said in str(error)


def _moved_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have layouts that are found from now on say so, as on cgroup v2."""
    found = Layout.__post_init__

    def unable(layout: Layout) -> None:
        found(layout)
        object.__setattr__(layout, "lets_move_itself", False)

    monkeypatch.setattr(Layout, "__post_init__", unable)


@pytest.mark.cgroups
@pytest.mark.parametrize("case", ["FI-26-cgroup", "FI-26-cgroup-by-the-host"])
def test_refused_cgroup_is_named_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    name, file = (
        ("join", "cgroup.procs") if case.endswith("host") else ("open_self_move_files", "tasks")
    )
    real = getattr(Groups, name)

    def gone(groups: Groups, *given: int) -> object:
        groups.remove()  # so that the kernel itself refuses
        return real(groups, *given)

    if name == "join":
        _moved_by_the_host(monkeypatch)
    monkeypatch.setattr(Groups, name, gone)
    before = Traces.now()
    error = asyncio.run(_refused("print('the nonce that nobody may see')"))
    assert Traces.now() == before
    assert file in str(error)
    assert error.remedy


def test_workers_that_the_host_moves_serve_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on cgroup v2, where no task can move itself cheaply."""
    _moved_by_the_host(monkeypatch)
    before = Traces.now()

    async def runs() -> list[Execution]:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            return list(await asyncio.gather(*(engine.run(f"print({n})") for n in range(6))))
        finally:
            await engine.aclose()

    assert [each.stdout for each in asyncio.run(runs())] == [f"{n}\n" for n in range(6)]
    assert Traces.now() == before


@pytest.mark.cgroups
@pytest.mark.parametrize(
    ("line", "inserted"),
    [
        pytest.param("os.write(fd, b", "continue\n", id="from-the-first"),
        pytest.param("_move_self(move_files)", "move_files = []\n", id="after-cloning"),
    ],
)
def test_worker_that_stays_in_a_sandboxs_cgroups_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, inserted: str
) -> None:
    """The worker imported packages that nobody reviewed; what it says is not what is believed."""
    real = guest_bundle.build_bundle

    def changed(*given: Any) -> Path:
        return _changed(
            real(*given), "jail/processes/forkserver.py", line, inserted, tmp_path / "stays.pyz"
        )

    before = Traces.now()
    assert asyncio.run(_run_once()).stdout == "45\n"  # the control: the worker as it is
    monkeypatch.setattr(bundle_room, "build_bundle", changed)
    error = asyncio.run(_refused("print('the nonce that nobody may see')"))
    assert "has not left a sandbox's cgroups" in str(error)
    assert Traces.now() == before


async def _run_once() -> Execution:
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        return await engine.run("print(45)")
    finally:
        await engine.aclose()


def _runs(arena: Arena, count: int) -> Iterator[bool]:
    for number in range(count):
        yield arena.run(f"print({number})").stdout.endswith(f"\n{number}\n")


@pytest.mark.parametrize("case", ["soak"])
def test_three_hundred_fresh_runs_leave_nothing(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        assert all(_runs(arena, 300))
