"""Removes what dead engines left in the cgroup hierarchies: found by owner label, killed, removed.

Runs in the engine process, called by `runtimes.jail.runtime` before its first start. SECURITY: it
touches only directories with the exact label of an engine that is certainly dead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path

from cellwall.linux.cgroups.engine_tree import PREFIX, groups_in
from cellwall.linux.cgroups.freezer import thaw_v1
from cellwall.linux.cgroups.hierarchies import Hierarchy, Layout


def sweep(layout: Layout, is_dead: object) -> tuple[int, list[str]]:
    """Kill and remove the directories of engines that are gone.

    `is_dead(label)` decides by exact owner label; a directory that it does not recognise stays.
    """
    removed, kept = 0, []
    for hierarchy in layout.all_used:
        for engine in _engines_in(hierarchy):
            label = engine.name[len(PREFIX) :]
            if not callable(is_dead) or not is_dead(label):
                continue
            for path in [*groups_in(engine), engine]:
                removed += 1
                if not _kill_and_remove(path):
                    kept.append(str(path))
    return removed, kept


def _engines_in(hierarchy: Hierarchy) -> list[Path]:
    """Return engine directories anywhere in the hierarchy, also outside of our cgroup.

    Other processes make and remove directories meanwhile; a directory that is gone needs no
    removal.
    """
    below = hierarchy.root if hierarchy.root is not None else hierarchy.base
    return [
        Path(parent, name)
        for parent, names, _ in os.walk(below)  # skips what it cannot read
        for name in names
        if name.startswith(PREFIX)
    ]


def _kill_and_remove(path: Path) -> bool:
    """End the processes in a dead engine's cgroup, by the pids the kernel lists there; remove it.

    Several engines may sweep the same leftovers at once: success does not depend on which one
    removed it.
    """
    deadline = time.monotonic() + 2.0
    while True:
        try:
            kill_listed(path)
            thaw_v1(path)  # a process frozen there does not end before
            path.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno == errno.ENODEV:  # removed between open and read
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def kill_listed(path: Path) -> None:
    """Kill the processes listed in a cgroup, and none that reused one of their pids.

    SECURITY: a pid that is still listed after its pidfd was opened belongs to the pidfd's process.
    Had that process ended before, the pid would not be listed, and its new owner is in another
    cgroup.
    """
    with contextlib.ExitStack() as opened:
        pidfds = {}
        for pid in _listed(path):
            with contextlib.suppress(ProcessLookupError):
                pidfds[pid] = os.pidfd_open(pid)
                opened.callback(os.close, pidfds[pid])
        for pid in _listed(path) & set(pidfds):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfds[pid], signal.SIGKILL)


def _listed(path: Path) -> set[int]:
    text = (path / "cgroup.procs").read_text(encoding="ascii")
    return {int(line) for line in text.split()} - {0}  # 0: of a pid namespace that we cannot see
