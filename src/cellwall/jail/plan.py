"""Decides what a jail consists of: pure functions from facts and limits to lists of steps.

No system call happens here, so every rule can be tested without privileges and printed by
`cellwall jail explain`. `apply` walks the result. Runs on the host and in the fork-server, so:
standard library only. The invariant: deny by default. What is not named here is not there.
"""

from __future__ import annotations

import hashlib
import json
import resource
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from cellwall.jail import steps as s
from cellwall.jail.linux import mounts as m

UNCOUNTED = "uncounted.refusals"
"""What the filter refuses where no cgroup counts memory: such as nobody else could count."""
INSIDE_UID = 1000
HOME = "/home/user"
TEMPLATE_ROOT = "/opt/env"
GUEST_PATH = "/opt/cellwall/guest.pyz"
VIEWS = "/opt/cellwall/views"
_WORK = "/tmp"
_EMPTY_FILE = "/opt/cellwall/empty/file"
_EMPTY_DIR = "/opt/cellwall/empty/dir"

_RO = m.ATTR_RDONLY | m.ATTR_NOSUID | m.ATTR_NODEV
_DIRECTORIES = (
    *("/proc", "/sys", "/dev", "/dev/shm", "/dev/pts", "/dev/mqueue", "/home", HOME, _WORK),
    *("/opt", "/opt/cellwall", "/opt/cellwall/empty", _EMPTY_DIR, "/run", "/var", "/var/tmp"),
    "/root",
)
_DEVICES = (
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
)
PROC_KEPT = frozenset({"self", "thread-self", "mounts", "net", "filesystems", "uptime", "version"})
"""Entries of /proc besides the sandbox's own processes that show as the kernel has them."""
PROC_SYNTHETIC = frozenset({"cpuinfo", "meminfo", "stat", "loadavg", "cmdline", "swaps", "sys"})
"""Entries replaced by views that tell the quota instead of the machine."""

OWN_COUNTS = (
    ("max_inotify_instances", 32),
    ("max_inotify_watches", 8192),
    ("max_user_namespaces", 0),
)
"""What one sandbox may take of what the kernel counts for a user of the host and all below.

Node and each file watcher need an inotify instance; hosts often allow 128 in all. No namespace at
all is the filter's rule too; this is the second lock. `/proc/sys/user` in namespaces(7).
"""


@dataclass(frozen=True)
class HostFacts:
    """What the plan needs to know of the host; collected by `facts`, nothing secret in it."""

    root_links: Tuple[Tuple[str, str], ...]
    """(name, target) of top-level links such as bin -> usr/bin."""
    root_directories: Tuple[str, ...]
    """Top-level system directories that are real: usr, and bin, lib… where not merged."""
    etc_copied: Tuple[Tuple[str, str], ...]
    """(name below /etc, content) of small files that say nothing about this host."""
    etc_bound: Tuple[str, ...]
    """Names below /etc that are bound read-only: certificates, alternatives, fonts…"""
    proc_files: Tuple[str, ...]
    proc_directories: Tuple[str, ...]
    """Non-process entries of this kernel's /proc that others may read, write or enter."""
    cpu_blocks: Tuple[str, ...]
    """One block of /proc/cpuinfo for each CPU."""
    release: str
    version: str
    last_capability: int
    landlock_abi: int
    core_limit: int = 1
    """RLIMIT_CORE of sandboxes: 1, or 0 where the host allows no more and starts no handler."""
    var_bound: Tuple[str, ...] = ()
    """Names below /var/lib that are bound read-only below /opt/var: what a compiler keeps there
    about itself. Not in place: /var/lib says what a host is for."""
    boot_time: int = 1
    """When the kernel started, in seconds since 1970; /proc/uptime and clocks tell it anyway."""

    def as_json(self) -> Dict[str, Any]:
        """Plain data, for the way to the fork-server."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostFacts:
        """Undo `as_json`; lists become tuples again."""
        return cls(**{key: _frozen(value) for key, value in data.items()})


def _frozen(value: Any) -> Any:  # noqa: ANN401 - JSON
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Root:
    """The template's part of the root: where it lies on the host."""

    template_path: str
    base_mounts: Tuple[str, ...]
    """Host directories that hold the base interpreter, if it is not below /usr."""
    guest_path: str


@dataclass(frozen=True)
class Shape:
    """The limits that are built into a sandbox and cannot change once it is parked."""

    cpus: int
    memory_mb: int
    disk_mb: int
    inodes: int
    processes: int
    file_mb: int
    open_files: int
    pids_held: bool = False
    """A pids cgroup counts processes; RLIMIT_NPROC is the second lock."""
    soft_memory: bool = False
    """No memory cgroup: bound each process by RLIMIT_DATA as well."""
    rootless: bool = False
    """An ordinary user's engine: the supplementary groups cannot be left (user_namespaces(7))."""


def root_plan(facts: HostFacts, root: Root) -> Tuple[s.Step, ...]:
    """Stage A: the root every sandbox of a template shares, read-only."""
    steps: List[s.Step] = []
    steps += [s.Bind(f"/{name}", f"/{name}", _RO) for name in facts.root_directories]
    steps += [s.Symlink(f"/{name}", target) for name, target in facts.root_links]
    steps += [s.Directory(path) for path in _DIRECTORIES]
    steps.append(s.File(_EMPTY_FILE, ""))
    steps.extend(_dev())
    steps.extend(_etc(facts))
    steps += [s.Bind(f"/var/lib/{name}", f"/opt/var/{name}", _RO) for name in facts.var_bound]
    for count in range(1, len(facts.cpu_blocks) + 1):
        steps.extend(_views(facts, count))
    steps.append(s.Bind(root.template_path, TEMPLATE_ROOT, _RO))
    steps += [s.Bind(path, path, _RO) for path in root.base_mounts]
    steps.append(s.Bind(root.guest_path, GUEST_PATH, _RO))
    # For the preload only: a sandbox covers it with its own before it starts.
    steps.append(s.Mount("tmpfs", _WORK, m.MS_NOSUID | m.MS_NODEV, "size=64m,mode=1777"))
    steps.append(s.Mount("proc", "/proc", m.MS_NOSUID | m.MS_NODEV | m.MS_NOEXEC))
    steps.append(s.Remount("/", _RO | m.ATTR_NOEXEC))
    return tuple(steps)


def _dev() -> List[s.Step]:
    steps: List[s.Step] = [s.Device(name, major, minor) for name, major, minor in _DEVICES]
    steps += [
        s.Symlink("/dev/fd", "/proc/self/fd"),
        s.Symlink("/dev/stdin", "/proc/self/fd/0"),
        s.Symlink("/dev/stdout", "/proc/self/fd/1"),
        s.Symlink("/dev/stderr", "/proc/self/fd/2"),
        s.Symlink("/dev/ptmx", "pts/ptmx"),
    ]
    return steps


def _etc(facts: HostFacts) -> List[s.Step]:
    user = f"user:x:{INSIDE_UID}:{INSIDE_UID}::{HOME}:/bin/bash\n"
    made = {
        "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n{user}"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\nuser:x:{INSIDE_UID}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost cellwall\n::1 localhost\n",
        "hostname": "cellwall\n",
        "resolv.conf": "",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "machine-id": "0" * 31 + "1\n",
        "timezone": "Etc/UTC\n",
    }
    steps: List[s.Step] = [s.Directory("/etc")]
    steps += [s.File(f"/etc/{name}", text) for name, text in made.items()]
    steps += [s.File(f"/etc/{name}", text) for name, text in facts.etc_copied]
    steps += [s.Bind(f"/etc/{name}", f"/etc/{name}", _RO) for name in facts.etc_bound]
    steps.append(s.Symlink("/etc/localtime", "/usr/share/zoneinfo/Etc/UTC"))
    steps.append(s.Symlink("/etc/mtab", "/proc/self/mounts"))
    return steps


def _views(facts: HostFacts, count: int) -> List[s.Step]:
    """What a sandbox of `count` CPUs sees of the machine."""
    base = f"{VIEWS}/{count}"
    span = "0\n" if count == 1 else f"0-{count - 1}\n"
    cpus = "".join(block.rstrip("\n") + "\n\n" for block in facts.cpu_blocks[:count])
    lines = "".join(f"cpu{i} 0 0 0 0 0 0 0 0 0 0\n" for i in range(count))
    files = {
        "proc/cpuinfo": cpus,
        "proc/stat": f"cpu  0 0 0 0 0 0 0 0 0 0\n{lines}intr 0\nctxt 0\nbtime {facts.boot_time}\n"
        "processes 1\nprocs_running 1\nprocs_blocked 0\n",
        "proc/loadavg": "0.00 0.00 0.00 1/1 1\n",
        "proc/cmdline": "\n",
        "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
        "proc/sys/kernel/hostname": "cellwall\n",
        "proc/sys/kernel/osrelease": facts.release + "\n",
        "proc/sys/kernel/ostype": "Linux\n",
        "proc/sys/kernel/version": facts.version + "\n",
        "proc/sys/kernel/ngroups_max": "65536\n",
        "proc/sys/kernel/cap_last_cap": f"{facts.last_capability}\n",
        "proc/sys/kernel/pid_max": "32768\n",
        "proc/sys/kernel/threads-max": "32768\n",
        "proc/sys/kernel/overflowuid": "65534\n",
        "proc/sys/kernel/overflowgid": "65534\n",
        "proc/sys/kernel/random/boot_id": "00000000-0000-4000-8000-000000000001\n",
        "proc/sys/kernel/random/entropy_avail": "256\n",
        "proc/sys/vm/overcommit_memory": "0\n",
        "proc/sys/vm/overcommit_ratio": "50\n",
        "proc/sys/vm/max_map_count": "65530\n",
        "proc/sys/vm/mmap_min_addr": "65536\n",
        "proc/sys/fs/pipe-max-size": "1048576\n",
        "proc/sys/fs/nr_open": "1048576\n",
        "proc/sys/fs/file-max": "1048576\n",
        "proc/sys/net/core/somaxconn": "4096\n",
        "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "sys/devices/system/cpu/online": span,
        "sys/devices/system/cpu/possible": span,
        "sys/devices/system/cpu/present": span,
        "sys/devices/system/node/online": "0\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/kernel/mm/transparent_hugepage/hpage_pmd_size": "2097152\n",
    }
    for index in range(count):
        files[f"sys/devices/system/cpu/cpu{index}/topology/core_id"] = f"{index}\n"
        files[f"sys/devices/system/cpu/cpu{index}/topology/physical_package_id"] = "0\n"
    folders = {parent for name in files for parent in _parents(f"{base}/{name}")}
    steps: List[s.Step] = [s.Directory(path) for path in sorted(folders)]
    return steps + [s.File(f"{base}/{name}", content) for name, content in files.items()]


def _parents(path: str) -> List[str]:
    """Every directory above `path` from the views' own on."""
    parts = path[len("/opt/cellwall") :].split("/")[1:-1]
    return ["/opt/cellwall/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def proc_masks(facts: HostFacts) -> Tuple[s.Cover, ...]:
    """Cover everything of /proc that is neither the sandbox's own nor on the kept lists."""
    kept = PROC_KEPT | PROC_SYNTHETIC
    covers = [
        s.Cover(_EMPTY_FILE, f"/proc/{name}", missing_ok=True)
        for name in facts.proc_files
        if name not in kept
    ]
    covers += [
        s.Cover(_EMPTY_DIR, f"/proc/{name}", missing_ok=True)
        for name in facts.proc_directories
        if name not in kept
    ]
    return tuple(covers)


_IN_USE = (
    *("Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Dirty"),
    *("Writeback", "AnonPages", "Mapped", "Shmem", "Slab", "SReclaimable"),
)


def meminfo(memory_mb: int) -> str:
    """What /proc/meminfo says in a sandbox of `memory_mb` MiB; kB as in proc_meminfo(5).

    All is free: a view tells no figures of the moment. The lines are those that programs miss.
    """
    total = memory_mb * 1024
    figures = [(name, total) for name in ("MemTotal", "MemFree", "MemAvailable")]
    figures += [(name, 0) for name in _IN_USE]
    return "".join(f"{name + ':':15s} {kib:8d} kB\n" for name, kib in figures)


def sandbox_plan(facts: HostFacts, shape: Shape) -> s.SandboxPlan:
    """Stage C: what one sandbox adds to the shared root, and what it gives up."""
    view = f"{VIEWS}/{min(shape.cpus, len(facts.cpu_blocks))}"
    flags = m.MS_NOSUID | m.MS_NODEV
    work = f"size={shape.disk_mb}m,nr_inodes={shape.inodes},mode=755"
    work += f",uid={INSIDE_UID},gid={INSIDE_UID}"
    steps: List[s.Step] = [
        s.Mount("proc", "/proc", flags | m.MS_NOEXEC, "hidepid=invisible"),
        *(s.Setting(f"/proc/sys/user/{name}", most) for name, most in OWN_COUNTS),
        *proc_masks(facts),
    ]
    synthetic = sorted(PROC_SYNTHETIC - {"meminfo"})
    steps += [s.Cover(f"{view}/proc/{name}", f"/proc/{name}") for name in synthetic]
    steps += [
        s.Cover(f"{view}/sys", "/sys"),
        s.Mount("tmpfs", _WORK, flags, work),
        s.Directory(f"{_WORK}/home", 0o755),
        s.Directory(f"{_WORK}/tmp", 0o1777),
        s.Directory(f"{_WORK}/shm", 0o1777),
        s.File(f"{_WORK}/meminfo", meminfo(shape.memory_mb)),
        s.Cover(f"{_WORK}/meminfo", "/proc/meminfo"),
        s.Remount("/proc/meminfo", _RO | m.ATTR_NOEXEC),
        s.Cover(f"{_WORK}/home", HOME),
        s.Cover(f"{_WORK}/shm", "/dev/shm"),
        s.Cover(f"{_WORK}/tmp", "/var/tmp"),
        s.Cover(f"{_WORK}/tmp", _WORK),
        s.Mount(
            "devpts",
            "/dev/pts",
            m.MS_NOSUID | m.MS_NOEXEC,
            "newinstance,ptmxmode=0666,mode=0620,max=64",
        ),
    ]
    return s.SandboxPlan(tuple(steps), _lockdown(facts, shape))


def process_rlimit(processes: int, *, is_counted: bool) -> int:
    """RLIMIT_NPROC of a sandbox of `processes`, init and its context in it.

    Where a pids cgroup counts, this is a second lock and leaves room: forks on their way count
    here before they count there, and the cgroup must be what is reached first, because only it
    leaves evidence.
    """
    return 2 * processes + 64 if is_counted else processes + 2


def _lockdown(facts: HostFacts, shape: Shape) -> s.Lockdown:
    mib = 1024 * 1024
    files = shape.file_mb * mib
    rlimits: List[Tuple[int, int, int]] = [
        # 1 and not 0: no file is that small, and it is the one value at which the kernel does not
        # start the host's core handler (a `|` in core_pattern ignores every other). core(5)
        (resource.RLIMIT_CORE, facts.core_limit, facts.core_limit),
        (resource.RLIMIT_FSIZE, files, files),
        (resource.RLIMIT_NOFILE, shape.open_files, shape.open_files),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_RTPRIO, 0, 0),
        (resource.RLIMIT_SIGPENDING, 1024, 1024),
    ]
    most = process_rlimit(shape.processes, is_counted=shape.pids_held)
    rlimits.append((resource.RLIMIT_NPROC, most, most))
    if shape.soft_memory:
        # A brake for what grows faster than the watchdog looks. Twice the limit: it counts
        # what is mapped, and thread stacks and arenas are mapped long before they are used.
        data = 2 * shape.memory_mb * mib
        rlimits.append((resource.RLIMIT_DATA, data, data))
    readable = ["/usr", "/opt", "/etc", "/proc", "/sys", "/dev"]
    readable += [f"/{name}" for name in facts.root_directories if name != "usr"]
    return s.Lockdown(
        uid=INSIDE_UID,
        gid=INSIDE_UID,
        rlimits=tuple(rlimits),
        landlock_abi=facts.landlock_abi,
        read_exec=tuple(readable),
        # Not /proc: there a program could make the kernel spare it when memory runs out.
        write=(HOME, _WORK, "/var/tmp", "/dev/shm", "/dev/pts"),
        refusals=UNCOUNTED if shape.soft_memory else "",
        devices=("/dev",),
        # `ls /` works; what is in the root besides the trees above are empty directories.
        listing=("/",),
        clear_groups=not shape.rootless,
    )


def digest(steps: Sequence[s.Step]) -> str:
    """SHA-256 over a plan's data, for the audit and for `explain`."""
    text = json.dumps([s.as_json(step) for step in steps], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
