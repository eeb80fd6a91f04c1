"""What this process and everything below it hold on the host, read from /proc.

Counts and memory, for the bench and for tests of leaks. Not an accounting of cellwall's own
bookkeeping: it asks the kernel. Invariant: reading never changes what is read.
"""

from __future__ import annotations

import os
import re
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
    """Objects of the kernel that leak when they are forgotten."""

    descriptors: int
    """But for those of `kept_networks`."""
    processes: int
    mounts: int
    cgroups: int
    """Cgroups of this process's engines that hold a process or could be charged for memory."""
    spare_cgroups: int
    """Empty ones that only count: an engine keeps a few of them for its next sandboxes."""
    kept_networks: int
    """Network namespaces that workers keep for their next sandboxes; `jail.fast.netns_reuse`."""
    namespaces: int
    state_files: int

    def beyond(self, before: Holdings) -> dict[str, int]:
        """Return what there is more of than before, by kind."""
        more = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(Holdings)}
        return {name: count for name, count in more.items() if count > 0}


def holdings(state: Path) -> Holdings:
    """Count what this process, those below it, and the state directory hold."""
    pids = [os.getpid(), *descendants(os.getpid())]
    groups = _own_cgroups()
    spare = sum(map(_is_spare, groups))
    opened = [_descriptors(pid) for pid in pids]
    return Holdings(
        descriptors=sum(opened_here for opened_here, _ in opened),
        processes=len(pids),
        mounts=Path("/proc/self/mountinfo").read_bytes().count(b"\n"),
        cgroups=len(groups) - spare,
        spare_cgroups=spare,
        kept_networks=sum(kept for _, kept in opened),
        namespaces=len(_namespaces(pids)),
        state_files=_state_files(state),
    )


def _descriptors(pid: int) -> tuple[int, int]:
    """How many a process has, and how many network namespaces it keeps with others of them.

    A worker has its own namespace open, and of each that it keeps the namespace, what the kernel
    says there, and the pidfd of who had it last.
    """
    places = []
    for entry in _listed(Path(f"/proc/{pid}/fd")):
        try:
            places.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
        except OSError:  # closed while we looked
            places.append("")
    kept = max(0, sum(place.startswith("net:[") for place in places) - 1)
    said = sum(_SAID_OF_A_NETWORK.match(place) is not None for place in places) if kept else 0
    return len(places) - 2 * kept - said, kept


_SAID_OF_A_NETWORK = re.compile(r"/proc/\d+/net/")


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _namespaces(pids: list[int]) -> set[str]:
    found = set()
    for pid in pids:
        for kind in ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    return found


def _own_cgroups() -> list[Path]:
    """Directories of this process's engines, by the owner label in their names (`owner_label`)."""
    own = re.compile(rf"/cellwall\.[0-9a-f]{{8}}-\d+-{os.getpid()}-")
    return [
        Path(path, name)
        for path, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if own.search(f"{path}/{name}")
    ]


def _is_spare(group: Path) -> bool:
    """Whether nothing is in it and nothing stays charged to it: `tasks` is cgroup v1's alone."""
    is_engine = group.name.startswith("cellwall.")
    only_counts = (group / "tasks").exists() and not (group / "memory.limit_in_bytes").exists()
    try:
        return only_counts and not is_engine and not (group / "cgroup.procs").read_bytes()
    except OSError:  # removed while we looked
        return False


def _state_files(state: Path) -> int:
    return sum(
        len(names) + len(files)
        for path, names, files in os.walk(state)
        if not Path(path).is_relative_to(state / "templates")
    )
