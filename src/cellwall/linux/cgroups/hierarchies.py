"""Finds the cgroup hierarchies that this process may use: what is mounted, and what is writable.

Runs in the engine process; `sandbox_groups` makes directories in them. SECURITY: a plain tmpfs at
the mount point takes writes silently, so every hierarchy is checked by its magic number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cellwall.linux.syscalls import mounts

_V1_WANTED = ("memory", "pids", "cpu", "cpuacct")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy that this process may use: its place, version and controllers."""

    version: int
    controllers: frozenset[str]
    base: Path
    """This process's own cgroup at the time of discovery; directories are made below it."""
    root: Path | None = None
    """Mount point of the hierarchy."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The hierarchies this process can use; empty when there is no delegation."""

    hierarchies: tuple[Hierarchy, ...]
    why_not: str = ""
    """The reason why a controller is missing, for `doctor` and for refusals."""
    freezing: Hierarchy | None = None
    """The hierarchy in which processes can be frozen: v2 where it is mounted and writable, because
    a process frozen there can still be killed; else the one of v1. None: they cannot be."""
    v1_freezer: Hierarchy | None = None
    """The freezer of v1, which others may use although v2 is mounted."""
    hard: frozenset[str] = field(init=False, repr=False, compare=False)
    """Controllers that the kernel can enforce for this engine; each start asks seven times."""
    lets_move_itself: bool = field(init=False, repr=False, compare=False)
    """Whether a task can move itself through open files; see `Groups.open_self_move_files`."""

    def __post_init__(self) -> None:
        """Ask once what each start asks."""
        v1_alone = bool(self.hierarchies) and all(h.version == 1 for h in self.hierarchies)
        object.__setattr__(self, "lets_move_itself", v1_alone)
        hard = frozenset[str]().union(*(h.controllers for h in self.hierarchies))
        object.__setattr__(self, "hard", hard)

    def having(self, controller: str) -> Hierarchy | None:
        """Return the hierarchy that holds `controller`."""
        for hierarchy in self.hierarchies:
            if controller in hierarchy.controllers:
                return hierarchy
        return None

    @property
    def all_used(self) -> tuple[Hierarchy, ...]:
        """Every hierarchy in which an engine of this host may have directories.

        Those for freezing come first: what is frozen there does not end elsewhere.
        """
        freezing = (self.freezing, self.v1_freezer)
        extra = [each for each in freezing if each is not None and each not in self.hierarchies]
        return (*dict.fromkeys(extra), *self.hierarchies)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0))


def _magic(point: str) -> int:
    """Return the kind of file system at a mount point; 0 where something covers the way to it."""
    try:
        return mounts.filesystem_magic(point)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class View:
    """The kernel's texts on cgroups, as a parameter so that every host can be tested."""

    mountinfo: str
    """Text of /proc/self/mountinfo (proc_pid_mountinfo(5))."""
    own: str
    """Text of /proc/self/cgroup (cgroups(7))."""
    magic: Callable[[str], int] = _magic
    writable: Callable[[Path], bool] = _writable

    @classmethod
    def of_this_process(cls) -> View:
        """Read the texts of this process."""
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
    """Map a controller's name (or "" for v2) to this process's path in that hierarchy."""
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def _below(mount_root: str, own: str) -> str:
    """Return our cgroup's path in a mount that shows the hierarchy from `mount_root` on."""
    relative = os.path.relpath(own, mount_root)
    return "" if relative == "." or relative.startswith("..") else relative


def discover(view: View | None = None) -> Layout:
    """Find out which hierarchies are mounted and which of them this process may write."""
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
    v1_freezer = _v1_freezer(view, own)
    freezing = next((h for h in hierarchies if h.version == 2), v1_freezer)
    if any("cpuacct" in h.controllers for h in hierarchies):
        # Hybrid: the v2 tree has no controllers there, and each hierarchy costs a move.
        hierarchies = [h for h in hierarchies if h.controllers]
    return Layout(tuple(hierarchies), _why_not(hierarchies, missing), freezing, v1_freezer)


def _v1_freezer(view: View, own: dict[str, str]) -> Hierarchy | None:
    for version, options, point, mount_root in _mounted(view):
        if version == 1 and "freezer" in options:
            base = point / _below(mount_root, own.get("freezer", "/"))
            if view.writable(base):
                return Hierarchy(1, frozenset({"freezer"}), base, point)
    return None


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
    """Return the highest cgroup above ours that we may manage and that holds no processes itself.

    cgroup v2 forbids a group with processes to hand controllers down, except the root. Root finds
    the root; a user finds what systemd delegated (user@.service) if this process runs inside it.
    Where there is none (in a container, whose top cgroup holds this process), our own cgroup serves
    for counting CPU time and for cgroup.kill, and has no controllers for us.
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
