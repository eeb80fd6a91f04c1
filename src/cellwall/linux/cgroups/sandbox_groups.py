"""Control groups of one sandbox: v2 where the host has it, v1 or hybrid where not.

Runs in the engine process. It covers what is written into one sandbox's directories, and what the
kernel reports there. Which hierarchies exist is in `hierarchies`; `engine_tree` makes and keeps the
directories.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass, field
from pathlib import Path

from cellwall.linux.cgroups.files import (
    open_for,
    read,
    read_counter,
    read_number,
    read_whole,
    write,
)
from cellwall.linux.cgroups.freezer import Freezer
from cellwall.linux.cgroups.hierarchies import Hierarchy
from cellwall.model.errors import HostUnsupported
from cellwall.model.limits import Limits

PERIOD_US = 100_000
OWN_PROCESSES = 1
"""Number of processes of a sandbox that its limit does not count: init."""
_SET_UP_PROCESSES = 8
"""Number of processes that a set-up has room for. That is more than a worker, init and what they
fork before the sandbox's own limits are set."""
BUFFERS = "/memory.kmem.tcp.limit_in_bytes"
"""File of v1 only with the limit for unread data of TCP and UDP. v2 counts it with the rest, v1
apart."""
_BUFFERS_PART = 4
"""Divisor: a quarter of the memory limit, in addition to it, is room for full windows of some dozen
connections."""
_QUIET_PEAK = 16
"""Most processes at once of a sandbox whose directories are reused; a higher peak is of no further
use."""


def is_reusable(hierarchy: Hierarchy) -> bool:
    """Whether directories may serve a second sandbox: v1, and nothing stays charged to them."""
    return hierarchy.version == 1 and "memory" not in hierarchy.controllers


def _tail(path: str) -> str:
    """Return the last two components: the engine's directory and the sandbox's."""
    return "/".join(path.rsplit("/", 2)[-2:])


_there: set[tuple[Path, str]] = set()


def _has(hierarchy: Hierarchy, path: str, name: str) -> bool:
    """Whether cgroups of a hierarchy have this file: all but its root have it, or none.

    Only its presence is remembered. If the file were missing after all, writing to it would fail.
    """
    known = (hierarchy.base, name)
    if known not in _there and os.path.exists(path + name):
        _there.add(known)
    return known in _there


@functools.lru_cache(512)
def places(text: str) -> frozenset[str]:
    """Read /proc/<pid>/cgroup (cgroups(7)): `controller:engine/sandbox`, no controller on v2."""
    found = []
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        tail = _tail(path)
        found += [f"{name}:{tail}" for name in names.split(",")]
    return frozenset(found)


@dataclass(slots=True)
class Groups:
    """The cgroup directories of one sandbox."""

    paths: tuple[tuple[Hierarchy, str], ...]
    applied: dict[str, str] = field(default_factory=dict)
    """Value last written into each file, so that nothing is written twice."""
    peak_before: int = 0
    """`pids.peak` of earlier sandboxes in the same directory, and of the set-up."""
    cpu_before_s: float = 0.0
    is_taken_back: bool = False
    """Whether the directories were removed, or kept for another sandbox: they are no longer this
    one's."""
    is_incomplete: bool = False
    """Whether some of the directories have been removed, while others were busy."""
    freezer: Freezer | None = None
    """What freezes its processes; None before the first time."""
    v2_path: str | None = field(init=False)
    """The directory in the v2 tree, if it has one."""
    _by_controller: dict[str, tuple[Hierarchy, str]] = field(init=False, repr=False)
    _lines: frozenset[str] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Note where each controller is: one sandbox asks twenty times."""
        self.v2_path = None
        self._by_controller = {}
        for place in reversed(self.paths):
            hierarchy, path = place
            if hierarchy.version == 2:
                self.v2_path = path
            for name in hierarchy.controllers:
                self._by_controller[name] = place

    def _path(self, controller: str) -> tuple[Hierarchy, str] | None:
        return self._by_controller.get(controller)

    def holds(self, controller: str) -> bool:
        """Whether the kernel enforces this controller's limits here."""
        return controller in self._by_controller

    @property
    def are_gone(self) -> bool:
        """Whether the directory that counted memory has been removed."""
        found = self._path("memory")
        return found is not None and not os.path.exists(found[1])

    def _set(self, path: str, value: str) -> None:
        if self.applied.get(path) != value:
            write(path, value)
            self.applied[path] = value

    def reusable(self) -> tuple[frozenset[str], int]:
        """Return directories that may serve another sandbox, and their peak of processes.

        They are v1, without memory, empty, and had few processes. A directory that refused a fork
        is not reused: that count is never reset, and would count against the next sandbox. It is
        all of them or none: a process leaves them one after the other, and an attempt to remove
        them meanwhile removes only some.
        """
        peak = self.processes_peak()
        is_loud = (peak or 0) > _QUIET_PEAK or self.processes_refused(peak) > 0
        if self.is_incomplete or is_loud or not self.holds("pids"):
            return frozenset(), 0
        paths = frozenset(path for hierarchy, path in self.paths if is_reusable(hierarchy))
        is_empty = not any(read(path + "/cgroup.procs") for path in paths)
        return paths if is_empty else frozenset(), peak or 0

    def begin(self) -> None:
        """Count from now on, without what setting up the sandbox used."""
        self.peak_before = self.processes_peak() or 0
        self.cpu_before_s = self._cpu_total_s()

    def apply(self, limits: Limits, *, guests: int = 0) -> None:
        """Set memory (swap off), processes and CPU share; raise if the kernel refuses one.

        With `guests` the limits are for a set-up, and a call without it follows: a present limit of
        processes then stays if it has room for the set-up.
        """
        self._apply_memory(limits.memory_bytes)
        found = self._path("pids")
        if found:
            file = found[1] + "/pids.max"
            if not guests or int(self.applied.get(file, "0")) < _SET_UP_PROCESSES:
                self._set(file, str(limits.processes + OWN_PROCESSES + guests))
        found = self._path("cpu")
        if found:
            quota = max(1000, int(limits.cpus * PERIOD_US))
            if found[0].version == 2:
                self._set(found[1] + "/cpu.max", f"{quota} {PERIOD_US}")
            else:
                self._set(found[1] + "/cpu.cfs_quota_us", str(quota))

    def _apply_memory(self, size: int) -> None:
        found = self._path("memory")
        if not found:
            return
        hierarchy, path = found
        if hierarchy.version == 2:
            self._set(path + "/memory.max", str(size))
            if _has(hierarchy, path, "/memory.swap.max"):
                self._set(path + "/memory.swap.max", "0")
            self._set(path + "/memory.oom.group", "0")
            return
        both = path + "/memory.memsw.limit_in_bytes"
        files = [path + "/memory.limit_in_bytes"]
        if _has(hierarchy, path, "/memory.memsw.limit_in_bytes"):
            raising = size >= int(self.applied.get(both, str(2**62)))
            files = [both, *files] if raising else [*files, both]
        for file in files:
            self._set(file, str(size))
        buffers = path + BUFFERS
        if _has(hierarchy, path, BUFFERS):
            self._set(buffers, str(size // _BUFFERS_PART))

    def allow_swap(self, *, allowed: bool) -> None:
        """Let v2 put memory on swap, or no more; what is there stays until it is used.

        v1 bounds the sum of both from the start.
        """
        found = self._path("memory")
        if found and found[0].version == 2 and _has(*found, "/memory.swap.max"):
            self._set(found[1] + "/memory.swap.max", "max" if allowed else "0")

    def join(self, pid: int) -> None:
        """Move a process into every directory; it must start no child meanwhile.

        Why not CLONE_INTO_CGROUP: the cloning process would need write access to our cgroups, and
        the fork-server has no rights on the host. Each move takes a global lock in the kernel.
        """
        for _, path in self.paths:
            write(path + "/cgroup.procs", str(pid))

    def open_self_move_files(self) -> list[int]:
        """Open the file of every v1 directory through which a task moves itself: it writes 0.

        That is the one move for which the kernel takes no global lock and waits for no grace period
        (`cgroup_procs_write_start`, since Linux 5.5): 0.05 ms instead of 5 and more. The kernel
        checks the rights of the process that opened the file, so a worker without rights can move
        itself with it.
        """
        opened: list[int] = []
        try:
            for _, path in self.paths:
                opened.append(open_for(path + "/tasks", "0"))
        except HostUnsupported:
            for fd in opened:
                os.close(fd)
            raise
        return opened

    def self_move_paths(self) -> list[str]:
        """Return the files through which a process of one thread moves itself: it writes 0."""
        return [
            f"{path}/{'tasks' if hierarchy.version == 1 else 'cgroup.procs'}"
            for hierarchy, path in self.paths
        ]

    def members(self) -> set[int]:
        """Return the pids the kernel lists in here, as seen from our pid namespace."""
        words = b" ".join(read_whole(f"{path}/cgroup.procs") for _, path in self.paths[:1]).split()
        return {int(word) for word in words} - {0}  # 0: of a namespace that we cannot see

    def expected_lines(self) -> frozenset[str]:
        """Return what `places` must find in /proc/<pid>/cgroup of a process in these groups.

        It is asked for the worker that moves here, and for each process of the sandbox.
        """
        if self._lines is None:
            self._lines = frozenset(
                f"{name}:{_tail(path)}"
                for hierarchy, path in self.paths
                for name in (hierarchy.controllers if hierarchy.version == 1 else ("",))
            )
        return self._lines

    def cpu_s(self) -> float:
        """CPU seconds of the whole tree since `begin`."""
        return max(0.0, self._cpu_total_s() - self.cpu_before_s)

    def _cpu_total_s(self) -> float:
        path = self.v2_path
        if path is not None:
            usec = read_counter(path + "/cpu.stat", b"usage_usec")
            if usec:
                return usec / 1e6
        found = self._path("cpuacct")
        return 0.0 if found is None else read_number(found[1] + "/cpuacct.usage") / 1e9

    def memory(self) -> tuple[int, int, int]:
        """(bytes now, peak bytes, OOM kills)."""
        found = self._path("memory")
        if found is None:
            return 0, 0, 0
        hierarchy, path = found
        if hierarchy.version == 2:
            now, peak = (
                read_number(path + "/memory.current"),
                read_number(path + "/memory.peak"),
            )
            return now, max(now, peak), read_counter(path + "/memory.events", b"oom_kill")
        now = read_number(path + "/memory.usage_in_bytes")
        peak = read_number(path + "/memory.max_usage_in_bytes")
        return now, peak, read_counter(path + "/memory.oom_control", b"oom_kill")

    def cached_bytes(self) -> int:
        """Bytes that are copies of files on a disk; the kernel can reclaim them by itself."""
        found = self._path("memory")
        if found is None:
            return 0
        hierarchy, path = found
        prefix = b"" if hierarchy.version == 2 else b"total_"
        names = (prefix + b"inactive_file", prefix + b"active_file")
        return sum(read_counter(path + "/memory.stat", name) for name in names)

    def processes_refused(self, peak: int | None) -> int:
        """Forks refused because of pids.max; at least 1 once that many processes existed.

        `peak` is the result of `processes_peak`. Why not the counter alone: on cgroup v1 the kernel
        (6.11 and later) leaves it at 0.
        """
        found = self._path("pids")
        if found is None:
            return 0
        if peak is not None and peak < int(self.applied.get(found[1] + "/pids.max", "0")):
            return 0  # the limit was never reached
        counted = read_counter(found[1] + "/pids.events", b"max")
        return max(counted, int((peak or 0) > self.peak_before))

    def processes_peak(self) -> int | None:
        """Most processes at once, including init; None where the kernel does not say."""
        found = self._path("pids")
        peak = 0 if found is None else read_number(found[1] + "/pids.peak")
        return peak or None

    def kill(self) -> None:
        """Write to cgroup.kill where v2 has it; the pid namespace's end does the same.

        What was killed before ends also if it is frozen.
        """
        if self.freezer is not None:
            self.freezer.let_die()
        path = self.v2_path
        if path is not None:
            with contextlib.suppress(OSError, HostUnsupported):
                write(path + "/cgroup.kill", "1")

    def remove(self, kept: frozenset[str] = frozenset()) -> list[str]:
        """Remove the directories except `kept`; return the paths that are still busy."""
        busy = []
        if self.freezer is not None and (why := self.freezer.remove()) is not None:
            busy.append(why)
        for _, path in self.paths:
            if path in kept:
                continue
            try:
                os.rmdir(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                busy.append(f"{path}: {error.strerror}")
            else:
                self.is_incomplete = self.is_incomplete or not kept
        return busy
