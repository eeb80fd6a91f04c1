"""What a server holds on its host, read from outside, and whether that stays the same.

No knowledge of the load: `look` asks the kernel, `judge` is a pure function of readings. The
invariants: only what belongs to this server counts (its process tree, cgroups with its pid in
their names, its own folder), so that others on the host change nothing; a figure is flat when the
growth of its line over the whole run is below its tolerance; a run that is too short to tell says
so instead of passing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path

from cellwall.linux.cgroups.engine_tree import SPARES
from kit.jail.control_groups import has_memory

_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")
_FEWEST = 6
"""Readings below which no line is drawn."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a server while nothing runs."""

    at_s: float
    memory_mib: float
    """PSS of the server and all below it, where it may be read; else RSS of the server.

    Without pages of files: of those they share with other processes of the machine, their part
    grows when one of the others ends.
    """
    server_mib: float
    descriptors: float
    threads: float
    processes: float
    cgroups: float
    """Without the spare ones: how many of them are there changes from one moment to the next."""
    mounts: float
    """That the server sees; its own where it has a mount namespace of its own."""
    namespaces: float
    temp_files: float
    """Of its folder: state, temp directory, log."""
    objects: float
    """That Python's collector knows in the server."""


TOLERANCES = {
    "memory_mib": 32.0,  # the server's, and two parked sandboxes more or less
    "server_mib": 16.0,  # SQLite's two page caches of 8 MiB each, which fill as the audit grows
    "descriptors": 3.0,
    "threads": 2.0,  # of asyncio's pool, made when they are first needed
    "processes": 1.0,
    "cgroups": 4.0,  # one sandbox's, one in each hierarchy
    "mounts": 0.5,
    "namespaces": 7.0,  # one sandbox's
    "temp_files": 1.0,
    "objects": 2000.0,  # records of the last half minute, more or less; one per run is more
}
"""Growth over a whole run that is no leak."""
_RECORD_OBJECTS = 6
"""Half of what a record is made of: so many more runs in the last half minute are no leak."""


@dataclass(frozen=True, slots=True)
class Line:
    """The verdict about one figure."""

    figure: str
    first: float
    last: float
    most: float
    per_hour: float
    growth: float
    """Of the fitted line, from the first reading to the last."""
    tolerated: float
    is_flat: bool

    def __str__(self) -> str:
        """One line for people."""
        word = "flat" if self.is_flat else "GROWS"
        return (
            f"{self.figure:<12} first {self.first:8.1f}  last {self.last:8.1f}  "
            f"most {self.most:8.1f}  slope {self.per_hour:+9.2f}/h  "
            f"growth {self.growth:+7.2f} (tolerated {self.tolerated:g})  {word}"
        )


def look(pid: int, folder: Path, at_s: float, objects: int) -> Reading:
    """Read everything of the server with this pid; `folder` is where it may leave files."""
    pids = [pid, *_descendants(pid)]
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    rss_mib = _kib(status, "VmRSS:") / 1024
    return Reading(
        at_s=at_s,
        memory_mib=_pss_mib(pids) or rss_mib,
        server_mib=rss_mib,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        processes=len(pids),
        cgroups=cgroups(pid),
        mounts=len(Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines()),
        namespaces=len(_namespaces(pids)),
        temp_files=sum(len(found) + len(names) for _, names, found in os.walk(folder)),
        objects=objects,
    )


def grown(before: Reading, after: Reading) -> dict[str, float]:
    """Return what has grown by more than what comes and goes.

    Not mounts, which are everybody's on the host, nor cgroups, which `Traces` counts.
    """
    names = TOLERANCES.keys() - {"mounts", "cgroups"}
    more = {name: getattr(after, name) - getattr(before, name) for name in names}
    return {name: by for name, by in more.items() if by > TOLERANCES[name]}


def judge(readings: Sequence[Reading], runs_per_s: float = 0.0) -> list[Line]:
    """Draw a line through each figure; the first fifth is left out as warming up.

    `runs_per_s`: how fast the server was; records of the last half minute are in its memory.
    ValueError when there are too few readings to say anything.
    """
    records = 30 * runs_per_s * _RECORD_OBJECTS
    tolerances = TOLERANCES | {"objects": round(max(TOLERANCES["objects"], records))}
    settled = readings[len(readings) // 5 :]
    if len(settled) < _FEWEST:
        raise ValueError(f"soak: {len(settled)} readings are too few for a slope; run it longer")
    times = [each.at_s for each in settled]
    return [
        _line(field.name, times, settled, tolerances[field.name])
        for field in fields(Reading)
        if field.name != "at_s"
    ]


def _line(
    figure: str, times: Sequence[float], settled: Sequence[Reading], tolerated: float
) -> Line:
    values = [float(getattr(each, figure)) for each in settled]
    # The median of all pairs' slopes (Theil and Sen): a fork-server that waits for its last
    # sandbox at the end of a run is no leak, and must not tilt the line.
    pairs = combinations(zip(times, values, strict=True), 2)
    slope = statistics.median((w - v) / (u - t) for (t, v), (u, w) in pairs if u > t)
    growth = slope * (times[-1] - times[0])
    is_flat = growth <= tolerated
    edges = values[0], values[-1], max(values)
    return Line(figure, *edges, slope * 3600, growth, tolerated, is_flat)


def _kib(text: str, key: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(key)), 0)


def _pss_mib(pids: Sequence[int]) -> float:
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            total += _kib(text, "Pss_Anon:") + _kib(text, "Pss_Shmem:")
        except PermissionError:
            return 0.0
        except OSError:  # it has ended meanwhile
            continue
    return total / 1024


def children(pid: int) -> list[int]:
    """The children of a process, as the kernel lists them."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        texts = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except OSError:
        return []
    return [int(word) for text in texts for word in text.split()]


def _descendants(pid: int) -> list[int]:
    below = children(pid)
    return below + [each for child in below for each in _descendants(child)]


def cgroups(pid: int, hierarchies: str = "/sys/fs/cgroup") -> int:
    """The directories of a server's engines, those of their sandboxes but for spare ones.

    In each hierarchy there is one for each sandbox and for each that a worker is about to start, as
    in that of the memory controller, and up to `SPARES` more.
    """
    own = re.compile(rf"cellwall\.[^-]+-[^-]+-{pid}-")
    engines: dict[str, dict[str, int]] = {}
    for path, names, _ in os.walk(hierarchies):
        if own.match(os.path.basename(path)):
            engines.setdefault(os.path.basename(path), {})[path] = len(names)
    return sum(map(_without_spares, engines.values()))


def _without_spares(counts: dict[str, int]) -> int:
    """`counts`: the number of directories below that of one engine in each hierarchy."""
    needed = sum(count for path, count in counts.items() if has_memory(path))
    return sum(1 + count - min(SPARES, max(0, count - needed)) for count in counts.values())


def _namespaces(pids: Sequence[int]) -> set[str]:
    found = set()
    for pid in pids:
        for kind in _NAMESPACES:
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    return found


@contextlib.contextmanager
def collections_off() -> Iterator[None]:
    """Collect garbage now, and not before the end.

    A test process has the objects of thousands of tests before this one, and a full collection of
    them takes longer than the single steps that tests bound.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
