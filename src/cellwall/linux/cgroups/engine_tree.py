"""The control groups of one engine: a directory in each hierarchy, below it one for each sandbox.

Called from worker threads of the engine process. The contents of a sandbox's groups are in
`sandbox_groups`, what dead engines left is in `leftovers`. SECURITY: a v1 memory cgroup that held a
tmpfs is never used twice.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cellwall.linux.cgroups.files import make_directory, write
from cellwall.linux.cgroups.freezer import Freezer
from cellwall.linux.cgroups.hierarchies import Hierarchy, Layout
from cellwall.linux.cgroups.sandbox_groups import BUFFERS, Groups, is_reusable
from cellwall.model.errors import HostUnsupported
from cellwall.model.limits import Limits

PREFIX = "cellwall."
"""Prefix of the name of an engine's directory; its owner's label follows."""
_FROZEN = "frozen"
"""Name of a directory that was made for freezing only; a number follows."""
SPARES = 4
"""Number of sets of reusable directories, made in advance; the most that are kept."""

_WEIGHTS = {1: ("cpu.shares", "512"), 2: ("cpu.weight", "50")}
"""Weight file and value by the version of a hierarchy; other groups have 1024 and 100.
sched-design-CFS, cgroup-v2 in the kernel's documentation."""


class _Spare(NamedTuple):
    """Directories of an ended sandbox that may serve another one."""

    paths: tuple[tuple[Hierarchy, str], ...]
    applied: dict[str, str]
    peak: int


def most_spare_directories(layout: Layout, workers: int) -> int:
    """Return how many empty directories an engine may keep for its next sandboxes.

    These are its spare ones and, where workers move themselves, the next ones of each worker.
    """
    sets = SPARES + (workers if layout.lets_move_itself else 0)
    return sets * sum(map(is_reusable, layout.hierarchies))


class EngineGroups:
    """The engine's own directory in each hierarchy; its name carries the owner label."""

    def __init__(self, layout: Layout, owner: str) -> None:
        """`owner` comes from `owner_label.new_label()`: unique to this engine in this process."""
        self.layout = layout
        self.name = PREFIX + owner
        self._made = False
        self._serial = self._frozen = 0
        self._spare: list[_Spare] = []
        self._lock = threading.Lock()  # directories are given back from worker threads

    def _make(self) -> None:
        for hierarchy in self.layout.hierarchies:
            path = hierarchy.base / self.name
            path.mkdir(exist_ok=True)
            if hierarchy.version == 2 and hierarchy.controllers:
                enable = " ".join(f"+{name}" for name in sorted(hierarchy.controllers))
                with contextlib.suppress(HostUnsupported):
                    write(hierarchy.base / "cgroup.subtree_control", enable)
                write(path / "cgroup.subtree_control", enable)
            if hierarchy.version == 1 and "memory" in hierarchy.controllers:
                write(path / "memory.swappiness", "0")  # directories made below inherit it
                _count_buffers(f"{path}{BUFFERS}")
            _let_the_host_go_first(hierarchy, path)
        reusable = [h for h in self.layout.hierarchies if is_reusable(h)]
        for number in range(SPARES if reusable else 0):
            paths = [(h, f"{h.base}/{self.name}/spare{number}") for h in reusable]
            for _, made in paths:
                with contextlib.suppress(FileExistsError):  # an earlier try that failed half way
                    os.mkdir(made)
            self._spare.append(_Spare(tuple(paths), {}, 0))
        self._made = True

    def create(self, limits: Limits, *, guests: int = 0) -> Groups:
        """Make a sandbox's directories and set its limits in them.

        `guests` is the number of additional processes that may be there for now.
        """
        with self._lock:
            if not self._made:
                self._make()
            self._serial += 1
            serial = self._serial
        spare = self._take_spare(limits)
        used_before = dict(spare.paths)
        paths: list[tuple[Hierarchy, str]] = []
        try:
            for hierarchy in self.layout.hierarchies:
                path = used_before.get(hierarchy)
                if path is None:
                    path = f"{hierarchy.base}/{self.name}/{serial}"
                    make_directory(path)
                paths.append((hierarchy, path))
            groups = Groups(tuple(paths), spare.applied, spare.peak)
            groups.apply(limits, guests=guests)
        except BaseException:
            Groups((*paths, *spare.paths)).remove()
            raise
        return groups

    def _take_spare(self, limits: Limits) -> _Spare:
        """Take a set whose peak of processes is below this sandbox's limit, or an empty one.

        The kernel cannot reset the peak, and it must show whether the new limit was reached.
        """
        with self._lock:
            for index, spare in enumerate(self._spare):
                if spare.peak < limits.processes:
                    return self._spare.pop(index)
        return _Spare((), {}, 0)

    def take_back(self, groups: Groups) -> list[str]:
        """Remove or keep an ended sandbox's directories; return the paths that are still busy.

        Making and removing them is a good part of a sandbox's cost, so v1 directories that hold
        only counters are used again. SECURITY: a memory cgroup never is, because pages of the
        sandbox's tmpfs may stay charged to it; nor is any other directory that was in any way busy.
        """
        if groups.is_taken_back:
            return []  # SECURITY: twice in the list, they would be two sandboxes' at once
        busy = self._take_back(groups)
        groups.is_taken_back = not busy
        return busy

    def _take_back(self, groups: Groups) -> list[str]:
        kept, peak = groups.reusable()
        busy = groups.remove(kept)
        if busy or not kept:
            return busy
        with self._lock:
            if len(self._spare) < SPARES:
                applied = {k: v for k, v in groups.applied.items() if k.rsplit("/", 1)[0] in kept}
                pairs = tuple(pair for pair in groups.paths if pair[1] in kept)
                self._spare.append(_Spare(pairs, applied, peak))
                return []
        return groups.remove(frozenset())

    def check_freezing(self) -> None:
        """Raise HostUnsupported if no processes can be frozen here."""
        if self.layout.freezing is None:
            raise HostUnsupported(
                "freezer",
                "pause: no cgroup can be made here in which processes are frozen",
                remedy="mount cgroup2 and delegate a group to this user; see `cellwall doctor`",
            )

    def add_freezer(self, groups: Groups) -> Freezer:
        """Return what freezes a sandbox, made at the first time. Raises HostUnsupported.

        A sandbox born in the v2 tree is frozen where it is; any other is moved to a directory for
        that. Why not born there: each start would pay for the move, most sandboxes are not paused.
        """
        if groups.freezer is None:
            path = groups.v2_path
            groups.freezer = self._freezer() if path is None else Freezer(path, 2, is_own=False)
        return groups.freezer

    def _freezer(self) -> Freezer:
        self.check_freezing()
        freezing = self.layout.freezing
        assert freezing is not None  # noqa: S101 - for the type checker
        (freezing.base / self.name).mkdir(exist_ok=True)
        with self._lock:
            self._frozen += 1
            path = f"{freezing.base}/{self.name}/{_FROZEN}{self._frozen}"
        make_directory(path)
        return Freezer(path, freezing.version, is_own=True)

    def remove(self) -> None:
        """Remove the engine's directories once no sandbox is left in them."""
        self._spare.clear()
        for hierarchy in self.layout.all_used:
            for path in groups_in(hierarchy.base / self.name):
                with contextlib.suppress(OSError):
                    path.rmdir()
        for hierarchy in self.layout.all_used:
            with contextlib.suppress(OSError):
                (hierarchy.base / self.name).rmdir()
        self._made = False


def found_freezer(layout: Layout, groups: Groups, places: Iterable[str]) -> Freezer | None:
    """Return the freezer of a sandbox of an earlier engine; None if it was never paused.

    `places` is where its init is, as `sandbox_groups.places` reads it.
    """
    freezing = layout.freezing
    if groups.v2_path is not None:
        return Freezer(groups.v2_path, 2, is_own=False)
    if freezing is None:
        return None
    wanted = "freezer" if freezing.version == 1 else ""
    for controller, _, tail in (place.partition(":") for place in places):
        engine, _, own = tail.partition("/")
        if controller == wanted and engine.startswith(PREFIX) and own.startswith(_FROZEN):
            return Freezer(f"{freezing.base}/{tail}", freezing.version, is_own=True)
    return None


def _let_the_host_go_first(hierarchy: Hierarchy, engine: Path) -> None:
    """Give all sandboxes together half the weight of other groups, where processors are short.

    The engine, which hands out work and reports ends, is outside of them: if it has to wait for CPU
    time behind the programs, they wait for it. Eight callers and 32 clients get 2 to 3 % more done.
    It is not a limit, so a kernel without it is no reason to refuse.
    """
    if "cpu" in hierarchy.controllers:
        name, value = _WEIGHTS[hierarchy.version]
        with contextlib.suppress(HostUnsupported):
            write(engine / name, value)


def _count_buffers(path: str) -> None:
    """Have the kernel count socket buffers while the engine's directory exists.

    The kernel patches itself for the first cgroup that counts them, and back after the last one:
    that is 0.1 ms, which each sandbox would pay otherwise.
    """
    if os.path.exists(path):
        write(path, "-1")


def groups_in(engine: Path) -> list[Path]:
    """Return the sandboxes' directories in an engine's directory."""
    try:
        return [path for path in engine.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
