"""Decides what a jail consists of: pure functions from facts and limits to lists of steps.

No system call happens here, so every rule can be tested without privileges and printed by `cellwall
jail explain`. `executor` executes the result. Runs on the host and in the fork-server, so: standard
library only. The invariant: deny by default. What is not named here is not in the jail.
"""

from __future__ import annotations

import json
import resource
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from cellwall.jail.plan import steps as s
from cellwall.jail.plan import views
from cellwall.linux.syscalls import mounts as m

UNCOUNTED = "no_memory_cgroup.policy"
"""Name of the policy file with system calls that are refused where no cgroup counts memory, because
they take memory that nothing else counts."""
DEBUG = "debug.policy"
"""Name of the policy file with what tracers need besides."""
ROOT_INSIDE = "root_inside.policy"
"""Name of the policy file with what root inside an image may do besides."""
INSIDE_UID = 1000
HOME = "/home/user"
TEMPLATE_ROOT = "/opt/env"
GUEST_PATH = "/opt/cellwall/guest.pyz"
VIEWS = views.FOLDER
_WORK = "/tmp"
OWN = "/opt/cellwall"
"""Path of a small tmpfs of a template, with files and directories that the engine made."""
VAR = "/opt/var"
INTERPRETER = "/opt/interpreter"
"""Path of an interpreter for images in their fork-server's root."""
OWN_PYTHON = f"{OWN}/python"
"""Path of that interpreter in a sandbox."""
CHANGES = f"{OWN}/changes"
"""Path at which a sandbox that becomes an image shows what differs from the image below it."""
_EMPTY_FILE = f"{OWN}/empty/file"
_EMPTY_DIR = f"{OWN}/empty/dir"
NONE = "/none"
"""Path of an empty directory that is on no tree of which an overlay is made."""
FIRST_MOUNT_FD = 4
"""Descriptor of the first mount that comes with a request, in a new sandbox: a worker receives
mounts behind the channel."""
BOOT_ID_FD = 62
"""Descriptor at which the file with its boot id stays open in a new sandbox."""
ROOT = f"{_WORK}/root"
"""Path of the directory that becomes a sandbox's root; inside, it is the only part of the work area
that can be reached."""

_RO = m.ATTR_RDONLY | m.ATTR_NOSUID | m.ATTR_NODEV
_DIRECTORIES = (
    *("/proc", "/sys", "/dev", "/dev/shm", "/dev/pts", "/dev/mqueue", "/home", HOME, _WORK, NONE),
    *("/opt", OWN, "/run", "/var", "/var/tmp", "/root", "/etc", VAR),
)
_OWN_DIRECTORIES = (f"{OWN}/empty", _EMPTY_DIR, CHANGES, f"{OWN}/etc", f"{OWN}/var")
_SANDBOX_DIRECTORIES = (
    *("/dev", "/etc", "/home", "/opt", OWN, TEMPLATE_ROOT, "/proc", "/root", "/run", "/sys"),
    *("/var",),
)
OWN_INODES = 64
"""Number of directories and links in a sandbox's own root, beside those its user may make."""
_DEVICES = (
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
)
PROC_KEPT = frozenset({"self", "thread-self", "mounts", "net", "filesystems", "uptime", "version"})
"""Entries of /proc, besides the sandbox's own processes, that are shown as the kernel has them."""
PROC_SYNTHETIC = frozenset({"cpuinfo", "meminfo", "stat", "loadavg", "cmdline", "swaps", "sys"})
"""Entries of /proc replaced by views that show the quota instead of the machine."""

OWN_COUNTS = (
    ("max_inotify_instances", 32),
    ("max_inotify_watches", 8192),
    ("max_user_namespaces", 0),
)
"""Limits of one sandbox for what the kernel counts for a user of the host and all namespaces below.

Node and each file watcher need an inotify instance; hosts often allow 128 in all. The filter
forbids namespaces, too; this is the second lock. `/proc/sys/user` in namespaces(7).
"""


class HostFacts(NamedTuple):
    """What the plan needs to know of the host; collected by `host_facts`, nothing secret in it."""

    root_links: Tuple[Tuple[str, str], ...]
    """(name, target) of top-level links such as bin -> usr/bin."""
    root_directories: Tuple[str, ...]
    """Names of top-level system directories that are real: usr, and bin, lib… where not merged."""
    etc_copied: Tuple[Tuple[str, str], ...]
    """(name below /etc, content) of small files that say nothing about this host."""
    etc_bound: Tuple[str, ...]
    """Names below /etc that are bound read-only: certificates, alternatives, fonts…"""
    proc_files: Tuple[str, ...]
    proc_directories: Tuple[str, ...]
    """Non-process entries of this kernel's /proc that users other than root may read, write or
    enter."""
    cpu_blocks: Tuple[str, ...]
    """One block of /proc/cpuinfo for each CPU."""
    release: str
    version: str
    last_capability: int
    landlock_abi: int
    core_limit: int = 1
    """RLIMIT_CORE of sandboxes: 1, or 0 where the host allows no more and starts no handler."""
    var_bound: Tuple[str, ...] = ()
    """Names below /var/lib that are bound read-only below /opt/var: a compiler's data about itself.
    They are not bound in place, because the contents of /var/lib show what a host is for."""
    layers: int = 0
    """Number of overlays that this host allows one over the other (`layers`). Two: each sandbox may
    see shared trees through one of its own. One: all sandboxes of a template share it. None: the
    trees are bound as they are."""
    channels: Tuple[str, ...] = ()
    """Paths of sockets and FIFOs in trees that are bound as they are; they are covered."""
    nested: Tuple[str, ...] = ()
    """Mount points below the top-level directories, parents first."""
    proc_closed: Tuple[str, ...] = ()
    """Files of /proc that only the host's root may open. A jail does not cover them: no id of a
    sandbox stands for that root, and each cover costs a start ten microseconds."""
    boot_time: int = 1
    """Time when the kernel started, in seconds since 1970; /proc/uptime and clocks show it anyway.
    """

    def as_json(self) -> Dict[str, Any]:
        """Return plain data, to be sent to the fork-server."""
        return self._asdict()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostFacts:
        """Undo `as_json`; lists become tuples again."""
        return cls(**{key: _frozen(value) for key, value in data.items()})


def _frozen(value: Any) -> Any:  # noqa: ANN401 - JSON
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


class Root(NamedTuple):
    """The template's part of the root: where it lies on the host."""

    template_path: str
    base_mounts: Tuple[str, ...]
    """Host directories that hold the base interpreter, if it is not below /usr."""
    guest_path: str
    interpreter: str = ""
    """Directory of an interpreter for images without one, shown at `INTERPRETER`; none if empty."""


class Shape(NamedTuple):
    """The limits that are built into a sandbox and cannot change once it is parked."""

    cpus: int
    memory_mb: int
    disk_mb: int
    inodes: int
    processes: int
    file_mb: int
    open_files: int
    pids_held: bool = False
    """Whether a pids cgroup counts processes; RLIMIT_NPROC is then the second lock."""
    soft_memory: bool = False
    """Whether there is no memory cgroup, so that RLIMIT_DATA bounds each process as well."""
    rootless: bool = False
    """Whether the engine's user is not root; then supplementary groups cannot be left
    (user_namespaces(7))."""
    has_root: bool = False
    """Whether a second id is mapped as root's, which no process has and which owns the system's
    files."""
    base_mounts: Tuple[str, ...] = ()
    """As in `Root`: the template's, shown in each of its sandboxes."""
    image: Tuple[int, ...] = ()
    """User and group id of the sandbox's processes if its root is an image's; else none."""
    own_python: bool = False
    """Whether an image's sandbox is shown the interpreter that is not the image's."""
    shows_changes: bool = False
    """Whether an image's sandbox shows, at `CHANGES`, what differs from the image."""
    debug: bool = False
    """Whether it may trace its own processes; `linux/debug.policy`."""
    volumes: Tuple[Tuple[str, bool], ...] = ()
    """Path of each volume inside, and whether it is read-only; their mounts come with the request,
    behind that of an image."""
    own_layers: bool = False
    """Whether shared trees are shown through overlays of its own, if the host allows two. They cost
    a third of a millisecond, which is nothing to a session and a fifteenth of a program's whole
    run."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """Make a shape from `_asdict`, sent as JSON; lists become tuples again."""
        return cls(**{key: _frozen(value) for key, value in data.items()})


def root_plan(facts: HostFacts, root: Root) -> Tuple[s.Step, ...]:
    """Return stage A: the root that every sandbox of a template shares, read-only."""
    flags = m.MS_NOSUID | m.MS_NODEV
    steps: List[s.Step] = [s.Directory(path) for path in _DIRECTORIES]
    steps += [_tree(facts, f"/{name}", f"/{name}") for name in facts.root_directories]
    steps += [_tree(facts, path, path) for path in facts.nested]
    steps += [s.Symlink(f"/{name}", target) for name, target in facts.root_links]
    # A mount without mounts below it, so that an overlay can be made of it.
    steps.append(s.Mount("tmpfs", OWN, flags, "size=16m,mode=755"))
    steps += [s.Directory(path) for path in _OWN_DIRECTORIES]
    if root.interpreter:
        steps += [s.Directory(OWN_PYTHON), s.Directory(INTERPRETER)]
        steps.append(s.Bind(root.interpreter, INTERPRETER, _RO))
    steps += [s.Cover(f"{OWN}/etc", "/etc"), s.Cover(f"{OWN}/var", VAR), s.File(_EMPTY_FILE, "")]
    steps.extend(_dev())
    steps.extend(_etc(facts))
    steps += [s.Copy(f"/var/lib/{name}", f"{VAR}/{name}") for name in facts.var_bound]
    for count in range(1, len(facts.cpu_blocks) + 1):
        steps.extend(views.of_cpus(facts, count))
    steps.append(_tree(facts, root.template_path, TEMPLATE_ROOT))
    steps += [_tree(facts, path, path) for path in root.base_mounts]
    steps.append(s.Copy(root.guest_path, GUEST_PATH))
    # For the preload only: each sandbox has one of its own.
    steps.append(s.Mount("tmpfs", _WORK, flags, "size=64m,mode=1777"))
    steps.append(s.Mount("proc", "/proc", flags | m.MS_NOEXEC))
    steps += [s.Remount(path, _RO | m.ATTR_NOEXEC) for path in (OWN, "/etc", VAR)]
    # One that its program removed since has nothing left to cover.
    steps += [s.Cover(_EMPTY_FILE, path, missing_ok=True) for path in facts.channels]
    steps.append(s.Remount("/", _RO | m.ATTR_NOEXEC))
    return tuple(steps)


def _tree(facts: HostFacts, source: str, path: str) -> s.Step:
    """Show a tree of the host: through an overlay wherever the host allows one."""
    return s.Layer(source, path, NONE) if facts.layers else s.Bind(source, path, _RO)


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
    steps: List[s.Step] = [s.File(f"/etc/{name}", text) for name, text in made.items()]
    steps += [s.File(f"/etc/{name}", text) for name, text in facts.etc_copied]
    steps += [s.Copy(f"/etc/{name}", f"/etc/{name}") for name in facts.etc_bound]
    steps.append(s.Symlink("/etc/localtime", "/usr/share/zoneinfo/Etc/UTC"))
    steps.append(s.Symlink("/etc/mtab", "/proc/self/mounts"))
    return steps


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


def sandbox_plan(facts: HostFacts, shape: Shape) -> s.SandboxPlan:
    """Return stage C: a root of the sandbox's own, made of the shared one, and its lockdown."""
    steps = (*_own_root(facts, shape), s.Enter(ROOT), *kernel_views(facts, shape))
    return s.SandboxPlan(steps, lockdown_of(facts, shape))


def kernel_views(facts: HostFacts, shape: Shape) -> Tuple[s.Step, ...]:
    """Return the steps in a sandbox's new root: what it sees of the kernel, and terminals."""
    view = _view(facts, shape)
    synthetic = sorted(PROC_SYNTHETIC - {"meminfo", "sys"})
    return (
        *proc_masks(facts),
        *(s.Cover(f"{view}/proc/{name}", f"/proc/{name}") for name in synthetic),
        s.Cover(f"{view}/sys", "/sys"),
        # Not only by Landlock: otherwise a program could make the kernel spare it when memory runs
        # out.
        s.Remount("/proc", _RO | m.ATTR_NOEXEC),
        s.Mount(
            "devpts",
            "/dev/pts",
            m.MS_NOSUID | m.MS_NOEXEC,
            "newinstance,ptmxmode=0666,mode=0620,max=64",
        ),
    )


def _view(facts: HostFacts, shape: Shape) -> str:
    return f"{VIEWS}/{min(shape.cpus, len(facts.cpu_blocks))}"


def own_files_of_proc(facts: HostFacts, shape: Shape) -> Tuple[s.Step, ...]:
    """Return the steps that show a sandbox what no other one shows: its quota and its boot id.

    They are made before its root is entered, because the files lie where it cannot reach them.
    """
    proc, read_only = f"{ROOT}/proc", _RO | m.ATTR_NOEXEC
    boot_id = f"{proc}/sys/kernel/random/boot_id"
    return (
        s.File(f"{_WORK}/meminfo", views.meminfo(shape.memory_mb)),
        s.Cover(f"{_WORK}/meminfo", f"{proc}/meminfo"),
        s.Remount(f"{proc}/meminfo", read_only),
        *(s.Setting(f"{proc}/sys/user/{name}", most) for name, most in OWN_COUNTS),
        s.Cover(f"{ROOT}{_view(facts, shape)}/proc/sys", f"{proc}/sys"),
        s.BootId(f"{_WORK}/boot_id", BOOT_ID_FD),
        s.Cover(f"{_WORK}/boot_id", boot_id),
        s.Remount(boot_id, read_only),
    )


def _own_root(facts: HostFacts, shape: Shape) -> List[s.Step]:
    """Make the work area, and in it a root with the template's trees; the user may add to it."""
    flags = m.MS_NOSUID | m.MS_NODEV
    work = f"size={shape.disk_mb}m,nr_inodes={shape.inodes + OWN_INODES},mode=755"
    work += f",uid={INSIDE_UID},gid={INSIDE_UID}"
    trees = [f"/{name}" for name in facts.root_directories] + [TEMPLATE_ROOT, *shape.base_mounts]
    return [
        s.Mount("tmpfs", _WORK, flags, work),
        *_own_directories(facts, shape, trees),
        s.Cover(ROOT, ROOT),
        # First of what uses descriptors: these free those that the next steps use.
        *(s.Attach(ROOT + path, FIRST_MOUNT_FD + n) for n, (path, _) in enumerate(shape.volumes)),
        s.Directory(f"{_WORK}/shm", 0o1777),
        *(_own_tree(facts, shape, path) for path in (*trees, OWN)),
        s.Cover(f"{ROOT}{OWN}/etc", f"{ROOT}/etc"),
        s.Cover("/dev", f"{ROOT}/dev", is_whole=True),
        s.Cover(f"{_WORK}/shm", f"{ROOT}/dev/shm"),
        s.Mount("proc", f"{ROOT}/proc", flags | m.MS_NOEXEC, "hidepid=invisible"),
        *own_files_of_proc(facts, shape),
    ]


def _own_directories(facts: HostFacts, shape: Shape, trees: Sequence[str]) -> List[s.Step]:
    """Make the root's directories and links, as root if root is mapped.

    A user cannot rename or remove what belongs to root in `/`.
    """
    wanted = dict.fromkeys(_SANDBOX_DIRECTORIES)
    for path in trees:
        wanted.update(dict.fromkeys(above(path)))
    found: List[s.Step] = [s.Directory(ROOT, 0o1777 if shape.has_root else 0o755)]
    found += [s.Directory(ROOT + path) for path in wanted]
    found += [s.Directory(f"{ROOT}{path}", 0o1777) for path in (_WORK, "/var/tmp")]
    found.append(s.Directory(ROOT + HOME, owner=INSIDE_UID))
    found += _mount_points(shape, set(wanted))
    links = (*facts.root_links, (VAR[1:], f"{OWN}/var"))
    found += [s.Symlink(f"{ROOT}/{name}", target) for name, target in links]
    if shape.has_root:
        found = [s.FilesAs(0, INSIDE_UID), *found, s.FilesAs(INSIDE_UID, 0)]
    return found


def _mount_points(shape: Shape, made: Set[str]) -> List[s.Step]:
    """Make the directories that volumes are mounted over; those in the home are the user's."""
    paths = dict.fromkeys(path for volume, _ in shape.volumes for path in above(volume))
    return [
        s.Directory(ROOT + path, owner=INSIDE_UID if path.startswith(HOME + "/") else -1)
        for path in paths
        if path not in {*made, _WORK, "/var/tmp", HOME}
    ]


def above(path: str) -> List[str]:
    """Return a path and its parents, the highest first."""
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def _own_tree(facts: HostFacts, shape: Shape, path: str) -> s.Step:
    """Show a tree of the template; an overlay of its own spares neighbours a shared lock."""
    if facts.layers < 2 or not shape.own_layers:
        return s.Cover(path, ROOT + path, is_whole=True)
    flags = _RO | (m.ATTR_NOEXEC if path == OWN else 0)
    return s.Mount("overlay", ROOT + path, flags, m.layers(path, NONE))


def process_rlimit(processes: int, *, is_counted: bool) -> int:
    """RLIMIT_NPROC of a sandbox of `processes`, including init and its context.

    Where a pids cgroup counts, this is a second lock and leaves room: forks under way count here
    before they count there, and the cgroup's limit must be reached first, because only it leaves
    evidence.
    """
    return 2 * processes + 64 if is_counted else processes + 2


def lockdown_of(facts: HostFacts, shape: Shape) -> s.Lockdown:
    """Return the rights that every process of a sandbox on a template is left with."""
    mib = 1024 * 1024
    files = shape.file_mb * mib
    rlimits: List[Tuple[int, int, int]] = [
        # 1 and not 0: no file is that small, and 1 is the only value at which the kernel does not
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
        # A brake for programs that grow faster than the watchdog looks. Twice the limit: it counts
        # mapped memory, and thread stacks and arenas are mapped long before they are used.
        data = 2 * shape.memory_mb * mib
        rlimits.append((resource.RLIMIT_DATA, data, data))
    return s.Lockdown(
        uid=INSIDE_UID,
        gid=INSIDE_UID,
        rlimits=tuple(rlimits),
        landlock_abi=facts.landlock_abi,
        # All directories, also new ones of a program. What a program may not change is on read-only
        # mounts or belongs to root; what lies outside of its root it cannot even read.
        write=("/",),
        refusals=UNCOUNTED if shape.soft_memory else "",
        allows_more=policies(shape),
        devices=("/dev",),
        clear_groups=not shape.rootless,
    )


def policies(shape: Shape) -> Tuple[str, ...]:
    """Return the names of the policy texts that allow a sandbox more than seccomp.policy does."""
    wanted = ((ROOT_INSIDE, shape.image[:1] == (0,)), (DEBUG, shape.debug))
    return tuple(name for name, is_wanted in wanted if is_wanted)


def digest(steps: Sequence[s.Step]) -> str:
    """SHA-256 over a plan's data, for the audit and for `explain`."""
    text = json.dumps([s.as_json(step) for step in steps], sort_keys=True)
    import hashlib  # the host asks for it, and loads OpenSSL

    return hashlib.sha256(text.encode()).hexdigest()
