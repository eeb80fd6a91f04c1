"""The rows of fleets: processor time of a program on a node of Ray's against an embedded engine.

Called by `runner`. Both sides are processes in cgroups of their own (`fleet_side`) and take turns.
A cluster of Ray's that does nothing takes processor time as well, whatever runs on it; each side is
charged what it takes beyond that, and the detail says the ratio with it. Invariant: what cannot be
told apart by cgroups is not measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cellwall.apps.timings import TimingError
from cellwall_bench.figures import Figure

_CPUACCT = Path("/sys/fs/cgroup/cpuacct")
_ROOT = Path(__file__).resolve().parents[2]
_PYTHON = _ROOT / ".tools" / "suites" / "suite-ray" / "bin" / "python"
_WARM_UP = 60
_IDLE_S = 5.0
_END_S = 60.0


@dataclass(frozen=True, slots=True)
class _Spent:
    """Seconds of processors, and of the clock."""

    cpu: float
    wall: float


class _Side:
    """One side, as a process."""

    def __init__(self, process: subprocess.Popen[str], group: Path) -> None:
        self._process = process
        self.group = group
        self._expect("ready")
        for _ in range(2):  # the first begins the start of what a second finds ready
            self.ask(str(_WARM_UP))
            self.ask(f"idle {_IDLE_S}")
        idle = self.ask(f"idle {_IDLE_S}")
        self.idle_rate = idle.cpu / idle.wall
        """Processor seconds a second while nothing runs."""

    def ask(self, words: str) -> _Spent:
        """Have it do something; return what that took."""
        stdin = _of(self._process.stdin)
        stdin.write(words + "\n")
        stdin.flush()
        cpu, wall = self._line().split()
        return _Spent(float(cpu), float(wall))

    def _expect(self, wanted: str) -> None:
        said = self._line().strip()
        if said != wanted:
            raise TimingError(f"fleet: its side said {said!r}, not {wanted!r}")

    def _line(self) -> str:
        line = _of(self._process.stdout).readline()
        if not line:
            raise TimingError("fleet: one side has ended; `make fleet` says more")
        return line


def _of(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise TimingError("fleet: a side without pipes")
    return stream


@contextlib.contextmanager
def _opened(name: str, prefix: list[str]) -> Iterator[_Side]:
    group = Path(tempfile.mkdtemp(prefix=f"cellwall-bench-{name}-", dir=_CPUACCT))
    paths = os.pathsep.join(str(_ROOT / each) for each in ("tests", "bench"))
    process = subprocess.Popen(
        [*prefix, str(_PYTHON), "-m", "cellwall_bench.fleet_side", name, str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "CELLWALL_FAST": "1"},
    )
    try:
        yield _Side(process, group)
    finally:
        _end(process, group)


def _end(process: subprocess.Popen[str], group: Path) -> None:
    """Have a side end by itself; kill what is left in its cgroup, and remove that."""
    _of(process.stdin).close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    for folder, _, _ in os.walk(group, topdown=False):
        for pid in Path(folder, "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    process.wait()
    deadline_s = time.monotonic() + _END_S
    while _is_busy(group) and time.monotonic() < deadline_s:
        time.sleep(0.05)  # nothing tells of the end of another's child
    for folder, _, _ in os.walk(group, topdown=False):
        os.rmdir(folder)


def _is_busy(group: Path) -> bool:
    return any(Path(folder, "cgroup.procs").read_text() for folder, _, _ in os.walk(group))


async def many(key: str, rounds: int) -> Figure:
    """Measure the processor time of a program of many at once, as a ratio."""
    return await asyncio.to_thread(_measured, key, "200", 200, rounds)


async def single(key: str, rounds: int) -> Figure:
    """Measure the processor time of a program by itself, as a ratio."""
    return await asyncio.to_thread(_measured, key, "single 100", 100, rounds)


def _measured(key: str, words: str, count: int, rounds: int) -> Figure:
    if os.geteuid() != 0 or not _CPUACCT.is_dir():
        raise TimingError("fleet: needs root, and the controller cpuacct of cgroup v1")
    if not _PYTHON.is_file():
        raise TimingError(
            "fleet: the environment of its tests is not made; run: pytest tests/fleet"
        )
    with _opened("embedded", []) as embedded, _opened("fleet", ["unshare", "--net"]) as fleet:
        taken: dict[_Side, list[_Spent]] = {embedded: [], fleet: []}
        for _ in range(rounds):
            for side, spent in taken.items():
                spent.append(side.ask(words))
    return _figure(key, taken, rounds * count)


def _figure(key: str, taken: dict[_Side, list[_Spent]], programs: int) -> Figure:
    (embedded, fleet), whole, own = taken, list[float](), list[float]()
    for side, spent in taken.items():
        whole.append(sum(each.cpu for each in spent))
        own.append(whole[-1] - side.idle_rate * sum(each.wall for each in spent))
    idle = " and ".join(f"{side.idle_rate * 100:.1f} %" for side in (fleet, embedded))
    text = f"{own[1] / programs * 1e3:.1f} ms against {own[0] / programs * 1e3:.1f} embedded; "
    text += f"{whole[1] / whole[0]:.2f} x with what both take idle, {idle} of a processor"
    return Figure(key, own[1] / own[0], f"{text}; n={programs}")
