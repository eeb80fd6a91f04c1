"""FI-06: a fork-server, its boot or a worker killed while idle, in mid-fork and in mid-run.

No start fails for it: nothing of the caller's was handed over, so it is tried again from a new one
(the engine counts that). What runs in a sandbox of the dead one ends with a named verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Execution, Verdict
from cellwall.jail.inspect import posture
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.runtimes.jail import fork_server
from cellwall.runtimes.jail.child import Child
from cellwall.runtimes.jail.starting import launch
from cellwall.runtimes.jail.worker import Worker
from cellwall.testing.bare import BareTemplates
from kit.arena import Arena, Traces, descendants

pytestmark = pytest.mark.attack

WHO = ["boot", "fork-server", "worker"]
_PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below this process become its children instead of init's."""


@pytest.fixture(autouse=True)
def _settled(arena: Arena) -> None:
    arena.settle()


async def _pids(arena: Arena) -> dict[str, int]:
    boot, first = await arena.fork_server()
    return {"boot": boot, "fork-server": first, "worker": posture.children(first)[0]}


async def _retried(arena: Arena) -> int:
    return (await arena.engine.runtime()).statistics().detail["starts_retried"]


@pytest.mark.parametrize("who", WHO)
def test_idle_one_that_was_killed_costs_no_run(arena: Arena, who: str) -> None:
    async def attack() -> None:
        pids = await _pids(arena)
        gone = os.pidfd_open(pids[who])
        os.kill(pids[who], signal.SIGKILL)
        await asyncio.to_thread(_wait, gone)
        runs = await asyncio.gather(*(arena.arun("print('fine')") for _ in range(6)))
        assert all(run.stdout.endswith("fine\n") for run in runs)
        assert (await _pids(arena))["fork-server"] != pids["fork-server"]

    with arena.leaving_nothing():
        arena.do(attack())


def _wait(pidfd: int) -> None:
    select.select([pidfd], [], [], 10)
    os.close(pidfd)


def test_abandoned_start_leaves_no_process_to_another(arena: Arena) -> None:
    """Boot is told of nothing: its host is gone when it has forked. What it leaves comes to us."""
    (entry,) = arena.do(arena.engine.runtime())._servers.entries  # type: ignore[attr-defined]  # a jail's
    before = descendants(os.getpid())
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        started = launch.launch(entry.server.settings, entry.server.facts)
        for sock in (started.control, *started.workers):
            sock.close()
        assert started.boot.wait(30) == 1
        assert descendants(os.getpid()) == before
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("step", ["asked", "cloned"])
def test_start_under_which_it_is_killed_is_made_again(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, who: str, step: str
) -> None:
    """Killed right before a worker is asked, and right after it answered with a child."""
    killed: list[int] = []
    real_spawn = fork_server.ForkServer.spawn

    async def kill_workers_parent(server: fork_server.ForkServer, worker: int) -> None:
        assert server._boot is not None
        pids = {"boot": server._boot.pid, "fork-server": server.pid, "worker": worker}
        killed.append(pids[who])
        gone = os.pidfd_open(pids[who])
        os.kill(pids[who], signal.SIGKILL)
        await asyncio.to_thread(_wait, gone)

    async def spawn(server: fork_server.ForkServer, worker: Worker, **given: Any) -> Child:
        if step == "asked" and not killed:
            await kill_workers_parent(server, worker.pid)
        spawned = await real_spawn(server, worker, **given)
        if step == "cloned" and not killed:
            await kill_workers_parent(server, worker.pid)
        return spawned

    async def attack() -> None:
        before = await _retried(arena)
        monkeypatch.setattr(fork_server.ForkServer, "spawn", spawn)
        ended = await arena.engine.run("print('fine')")
        assert len(killed) == 1
        # Or it had begun when its fork-server was given up for the worker: begun is not made again.
        is_cut = (who, step) == ("worker", "cloned") and not ended.ok
        assert ended.stdout == "fine\n" or (is_cut and "ended under it" in ended.outcome.notes[0])
        # What a worker had cloned already may outlive it: then there is nothing to make again.
        least = 0 if (who, step) == ("worker", "cloned") else 1
        assert before + least <= await _retried(arena) <= before + 1
        assert (await arena.arun("print('fine')")).ok  # whoever is dead is noticed now

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("who", WHO)
def test_run_under_which_it_is_killed_ends_with_a_name_and_the_next_is_fine(
    arena: Arena, who: str
) -> None:
    async def attack() -> Execution:
        up = asyncio.Event()
        work = arena.engine.run(
            "print('up', flush=True)\nimport time; time.sleep(60)", on_event=lambda _: up.set()
        )
        task = asyncio.ensure_future(work)
        await up.wait()
        pids = await _pids(arena)
        inits = [pid for pid in descendants(pids["boot"]) if _is_init(pid)]
        assert len(inits) == 1
        parent = _parent(inits[0])
        os.kill(parent if who == "worker" else pids[who], signal.SIGKILL)
        ended = await asyncio.wait_for(task, 10)
        assert (await arena.arun("print('fine')")).ok
        return ended

    with arena.leaving_nothing():
        ended = arena.do(attack())
    assert ended.verdict is Verdict.SANDBOX_ERROR
    assert "the sandbox ended under it" in ended.outcome.notes[0]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_init(pid: int) -> bool:
    """Pid 1 of a pid namespace below a fork-server's: three numbers in NSpid."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return len(line.split()) == 4 and line.split()[-1] == "1"


@pytest.mark.parametrize("kills", [3, 4])
def test_fork_servers_killed_while_they_start_are_made_again_three_times(
    monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """Nothing is wrong with the host: one more is the control, and is not called unsupported."""
    real, launched = fork_server.ForkServer._launch, 0

    def launch(server: fork_server.ForkServer) -> None:
        nonlocal launched
        launched += 1
        real(server)
        if launched <= kills:
            assert server._boot is not None
            os.kill(server._boot.pid, signal.SIGKILL)

    async def attack() -> Execution | BaseException:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        monkeypatch.setattr(fork_server.ForkServer, "_launch", launch)
        try:
            return (await asyncio.gather(engine.run("print(1)"), return_exceptions=True))[0]
        finally:
            await engine.aclose()

    before = Traces.now()
    ended = asyncio.run(attack())
    assert Traces.now() == before
    assert launched == 4
    if kills == 3:
        assert isinstance(ended, Execution)
        assert ended.ok
    else:
        assert isinstance(ended, SandboxBroken)
        assert "start the fork-server" in str(ended)


@pytest.mark.parametrize(
    ("looking", "seen_there"),
    [
        ("_find_workers", SandboxBroken),
        pytest.param("spawn", FileNotFoundError, marks=pytest.mark.cgroups),
    ],
)
def test_one_that_ends_while_it_is_looked_at_is_made_again(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, looking: str, seen_there: type[Exception]
) -> None:
    """What we read of it in /proc is not there any more: no error of the caller's, nor of ours."""
    seen: list[BaseException] = []

    def end(first: int, looked_at: int) -> None:
        os.kill(_parent(first), signal.SIGKILL)  # boot, and with it the rest
        while Path(f"/proc/{looked_at}").exists():
            time.sleep(0.001)

    real_find, real_confirm_moved = fork_server.ForkServer._find_workers, Worker.confirm_moved

    def find_workers(server: fork_server.ForkServer, count: int) -> None:
        if looking == "_find_workers" and not seen:
            end(server.pid, server.pid)
        with _noting(seen):
            real_find(server, count)

    def confirm_moved(worker: Worker) -> None:
        if looking == "spawn" and not seen and worker.next_cgroups is not None:
            end(_parent(worker.pid), worker.pid)
        with _noting(seen):
            real_confirm_moved(worker)

    async def attack() -> None:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        monkeypatch.setattr(fork_server.ForkServer, "_find_workers", find_workers)
        monkeypatch.setattr(Worker, "confirm_moved", confirm_moved)
        try:
            assert (await engine.run("print('fine')")).stdout == "fine\n"
        finally:
            await engine.aclose()

    with arena.leaving_nothing():
        asyncio.run(attack())
    assert [type(each) for each in seen] == [seen_there]
    assert isinstance(seen[0].__cause__ or seen[0], FileNotFoundError)  # it was looked at too late


@contextlib.contextmanager
def _noting(seen: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        seen.append(error)
        raise


def test_template_that_always_loses_its_fork_server_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: it is tried four times and no oftener, and the error says what was lost."""
    real, asked = fork_server.ForkServer.spawn, 0

    async def spawn(server: fork_server.ForkServer, worker: Worker, **given: Any) -> Child:
        nonlocal asked
        asked += 1
        os.kill(server.pid, signal.SIGKILL)
        return await real(server, worker, **given)

    async def attack() -> str:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        monkeypatch.setattr(fork_server.ForkServer, "spawn", spawn)
        try:
            ended = await asyncio.gather(engine.run("print(1)"), return_exceptions=True)
            return str(ended[0])
        finally:
            await engine.aclose()

    before = Traces.now()
    said = asyncio.run(attack())
    assert Traces.now() == before
    assert asked == 4
    assert "fork-server" in said


def _with_ipython(place: Path, source: str) -> BareTemplates:
    """A template whose sessions import this."""
    templates = BareTemplates(place / "env")
    (packages,) = (place / "env/lib").glob("python3*/site-packages")
    (packages / "IPython").mkdir()
    (packages / "IPython/__init__.py").write_text(source, encoding="utf-8")
    return templates


def test_template_whose_sessions_cannot_be_had_still_runs_programs(tmp_path: Path) -> None:
    """What was forked before that came to light goes on to its end."""
    templates = _with_ipython(tmp_path, "")

    async def scenario() -> None:
        engine = Engine(tmp_path / "state", EngineSettings(pool_max=0), templates=templates)
        began = asyncio.Event()
        try:
            running = asyncio.ensure_future(
                engine.run(
                    "import time; print(1, flush=True); time.sleep(2); print(2)",
                    on_event=lambda _: began.set(),
                )
            )
            await began.wait()
            with pytest.raises(HostUnsupported, match="IPython"):
                await engine.create_sandbox()
            assert (await running).stdout == "1\n2\n"
            forked = (await engine.runtime()).statistics().detail["fork_servers"]
            assert (await engine.run("print(3)")).stdout == "3\n"  # and new ones begin
            with pytest.raises(HostUnsupported, match="IPython"):
                await engine.create_sandbox()  # at once, by the same fork-server
            assert (await engine.runtime()).statistics().detail["fork_servers"] == forked == 1
        finally:
            await engine.aclose()

    asyncio.run(scenario())


_OWNER = """
import asyncio, pathlib, sys
from cellwall.engine.engine import Engine
from test_faults_fork_server import _with_ipython

async def main():
    place = pathlib.Path(sys.argv[1])
    templates = _with_ipython(
        place, "import time\\nopen('/tmp/importing', 'w').close()\\nwhile True: time.sleep(60)\\n"
    )
    engine = Engine(place / "state", templates=templates)
    await engine.run("print(1)")
    (entry,) = engine._runtimes.get("jail")._servers.entries
    print(entry.server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_fork_server_in_an_endless_import_ends_with_its_owner(tmp_path: Path) -> None:
    """Programs are served while what sessions need is imported; it looks at nothing then."""
    command = [sys.executable, "-c", _OWNER, str(tmp_path)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=paths) as owner:
        try:
            assert owner.stdout is not None
            pid = int(owner.stdout.readline())
            deadline = time.monotonic() + 60
            while not os.path.exists(f"/proc/{pid}/root/tmp/importing"):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            gone = os.pidfd_open(pid)
            assert not select.select([gone], [], [], 0)[0]  # it lives as long as its owner
        finally:
            owner.kill()
    ended = select.select([gone], [], [], 5)[0]
    if not ended:
        signal.pidfd_send_signal(gone, signal.SIGKILL)
    os.close(gone)
    assert ended
