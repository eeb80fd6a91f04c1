"""Capacity: how much this machine may promise, read from the kernel once, at the start.

It knows neither what is promised (`admission`) nor what is free now (`host_headroom`). The
invariant: the lowest of several bounds counts, a share is reserved for the host and the engine
itself, and a bound that cannot be read bounds nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cellwall.engine.scheduling.admission import UNBOUNDED, Cost

_KEPT_SHARE = 0.1
"""Share of memory and processes reserved for the host, fork-servers and the engine."""
_KEPT_DISK_MB = 1024


@dataclass(frozen=True, slots=True)
class Files:
    """Location of the kernel's /proc; a parameter so that tests can describe any host."""

    proc: Path = Path("/proc")

    def text(self, *names: str) -> str:
        """Return the text of a file below /proc, empty if it cannot be read."""
        return _text(self.proc.joinpath(*names))


def read(disk: Path | None = None, files: Files | None = None) -> Cost:
    """Return the capacity: MiB, processes, and MiB of the disk that holds `disk`."""
    files = files or Files()
    kept = 1 - _KEPT_SHARE
    return Cost(
        memory_mb=int(memory_mb(files) * kept),
        processes=int(processes(files) * kept),
        disk_mb=UNBOUNDED if disk is None else _free_mb(disk),
        cpus=float(os.cpu_count() or 1),
    )


def memory_mb(files: Files) -> int:
    """Return MiB of memory of the machine, or of this process's cgroup if that is less."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", files.text("meminfo"), re.MULTILINE)
    machine = int(found[1]) // 1024 if found else UNBOUNDED
    limits = _group_limits(files, "memory", ("memory.max", "memory.limit_in_bytes"))
    return min(machine, limits >> 20)


def processes(files: Files) -> int:
    """Return how many processes and threads may start beside those that run already."""
    return max(1, processes_left(files)[0])


def processes_left(files: Files) -> tuple[int, int]:
    """Return how many more processes and threads the kernel allows, and the bound for them."""
    bounds = [
        int(text)
        for name in ("pid_max", "threads-max")
        if (text := files.text("sys", "kernel", name).strip()).isdigit()
    ]
    running = re.search(r"/(\d+) ", files.text("loadavg"))
    most = min(bounds, default=UNBOUNDED)
    tightest = (most - (int(running[1]) if running else 0), most)
    for group in _groups_up(files, "pids"):
        limit, now = (_text(group / name).strip() for name in ("pids.max", "pids.current"))
        if limit.isdigit():
            found = (int(limit) - (int(now) if now.isdigit() else 0), int(limit))
            tightest = min(tightest, found)
    return tightest


def _group_limits(files: Files, controller: str, names: tuple[str, ...]) -> int:
    """Return the lowest limit of this process's cgroup and its visible ancestors."""
    lowest = UNBOUNDED << 20
    for group in _groups_up(files, controller):
        for name in names:
            text = _text(group / name).strip()
            if text.isdigit():
                lowest = min(lowest, int(text))
    return lowest


def _groups_up(files: Files, controller: str) -> Iterator[Path]:
    """Yield the directories of this process's cgroup and of its ancestors."""
    for own, top in _own_groups(files, controller):
        for group in (own, *own.parents):
            yield group
            if group == top:
                break


def _own_groups(files: Files, controller: str) -> list[tuple[Path, Path]]:
    """Return this process's directory in the hierarchies of `controller`, and each mount point."""
    own: dict[str, str] = {}
    for line in files.text("self", "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for each in controllers.split(","):
            own[each] = path
    found = []
    for line in files.text("self", "mountinfo").splitlines():
        fields, _, kind = line.partition(" - ")
        words = fields.split(" ")
        name, _, options = kind.partition(" ")
        held = options.rpartition(" ")[2].split(",")
        is_ours = name == "cgroup2" or (name == "cgroup" and controller in held)
        if not is_ours:
            continue
        where = own.get("" if name == "cgroup2" else controller)
        if where is not None:
            below = os.path.relpath(where, words[3])
            top = Path(words[4])
            found.append((top if below.startswith("..") else top / below, top))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _free_mb(path: Path) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return UNBOUNDED
    return max(0, (found.f_bavail * found.f_frsize >> 20) - _KEPT_DISK_MB)
