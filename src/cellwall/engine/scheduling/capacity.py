"""How much this machine may promise: read from the kernel once, at the start.

Not what is promised (`admission`) and not what is free right now (`host_headroom`). The invariant:
of several bounds the lowest counts, a part is kept back for the host and for us, and what cannot be
read bounds nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cellwall.engine.scheduling.admission import UNBOUNDED, Cost

_KEPT_SHARE = 0.1
"""Of memory and processes, for the host, fork-servers and ourselves."""
_KEPT_DISK_MB = 1024


@dataclass(frozen=True, slots=True)
class Files:
    """Where the kernel says it; a parameter so that every host can be tested."""

    proc: Path = Path("/proc")

    def text(self, *names: str) -> str:
        """Return a file below /proc, empty if it cannot be read."""
        return _text(self.proc.joinpath(*names))


def read(disk: Path | None = None, files: Files | None = None) -> Cost:
    """Return what may be promised: MiB, processes, and MiB of the disk that `disk` lies on."""
    files = files or Files()
    kept = 1 - _KEPT_SHARE
    return Cost(
        memory_mb=int(memory_mb(files) * kept),
        processes=int(processes(files) * kept),
        disk_mb=UNBOUNDED if disk is None else _free_mb(disk),
        cpus=float(os.cpu_count() or 1),
    )


def memory_mb(files: Files) -> int:
    """Return MiB of memory of the machine, or of the cgroup we live in if that is less."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", files.text("meminfo"), re.MULTILINE)
    machine = int(found[1]) // 1024 if found else UNBOUNDED
    limits = _group_limits(files, "memory", ("memory.max", "memory.limit_in_bytes"))
    return min(machine, limits >> 20)


def processes(files: Files) -> int:
    """Return how many processes and threads there may be beside those that run already."""
    return max(1, processes_left(files)[0])


def processes_left(files: Files) -> tuple[int, int]:
    """Return how many more processes and threads the kernel lets us have, and of how many."""
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
    """Return the lowest limit of our cgroup and those above it, as far as they are shown."""
    lowest = UNBOUNDED << 20
    for group in _groups_up(files, controller):
        for name in names:
            text = _text(group / name).strip()
            if text.isdigit():
                lowest = min(lowest, int(text))
    return lowest


def _groups_up(files: Files, controller: str) -> Iterator[Path]:
    """Yield the directories of our cgroup and of those above it."""
    for own, top in _own_groups(files, controller):
        for group in (own, *own.parents):
            yield group
            if group == top:
                break


def _own_groups(files: Files, controller: str) -> list[tuple[Path, Path]]:
    """Return our directory in the hierarchies of `controller`, and where each is mounted."""
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
