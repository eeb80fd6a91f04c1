"""The cgroup directories of an engine's sandboxes, read from outside.

An engine keeps some empty directories for its next sandboxes: `is_left` does not count those.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path


def control_groups(pid: int) -> set[str]:
    """The sandboxes' cgroup directories, in every hierarchy, whose owner label names `pid`.

    At any depth: in each hierarchy they lie below the cgroup that their engine runs in.
    """
    points = re.findall(
        r" (/\S+) \S+ (?:\S+ )*- cgroup2? ",
        Path("/proc/self/mountinfo").read_text(encoding="utf-8"),
    )
    engine = re.compile(rf"cellwall\.[^-]+-[^-]+-{pid}-.*")
    return {
        os.path.join(folder, name)
        for point in points
        for folder, names, _ in os.walk(point)
        if engine.fullmatch(os.path.basename(folder))
        for name in names
    }


def is_left(group: str) -> bool:
    """Empty directories without a memory controller are kept as spares until the engine closes."""
    return has_memory(group) or is_occupied(group)


def has_memory(group: str) -> bool:
    """Whether a directory is of a memory controller; such a one serves no second sandbox."""
    names = ("memory.max", "memory.limit_in_bytes")
    return any(os.path.exists(f"{group}/{name}") for name in names)


def is_occupied(group: str) -> bool:
    """Whether any process is in a cgroup directory."""
    with contextlib.suppress(FileNotFoundError):
        return bool(Path(group, "cgroup.procs").read_text(encoding="ascii"))
    return False
