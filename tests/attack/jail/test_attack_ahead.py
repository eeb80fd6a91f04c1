"""What a parked sandbox copies ahead is what its program does not copy any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall import Engine, EngineSettings
from cellwall.jail.inspect import posture
from kit.arena import Arena
from kit.attack.mutations import Drop, dropping

pytestmark = [pytest.mark.attack, pytest.mark.root]

_MIN_FLT = 7
"""Of proc_pid_stat(5), behind the name."""
_PROGRAM = """
print("here", flush=True)
while True: pass
"""
"""It is counted from outside: what it would import to count itself has faults of its own, which
nobody can foresee and which were a third of all."""
_LEARNS_NOTHING = """
_really_fork_workers = _fork_workers
def _fork_workers(config, worker, worker_fds, ours, recall, learn):
    _really_fork_workers(config, worker, worker_fds, ours, recall, _nothing)
"""


@pytest.fixture
def drop(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """`drop(module=code, …)`: from now on fork-servers start from the mutated bundle."""
    arena.settle()
    return dropping(tmp_path, monkeypatch)


def _parked(server: int) -> list[int]:
    """Contexts that wait for a request and have nothing else to do: all is copied ahead."""
    found = []
    for worker in posture.children(server):
        for init in _children(worker):
            for context in _children(init):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends
                    if Path(f"/proc/{context}/wchan").read_text().startswith("unix_stream"):
                        found += [context]
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        return posture.children(pid)
    return []


def _faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_MIN_FLT])


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.001)


def _faults_of_a_parked_program() -> int:
    """Page faults of a context from where it waits to where its program's first line is told."""

    async def once() -> int:
        engine = Engine(settings=EngineSettings(pool_min=1, pool_max=1))
        try:
            await engine.run("print('so that one is parked')")
            runtime = await engine.runtime()
            (entry,) = runtime._servers.entries  # type: ignore[attr-defined]  # the jail's
            await _until(lambda: bool(_parked(entry.server.pid)), "nothing was parked")
            (parked,) = _parked(entry.server.pid)
            before = _faults(parked)
            counted: list[int] = []
            running = asyncio.ensure_future(
                engine.run(_PROGRAM, on_event=lambda _: counted.append(_faults(parked)))
            )
            await _until(lambda: bool(counted), "the program said nothing")
            # It was this one: it waits no longer, and what runs has not ended.
            assert parked not in _parked(entry.server.pid)
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])
            return counted[0] - before
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
