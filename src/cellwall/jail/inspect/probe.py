"""Finds out, by trying, whether a jail can be built on this host; `doctor` prints the answers.

Runs in the engine process. Every trial runs in a throw-away child process, so that nothing of it
outlives the call. A FAIL means that the jail runtime refuses to start; a CAUTION that something is
weaker, and what.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cellwall.jail.inspect import host_facts, overlay_depth, probe_counts, shared_counts
from cellwall.jail.inspect.probe_counts import Found
from cellwall.linux import uid_ranges
from cellwall.linux.cgroups import hierarchies
from cellwall.linux.syscalls import landlock, mounts, process
from cellwall.linux.trial import trial
from cellwall.model.errors import HostUnsupported


def run(*, for_faults: bool = False) -> list[Found]:
    """Run every check, some tens of milliseconds; `for_faults` only those that may find a FAIL."""
    checks: tuple[Callable[[], list[Found]], ...] = (
        _machine,
        _kernel,
        _user_namespaces,
        _proc_mount,
        _seccomp,
        _landlock,
        _cgroups,
        _ids,
        _layers,
        _host_settings,
        _core_limit,
        _core_pattern,
        _memory_layouts,
        _counts,
        _interpreters,
    )
    left_out = NEVER_FAULTS if for_faults else frozenset()
    return [found for check in checks if check not in left_out for found in check()]


def _machine() -> list[Found]:
    machine = os.uname().machine
    known = machine in {"x86_64", "aarch64"}
    return [
        Found(
            "processor",
            "PASS" if known else "FAIL",
            machine,
            "" if known else "use an x86_64 or aarch64 machine, or another runtime",
        )
    ]


def _kernel() -> list[Found]:
    release = os.uname().release
    major, minor = (int(word.split("-")[0]) for word in release.split(".")[:2])
    good = (major, minor) >= (5, 13)
    return [
        Found(
            "kernel",
            "PASS" if good else "FAIL",
            release,
            "" if good else "use Linux 5.13 or newer (clone3, mount_setattr, Landlock)",
        )
    ]


_NESTED = 3
"""Number of user namespaces below one another: boot's own (rootless), the fork-server's, the
sandbox's."""


def _enter(others: int = 0) -> None:
    uid, gid = os.geteuid(), os.getegid()
    process.unshare(process.CLONE_NEWUSER | others)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _nest() -> None:
    _enter(process.CLONE_NEWNS | process.CLONE_NEWPID | process.CLONE_NEWUTS)
    process.set_hostname("cellwall")
    for _ in range(_NESTED - 1):
        _enter()
    pid = process.Cloner(process.CLONE_NEWIPC, exit_signal=signal.SIGCHLD).clone()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _user_namespaces() -> list[Found]:
    problem = trial(_nest)
    remedy = (
        "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=65536; on Ubuntu "
        "24.04 also: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; inside a container: "
        "the rights of deploy/compose.yaml, above all its seccomp profile; as a service: "
        "deploy/cellwall.service, without RestrictNamespaces and ProtectHostname; "
        "a chroot cannot have them"
    )
    if problem:
        return [Found("user namespaces", "FAIL", problem, remedy)]
    return [Found("user namespaces", "PASS", f"can be made, {_NESTED} below one another")]


def _mount_proc() -> None:
    _enter(process.CLONE_NEWNS | process.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        number = 1
        try:
            flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
            mounts.mount("proc", "/proc", "proc", flags, "hidepid=invisible")
            number = 0
        except OSError as error:
            number = error.errno or 1
        finally:
            os._exit(number)
    _, status = os.waitpid(pid, 0)
    if status:
        number = os.waitstatus_to_exitcode(status)
        raise OSError(number, f"mount proc in a new namespace: {os.strerror(number)}")


def _proc_mount() -> list[Found]:
    problem = trial(_mount_proc)
    remedy = (
        "inside a container: --security-opt systempaths=unconfined, so that nothing covers /proc; "
        "as a service: no ProtectKernelTunables, ProtectKernelLogs or ProcSubset"
    )
    if problem:
        return [Found("private /proc", "FAIL", problem, remedy)]
    return [Found("private /proc", "PASS", "can be mounted in a namespace of its own")]


def _seccomp() -> list[Found]:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not actions.exists():
        remedy = "use a kernel with CONFIG_SECCOMP_FILTER"
        return [Found("seccomp", "FAIL", "not in this kernel", remedy)]
    words = actions.read_text(encoding="ascii").split()
    good = {"kill_process", "errno", "allow"} <= set(words)
    return [
        Found(
            "seccomp",
            "PASS" if good else "FAIL",
            " ".join(words),
            "" if good else "use Linux 4.14 or newer",
        )
    ]


def _landlock() -> list[Found]:
    abi = landlock.abi()
    if abi:
        return [Found("Landlock", "PASS", f"ABI {abi}")]
    return [
        Found(
            "Landlock",
            "CAUTION",
            "not active: the second lock on files is missing, the mounts still hold",
            "boot with lsm=landlock,… (add landlock to the kernel's lsm= list)",
        )
    ]


def _cgroups() -> list[Found]:
    layout = hierarchies.discover()
    missing = sorted({"memory", "pids", "cpu"} - layout.hard)
    versions = sorted({f"v{h.version}" for h in layout.hierarchies})
    if not missing:
        return [Found("cgroups", "PASS", f"memory, pids, cpu on {' and '.join(versions)}")]
    return [
        Found(
            "cgroups",
            "CAUTION",
            f"no {', '.join(missing)} controller for us ({layout.why_not or 'none delegated'}): "
            "memory and CPU are watched from outside and held softly",
            "run as root, under `systemd-run --user --scope -p Delegate=yes cellwall …`, as "
            "deploy/cellwall.service, or in a container with deploy/compose.hard.yaml",
        )
    ]


def _ids() -> list[Found]:
    ids = uid_ranges.find()
    name = "user ids"
    if not ids.are_shared:
        return [Found(name, "PASS", f"one of its own for each sandbox: {ids.detail}")]
    return [
        Found(
            name,
            "CAUTION",
            f"{ids.detail}: sandboxes share this user's id, and what the kernel counts for a user: "
            "descriptors on their way between processes, epoll watches, pages of pipes",
            ids.remedy,
        ),
        *shared_counts.judge(),
    ]


_SETTINGS = (
    ("dev/tty/legacy_tiocsti", "0", "terminals take injected input; the jail's filter stops it"),
    ("kernel/io_uring_disabled", "2", "io_uring is on; the jail's filter stops it"),
)


_SHARED = "locks on files of /usr or of a template reach neighbours of the same template"
_BOUND = (
    "sockets that the host's services open below /usr later can be reached from inside, "
    "and locks on its files reach the host"
)


def _layers() -> list[Found]:
    """Judge how far the trees that sandboxes share can be shown through overlays."""
    found = overlay_depth.ask(("/usr",))
    if found.depth == overlay_depth.MOST:
        return [
            Found(
                "shared trees",
                "PASS",
                "through an overlay of each template's, and of each session's own",
            )
        ]
    if found.depth:
        return [Found("shared trees", "CAUTION", f"{_SHARED} ({found.problem})", _LAYERS_REMEDY)]
    return [Found("shared trees", "CAUTION", f"{_BOUND} ({found.problem})", _LAYERS_REMEDY)]


_LAYERS_REMEDY = (
    "have the kernel's overlay module (modprobe overlay), and neither /usr nor the state directory "
    "on an overlay or with other file systems mounted below /usr"
)


def _host_settings() -> list[Found]:
    found = []
    for name, wanted, meaning in _SETTINGS:
        path = Path("/proc/sys", name)
        if not path.exists():
            continue
        value = path.read_text(encoding="ascii").strip()
        dotted = name.replace("/", ".")
        if value == wanted:
            found.append(Found(dotted, "PASS", value))
        else:
            remedy = f"sysctl -w {dotted}={wanted}"
            found.append(Found(dotted, "CAUTION", f"{value}: {meaning}", remedy))
    swaps = Path("/proc/swaps").read_text(encoding="utf-8").splitlines()[1:]
    found.append(
        Found(
            "swap",
            "CAUTION",
            "on; sandboxes may not use it where memory.swap or memsw exists",
            "swapoff -a, or boot with swapaccount=1",
        )
        if swaps
        else Found("swap", "PASS", "off")
    )
    return found


def _core_limit() -> list[Found]:
    try:
        limit = host_facts.core_limit()
    except HostUnsupported as error:
        return [Found("core limit", "FAIL", error.message, error.remedy or "")]
    return [Found("core limit", "PASS", f"sandboxes have RLIMIT_CORE {limit}")]


def _core_pattern() -> list[Found]:
    path = Path("/proc/sys/kernel/core_pattern")  # hidden where /proc is masked
    return [core_pattern(path.read_text(encoding="utf-8"))] if path.exists() else []


def core_pattern(text: str) -> Found:
    """Judge what the host does with a crash. core(5), "Socket coredumps" since Linux 6.16.

    A file is too large for RLIMIT_CORE 1, and a pipe is not started at 1; a socket ignores the
    limit.
    """
    name, pattern = "kernel.core_pattern", text.strip()
    if not pattern.startswith("@"):
        return Found(name, "PASS", pattern)
    return Found(
        name,
        "CAUTION",
        f"{pattern}: a server of the host's is handed every crash, a sandbox's too",
        "sysctl -w kernel.core_pattern=core, or a pipe (|/path)",
    )


def _memory_layouts() -> list[Found]:
    problem = layout_choice_problem()
    if not problem:
        return [Found("memory layouts", "PASS", "snapshots can outlive the engine")]
    return [
        Found(
            "memory layouts",
            "CAUTION",
            f"{problem}: snapshots end with the engine",
            "allow personality(2) with ADDR_NO_RANDOMIZE: LockPersonality=no in a unit, or in the "
            "container's seccomp profile",
        )
    ]


def layout_choice_problem() -> str:
    """Return why a fork-server could not be laid out as others of its template; "" if it could.

    A snapshot is restored into the fork-server of another engine only if both have the same
    layout (design/0042).
    """
    return trial(partial(process.choose_layouts, at_random=False))


def _counts() -> list[Found]:
    return probe_counts.judge(probe_counts.Counts.of_this_process())


def _interpreters() -> list[Found]:
    node = Path("/usr/bin/node").exists()
    if node:
        return [Found("JavaScript", "PASS", "/usr/bin/node")]
    return [Found("JavaScript", "CAUTION", "no Node below /usr", "apt-get install nodejs")]


NEVER_FAULTS: frozenset[Callable[[], list[Found]]] = frozenset(
    {
        _landlock,
        _cgroups,
        _ids,
        _layers,
        _host_settings,
        _core_pattern,
        _memory_layouts,
        _interpreters,
    }
)
"""Checks that never find a FAIL."""
