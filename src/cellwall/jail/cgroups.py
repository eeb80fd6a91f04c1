"""Control groups of one sandbox: v2 where the host has it, v1 or hybrid where not.

Host half, called by `runtimes.jail`. Not a general cgroup library: one engine directory per
hierarchy with one directory per sandbox below it. SECURITY: a plain tmpfs at the mount point takes
writes silently, so every hierarchy is checked by its magic number, and no file is ever created.
A v1 memory cgroup that held a tmpfs is never used twice: directories are used once and removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cellwall.jail.linux import mounts
from cellwall.model.errors import HostUnsupported
from cellwall.model.limits import Limits

PERIOD_US = 100_000
OWN_PROCESSES = 1
"""Init counts as a process of the sandbox; the limit is on the rest."""
_V1_WANTED = ("memory", "pids", "cpu", "cpuacct")
_PREFIX = "cellwall."
_SPARES = 4
"""Sets of reusable directories that are always there: made at once, and never more of them."""
_QUIET_PEAK = 16
"""A sandbox that had more processes at once leaves a peak too high to be of use again."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy we may use: where, which version, which controllers."""

    version: int
    controllers: frozenset[str]
    base: Path
    """Our own cgroup in it at the time of asking, below which we make directories."""
    root: Path | None = None
    """Where it is mounted."""


class _Spare(NamedTuple):
    """Directories of an ended sandbox that may serve another one."""

    paths: tuple[tuple[Hierarchy, str], ...]
    applied: dict[str, str]
    peak: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The hierarchies this process can use; empty when there is no delegation."""

    hierarchies: tuple[Hierarchy, ...]
    why_not: str = ""
    """Why a controller is missing, for `doctor` and for refusals."""

    def having(self, controller: str) -> Hierarchy | None:
        """Return the hierarchy that holds `controller`."""
        for hierarchy in self.hierarchies:
            if controller in hierarchy.controllers:
                return hierarchy
        return None

    @property
    def lets_move_itself(self) -> bool:
        """Whether a task can move itself through open files; see `Groups.entrances`."""
        return bool(self.hierarchies) and all(h.version == 1 for h in self.hierarchies)

    @property
    def hard(self) -> frozenset[str]:
        """Controllers the kernel can enforce for us."""
        found: set[str] = set()
        for hierarchy in self.hierarchies:
            found |= hierarchy.controllers
        return frozenset(found)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0))


def _magic(point: str) -> int:
    """The kind of file system at a mount point; 0 where something covers the way to it."""
    try:
        return mounts.filesystem_magic(point)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class View:
    """What the kernel says of cgroups, as text; a parameter so that every host can be tested."""

    mountinfo: str
    """/proc/self/mountinfo (proc_pid_mountinfo(5))."""
    own: str
    """/proc/self/cgroup (cgroups(7))."""
    magic: Callable[[str], int] = _magic
    writable: Callable[[Path], bool] = _writable

    @classmethod
    def of_this_process(cls) -> View:
        """Ask the kernel."""
        mountinfo, own = (
            Path("/proc/self", name).read_text(encoding="utf-8", errors="surrogateescape")
            for name in ("mountinfo", "cgroup")
        )
        return cls(mountinfo, own)


_ESCAPED = re.compile(r"\\([0-7]{3})")


def _unescape(field: str) -> str:
    """Undo mountinfo's octal escapes of space, tab, newline and backslash."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), field)


def _mounted(view: View) -> list[tuple[int, frozenset[str], Path, str]]:
    """(version, controllers, mount point, root of the mount) from mountinfo, magic checked."""
    found = []
    for line in view.mountinfo.splitlines():
        fields = line.split(" ")
        dash = fields.index("-")
        kind, options = fields[dash + 1], fields[dash + 3]
        if kind not in {"cgroup", "cgroup2"}:
            continue
        point = _unescape(fields[4])
        magic = mounts.CGROUP2_SUPER_MAGIC if kind == "cgroup2" else mounts.CGROUP_SUPER_MAGIC
        if view.magic(point) != magic:
            continue
        version = 2 if kind == "cgroup2" else 1
        root = _unescape(fields[3])
        found.append((version, frozenset(options.split(",")), Path(point), root))
    return found


def _own_paths(text: str) -> dict[str, str]:
    """Controller name (or "" for v2) to our path in that hierarchy."""
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def _below(mount_root: str, own: str) -> str:
    """Our cgroup's path relative to a mount that shows the hierarchy from `mount_root` on."""
    relative = os.path.relpath(own, mount_root)
    return "" if relative == "." or relative.startswith("..") else relative


def discover(view: View | None = None) -> Layout:
    """Ask the kernel what is mounted and what of it we may write."""
    view = view or View.of_this_process()
    own = _own_paths(view.own)
    hierarchies: list[Hierarchy] = []
    missing: list[str] = []
    for version, options, point, mount_root in _mounted(view):
        if version == 2:
            if any(h.version == 2 for h in hierarchies):
                continue  # the same tree, mounted once more
            hierarchy = _v2_hierarchy(view, point, _below(mount_root, own.get("", "/")))
        else:
            taken = frozenset[str]().union(*(h.controllers for h in hierarchies))
            wanted = (frozenset(_V1_WANTED) & options) - taken
            if not wanted:
                continue
            base = point / _below(mount_root, own.get(min(wanted), "/"))
            hierarchy = Hierarchy(1, wanted, base, point)
        if view.writable(hierarchy.base):
            hierarchies.append(hierarchy)
        else:
            missing.append(str(hierarchy.base))
    if any("cpuacct" in h.controllers for h in hierarchies):
        # Hybrid: the v2 tree has no controllers there, and each hierarchy costs a move.
        hierarchies = [h for h in hierarchies if h.controllers]
    return Layout(tuple(hierarchies), _why_not(hierarchies, missing))


def v2_place(view: View) -> Path | None:
    """Return the directory of our own cgroup in the v2 tree; None where none is mounted."""
    own = _own_paths(view.own).get("", "/")
    for version, _, point, mount_root in _mounted(view):
        if version == 2:
            return point / _below(mount_root, own).strip("/")
    return None


def _why_not(hierarchies: list[Hierarchy], missing: list[str]) -> str:
    if missing:
        return f"no write access to {', '.join(missing)}"
    bare = [str(h.base) for h in hierarchies if not h.controllers]
    if bare:
        return f"{', '.join(bare)} holds processes or has no controllers to hand down"
    return ""


def _v2_hierarchy(view: View, point: Path, own: str) -> Hierarchy:
    """The highest cgroup above ours that we may manage and that holds no processes itself.

    cgroup v2 forbids a group with processes to hand controllers down, except the root; root
    finds the root, a user finds what systemd delegated (user@.service) if we run inside it.
    Where there is none (a container, whose top cgroup we sit in) our own serves for counting
    CPU time and for cgroup.kill, and has no controllers for us.
    """
    parts = Path(own.strip("/")).parts
    for depth in range(len(parts) + 1):
        base = point.joinpath(*parts[:depth])
        files = (base / "cgroup.procs", base / "cgroup.subtree_control")
        if not (view.writable(base) and all(view.writable(file) for file in files)):
            continue
        is_real_root = depth == 0 and not (base / "cgroup.type").exists()
        if is_real_root or not files[0].read_text(encoding="ascii").strip():
            return Hierarchy(2, _v2_controllers(base), base)
    return Hierarchy(2, frozenset(), point.joinpath(*parts))


def _v2_controllers(base: Path) -> frozenset[str]:
    try:
        words = (base / "cgroup.controllers").read_text(encoding="ascii").split()
    except OSError:
        return frozenset()
    return frozenset(words) & {"memory", "pids", "cpu"}


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


def most_spare_directories(layout: Layout) -> int:
    """Return how many empty directories an engine may keep for its next sandboxes."""
    return _SPARES * sum(map(_is_reusable, layout.hierarchies))


class EngineGroups:
    """The engine's own directory in each hierarchy; its name carries the owner label."""

    def __init__(self, layout: Layout, owner: str) -> None:
        """`owner` is `supervisor.owner_label()`: unique to this engine in this process."""
        self.layout = layout
        self.name = _PREFIX + owner
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
            for path in _groups_in(hierarchy.base / self.name):
                with contextlib.suppress(OSError):
                    path.rmdir()
        for hierarchy in self.layout.hierarchies:
            with contextlib.suppress(OSError):
                (hierarchy.base / self.name).rmdir()
        self._made = False


def _tail(path: str) -> str:
    """The last two components: the engine's directory and the sandbox's."""
    return "/".join(path.rsplit("/", 2)[-2:])


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


def sweep(layout: Layout, is_dead: object) -> tuple[int, list[str]]:
    """Kill and remove the directories of engines that are gone.

    `is_dead(label)` decides by exact owner label; anything it does not know is left alone.
    """
    removed, kept = 0, []
    for hierarchy in layout.hierarchies:
        for engine in _engines_in(hierarchy):
            label = engine.name[len(_PREFIX) :]
            if not callable(is_dead) or not is_dead(label):
                continue
            for path in [*_groups_in(engine), engine]:
                removed += 1
                if not _kill_and_remove(path):
                    kept.append(str(path))
    return removed, kept


def _engines_in(hierarchy: Hierarchy) -> list[Path]:
    """Engine directories anywhere in the hierarchy: a dead engine's cgroup need not be ours.

    Others make and remove directories meanwhile; what is gone when we look is nobody's leftover.
    """
    below = hierarchy.root if hierarchy.root is not None else hierarchy.base
    return [
        Path(parent, name)
        for parent, names, _ in os.walk(below)  # passes over what it cannot read
        for name in names
        if name.startswith(_PREFIX)
    ]


def _groups_in(engine: Path) -> list[Path]:
    try:
        return [path for path in engine.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def _kill_and_remove(path: Path) -> bool:
    """End what is in a dead engine's cgroup, by the pids the kernel lists there.

    Several engines may sweep the same leftovers at once: gone is gone, whoever did it.
    """
    deadline = time.monotonic() + 2.0
    while True:
        try:
            _kill_listed(path)
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


def _kill_listed(path: Path) -> None:
    """Kill what the kernel lists in a cgroup, and nobody who got one of these pids meanwhile.

    SECURITY: a number that is still listed after its pidfd was opened is that process's: one that
    ended between the two would be listed no more, and its successor lives in another cgroup.
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
