"""Control groups of one sandbox: v2 where the host has it, v1 or hybrid where not.

Host half, called by `runtimes.jail`. Not which hierarchies there are (`hierarchies`) and not what
dead engines left (`leftovers`): one engine directory per hierarchy with one directory per sandbox
below it. SECURITY: no file is ever created, because a plain tmpfs takes every write silently. A
v1 memory cgroup that held a tmpfs is never used twice: directories are used once and removed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cellwall.jail.hierarchies import Hierarchy, Layout
from cellwall.model.errors import HostUnsupported
from cellwall.model.limits import Limits

PERIOD_US = 100_000
OWN_PROCESSES = 1
"""Init counts as a process of the sandbox; the limit is on the rest."""
PREFIX = "cellwall."
"""Of an engine's directory; its owner's label follows."""
_SPARES = 4
"""Sets of reusable directories that are always there: made at once, and never more of them."""
_QUIET_PEAK = 16
"""A sandbox that had more processes at once leaves a peak too high to be of use again."""


class _Spare(NamedTuple):
    """Directories of an ended sandbox that may serve another one."""

    paths: tuple[tuple[Hierarchy, str], ...]
    applied: dict[str, str]
    peak: int


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path)
    except OSError as error:
        raise HostUnsupported(
            "cgroups",
            f"make cgroup {path}: {error.strerror}",
            remedy="run `cellwall doctor`; it says whether cgroups can still be made here",
            errno=error.errno,
        ) from error


def _open(path: str | Path, value: str) -> int:
    """Open a file of the kernel's for writing `value`; never create one."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HostUnsupported(
            f"cgroup {os.path.basename(path)}",
            f"write {value} to {path}: {error.strerror}",
            remedy="run `cellwall doctor`; it names the missing cgroup controller",
            errno=error.errno,
        ) from error


def _write(path: str | Path, value: str) -> None:
    """Write, and raise if the kernel does not take it."""
    fd = _open(path, value)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise HostUnsupported(
            f"cgroup {os.path.basename(path)}",
            f"write {value} to {path}: {error.strerror}",
            remedy="run `cellwall doctor`",
            errno=error.errno,
        ) from error
    finally:
        os.close(fd)


def _read(path: str) -> bytes:
    """Read a small file of the kernel's; empty where it is missing. On the way of every run."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _counter(path: str, key: bytes) -> int:
    """A `key value` line of a counter file; 0 where file or key is missing."""
    for line in _read(path).splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return 0


def _is_reusable(hierarchy: Hierarchy) -> bool:
    """Whether directories may serve a second sandbox: v1, and nothing stays charged to them."""
    return hierarchy.version == 1 and "memory" not in hierarchy.controllers


def most_spare_directories(layout: Layout, workers: int) -> int:
    """Return how many empty directories an engine may keep for its next sandboxes.

    Its spare ones, and where workers move themselves those that each of them goes to next.
    """
    sets = _SPARES + (workers if layout.lets_move_itself else 0)
    return sets * sum(map(_is_reusable, layout.hierarchies))


class EngineGroups:
    """The engine's own directory in each hierarchy; its name carries the owner label."""

    def __init__(self, layout: Layout, owner: str) -> None:
        """`owner` is `supervisor.owner_label()`: unique to this engine in this process."""
        self.layout = layout
        self.name = PREFIX + owner
        self._made = False
        self._serial = 0
        self._spare: list[_Spare] = []
        self._lock = threading.Lock()  # directories are given back from worker threads

    def _make(self) -> None:
        for hierarchy in self.layout.hierarchies:
            path = hierarchy.base / self.name
            path.mkdir(exist_ok=True)
            if hierarchy.version == 2 and hierarchy.controllers:
                enable = " ".join(f"+{name}" for name in sorted(hierarchy.controllers))
                with contextlib.suppress(HostUnsupported):
                    _write(hierarchy.base / "cgroup.subtree_control", enable)
                _write(path / "cgroup.subtree_control", enable)
            if hierarchy.version == 1 and "memory" in hierarchy.controllers:
                _write(path / "memory.swappiness", "0")  # what is made below inherits it
        reusable = [h for h in self.layout.hierarchies if _is_reusable(h)]
        for number in range(_SPARES if reusable else 0):
            paths = [(h, f"{h.base}/{self.name}/spare{number}") for h in reusable]
            for _, made in paths:
                with contextlib.suppress(FileExistsError):  # a try that failed half way
                    os.mkdir(made)
            self._spare.append(_Spare(tuple(paths), {}, 0))
        self._made = True

    def create(self, limits: Limits, *, guests: int = 0) -> Groups:
        """Make a sandbox's directories with its limits already in them.

        `guests` is how many processes more may be there for now.
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
                    _make_directory(path)
                paths.append((hierarchy, path))
            groups = Groups(tuple(paths), spare.applied, spare.peak)
            groups.reset()
            groups.apply(limits, guests=guests)
        except BaseException:
            Groups((*paths, *spare.paths)).remove()
            raise
        return groups

    def _take_spare(self, limits: Limits) -> _Spare:
        """A set that saw fewer processes than this sandbox may have: its peak is a counter that
        the kernel cannot reset, and must tell whether the new limit was reached."""
        with self._lock:
            for index, spare in enumerate(self._spare):
                if spare.peak < limits.processes:
                    return self._spare.pop(index)
        return _Spare((), {}, 0)

    def take_back(self, groups: Groups) -> list[str]:
        """Remove or keep an ended sandbox's directories; returns what is still busy.

        Making and removing them is a good part of what a sandbox costs, so v1 directories that
        hold counters only are used again. SECURITY: a memory cgroup never is, because pages of
        the sandbox's tmpfs may stay charged to it; and no other one that was in any way busy.
        """
        if groups.is_taken_back:
            return []  # SECURITY: twice in the list, they would be two sandboxes' at once
        busy = self._take_back(groups)
        groups.is_taken_back = not busy
        return busy

    def _take_back(self, groups: Groups) -> list[str]:
        kept = groups.reusable()
        busy = groups.remove(kept)
        if busy or not kept:
            return busy
        with self._lock:
            if len(self._spare) < _SPARES:
                applied = {k: v for k, v in groups.applied.items() if k.rsplit("/", 1)[0] in kept}
                pairs = tuple(pair for pair in groups.paths if pair[1] in kept)
                self._spare.append(_Spare(pairs, applied, groups.processes_peak() or 0))
                return []
        return groups.remove(frozenset())

    def remove(self) -> None:
        """Remove the engine's directories once no sandbox is left in them."""
        self._spare.clear()
        for hierarchy in self.layout.hierarchies:
            for path in groups_in(hierarchy.base / self.name):
                with contextlib.suppress(OSError):
                    path.rmdir()
        for hierarchy in self.layout.hierarchies:
            with contextlib.suppress(OSError):
                (hierarchy.base / self.name).rmdir()
        self._made = False


def _tail(path: str) -> str:
    """The last two components: the engine's directory and the sandbox's."""
    return "/".join(path.rsplit("/", 2)[-2:])


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
    """One sandbox's directories."""

    paths: tuple[tuple[Hierarchy, str], ...]
    applied: dict[str, str] = field(default_factory=dict)
    """What was written into which file, so that nothing is written twice."""
    peak_before: int = 0
    """`pids.peak` of earlier sandboxes in the same directory, and of the set-up."""
    cpu_before_s: float = 0.0
    is_taken_back: bool = False
    """Removed, or kept for another sandbox: not this one's any more."""

    def _path(self, controller: str) -> tuple[Hierarchy, str] | None:
        for hierarchy, path in self.paths:
            if controller in hierarchy.controllers:
                return hierarchy, path
        return None

    def holds(self, controller: str) -> bool:
        """Whether the kernel enforces this controller's limits here."""
        return self._path(controller) is not None

    def _v2(self) -> str | None:
        return next((path for hierarchy, path in self.paths if hierarchy.version == 2), None)

    def _set(self, path: str, value: str) -> None:
        if self.applied.get(path) != value:
            _write(path, value)
            self.applied[path] = value

    def reset(self) -> None:
        """Set the counters that can be set back to zero."""
        found = self._path("cpuacct")
        if found is not None and self.applied:
            _write(found[1] + "/cpuacct.usage", "0")

    def reusable(self) -> frozenset[str]:
        """Directories that may serve another sandbox: v1, no memory, empty, few processes."""
        if (self.processes_peak() or 0) > _QUIET_PEAK or not self.holds("pids"):
            return frozenset()
        paths = frozenset(path for hierarchy, path in self.paths if _is_reusable(hierarchy))
        is_empty = not any(_read(path + "/cgroup.procs") for path in paths)
        return paths if is_empty else frozenset()

    def begin(self) -> None:
        """Count from now on: what set the sandbox up has left."""
        self.peak_before = self.processes_peak() or 0
        self.cpu_before_s = self._cpu_total_s()

    def apply(self, limits: Limits, *, guests: int = 0) -> None:
        """Set memory (swap off), processes and CPU share; raise if the kernel refuses one."""
        self._apply_memory(limits.memory_bytes)
        found = self._path("pids")
        if found:
            self._set(found[1] + "/pids.max", str(limits.processes + OWN_PROCESSES + guests))
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
            if os.path.exists(path + "/memory.swap.max"):
                self._set(path + "/memory.swap.max", "0")
            self._set(path + "/memory.oom.group", "0")
            return
        both = path + "/memory.memsw.limit_in_bytes"
        files = [path + "/memory.limit_in_bytes"]
        if os.path.exists(both):
            raising = size >= int(self.applied.get(both, str(2**62)))
            files = [both, *files] if raising else [*files, both]
        for file in files:
            self._set(file, str(size))

    def join(self, pid: int) -> None:
        """Move a process into every directory; it starts no child before we are done.

        Why not CLONE_INTO_CGROUP: the cloning process would need write access to our cgroups, and
        the fork-server is nobody on the host. Each move takes a global lock in the kernel.
        """
        for _, path in self.paths:
            _write(path + "/cgroup.procs", str(pid))

    def entrances(self) -> list[int]:
        """Open the file of every v1 directory through which a task moves itself: it writes 0.

        That is the one move for which the kernel takes no global lock and waits for no grace
        period (`cgroup_procs_write_start`, since Linux 5.5): 0.05 ms instead of 5 and more. The
        kernel checks the rights of who opened the file, so nobody may move itself with it.
        """
        opened: list[int] = []
        try:
            for _, path in self.paths:
                opened.append(_open(path + "/tasks", "0"))
        except HostUnsupported:
            for fd in opened:
                os.close(fd)
            raise
        return opened

    def expected_lines(self) -> set[str]:
        """What `places` must find in /proc/<pid>/cgroup of a process that is in here."""
        return {
            f"{name}:{_tail(path)}"
            for hierarchy, path in self.paths
            for name in (hierarchy.controllers if hierarchy.version == 1 else ("",))
        }

    def cpu_s(self) -> float:
        """CPU seconds of the whole tree since `begin`."""
        return max(0.0, self._cpu_total_s() - self.cpu_before_s)

    def _cpu_total_s(self) -> float:
        path = self._v2()
        if path is not None:
            usec = _counter(path + "/cpu.stat", b"usage_usec")
            if usec:
                return usec / 1e6
        found = self._path("cpuacct")
        return 0.0 if found is None else _number(found[1] + "/cpuacct.usage") / 1e9

    def memory(self) -> tuple[int, int, int]:
        """(bytes now, peak bytes, OOM kills)."""
        found = self._path("memory")
        if found is None:
            return 0, 0, 0
        hierarchy, path = found
        if hierarchy.version == 2:
            now, peak = _number(path + "/memory.current"), _number(path + "/memory.peak")
            return now, max(now, peak), _counter(path + "/memory.events", b"oom_kill")
        now = _number(path + "/memory.usage_in_bytes")
        peak = _number(path + "/memory.max_usage_in_bytes")
        return now, peak, _counter(path + "/memory.oom_control", b"oom_kill")

    def processes_refused(self, peak: int | None) -> int:
        """Forks refused because of pids.max; at least 1 once all that it allows existed at once.

        `peak` is what `processes_peak` says.

        Why not the counter alone: on cgroup v1 the kernel (6.11 and later) leaves it at 0.
        """
        found = self._path("pids")
        if found is None:
            return 0
        if peak is not None and peak < int(self.applied.get(found[1] + "/pids.max", "0")):
            return 0  # the limit was never reached
        counted = _counter(found[1] + "/pids.events", b"max")
        return max(counted, int((peak or 0) > self.peak_before))

    def processes_peak(self) -> int | None:
        """Most processes at once, ours included; None where the kernel does not say."""
        found = self._path("pids")
        peak = 0 if found is None else _number(found[1] + "/pids.peak")
        return peak or None

    def kill(self) -> None:
        """cgroup.kill where the v2 tree has it; the pid namespace's end does the same."""
        path = self._v2()
        if path is not None:
            with contextlib.suppress(OSError, HostUnsupported):
                _write(path + "/cgroup.kill", "1")

    def remove(self, kept: frozenset[str] = frozenset()) -> list[str]:
        """Remove the directories but `kept`; returns what is still busy, for a later try."""
        busy = []
        for _, path in self.paths:
            if path in kept:
                continue
            try:
                os.rmdir(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                busy.append(f"{path}: {error.strerror}")
        return busy


def groups_in(engine: Path) -> list[Path]:
    """Return the sandboxes' directories in an engine's."""
    try:
        return [path for path in engine.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
