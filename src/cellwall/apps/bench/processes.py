"""What this process and everything below it hold on the host, read from /proc.

Counts and memory, for the bench and for tests of leaks. Not an accounting of cellwall's own
bookkeeping: it asks the kernel. Invariant: reading never changes what is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path


def descendants(root: int) -> list[int]:
    """Return the processes below `root`, any depth, without `root`."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent = _parent(int(entry))
            if parent is not None:
                children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found.extend(below)
        todo.extend(below)
    return found


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # it ended while we looked
        return None
    return int(stat.rpartition(")")[2].split()[1])


def pss_bytes(pids: list[int]) -> int:
    """Return the proportional memory of `pids`: shared pages count by the share of each.

    A process that ended meanwhile counts nothing; one we may not read raises `PermissionError`.
    """
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def tree_pss_bytes() -> int:
    """Return the memory of this process and all below it."""
    return pss_bytes([os.getpid(), *descendants(os.getpid())])


@dataclass(frozen=True, slots=True)
class Holdings:
    """Things that leak when somebody forgets them."""

    descriptors: int
    processes: int
    mounts: int
    cgroups: int
    namespaces: int
    state_files: int

    def beyond(self, before: Holdings) -> dict[str, int]:
        """Return what there is more of than before, by kind."""
        more = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(Holdings)}
        return {name: count for name, count in more.items() if count > 0}


def holdings(state: Path) -> Holdings:
    """Count what this process, those below it, and the state directory hold."""
    pids = [os.getpid(), *descendants(os.getpid())]
    return Holdings(
        descriptors=sum(_count(Path(f"/proc/{pid}/fd")) for pid in pids),
        processes=len(pids),
        mounts=Path("/proc/self/mountinfo").read_bytes().count(b"\n"),
        cgroups=_cgroups(),
        namespaces=len(_namespaces(pids)),
        state_files=_state_files(state),
    )


def _count(directory: Path) -> int:
    try:
        return len(os.listdir(directory))
    except OSError:
        return 0


def _namespaces(pids: list[int]) -> set[str]:
    found = set()
    for pid in pids:
        for kind in ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    return found


def _cgroups() -> int:
    return sum(
        1
        for path, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if "cellwall" in f"{path}/{name}"
    )


def _state_files(state: Path) -> int:
    return sum(
        len(names) + len(files)
        for path, names, files in os.walk(state)
        if not Path(path).is_relative_to(state / "templates")
    )
