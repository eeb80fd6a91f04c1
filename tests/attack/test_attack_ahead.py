"""What a parked sandbox copies ahead is what its program does not copy any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from arena import Arena
from mutations import Drop, dropping

from cellwall import Engine, EngineSettings

pytestmark = [pytest.mark.attack, pytest.mark.root]

_MIN_FLT = 7
"""Of proc_pid_stat(5), behind the name."""
_PROGRAM = """
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
_LEARNS_NOTHING = """
_really_fork_workers = _fork_workers
def _fork_workers(config, worker, worker_fds, ours, learn):
    _really_fork_workers(config, worker, worker_fds, ours, _nothing)
"""


@pytest.fixture
def drop(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """`drop(module=code, …)`: from now on fork-servers start from the mutated bundle."""
    arena.settle()
    return dropping(tmp_path, monkeypatch)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _waits_for_a_request(context: int) -> bool:
    """Nothing else is left for it to do: it is past the poll that ends what is copied ahead."""
    return Path(f"/proc/{context}/wchan").read_text().startswith("unix_stream")


def _parked(server: int) -> list[int]:
    return [
        context
        for worker in _children(server)
        for init in _children(worker)
        for context in _children(init)
        if _waits_for_a_request(context)
    ]


def _faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_MIN_FLT])


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.001)


def _faults_of_a_parked_program() -> int:
    """Page faults of a context from where it waits to where its program's first line is."""

    async def once() -> int:
        engine = Engine(settings=EngineSettings(pool_min=1, pool_max=1))
        try:
            await engine.run("print('so that one is parked')")
            runtime = await engine.runtime()
            (entry,) = runtime._servers.entries  # type: ignore[attr-defined]
            await _until(lambda: bool(_parked(entry.server.pid)), "nothing was parked")
            (parked,) = _parked(entry.server.pid)
            before = _faults(parked)
            execution = await engine.run(_PROGRAM)
            # It was this one: nobody else ends a sandbox that is parked.
            await _until(lambda: parked not in _parked(entry.server.pid), "another one ran it")
            return int(execution.stdout) - before
        finally:
            await engine.aclose()

    return asyncio.run(once())


def test_parked_context_has_copied_what_its_program_writes_to(drop: Drop) -> None:
    """A third of what the control, for which no run was watched, has to copy when it is asked."""
    drop()
    copied = _faults_of_a_parked_program()
    drop(forkserver=_LEARNS_NOTHING)
    control = _faults_of_a_parked_program()
    assert control > 60
    assert copied < control / 3
