"""Puts up the walls of a systemd unit by hand and starts a program behind them. Run as root.

Not systemd: where there is no pid 1 to ask, each directive is carried out with the calls that
systemd.exec(5) says it stands for. Started by `test_service` as `walls.py DOCUMENT`, a JSON object
of `directives`, `ids`, `readable` and `writable` folders, and `argv`. The invariant: a directive
without a function here, and not among those without effect on a process, is an error, so a line
cannot join the unit untested.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cellwall.linux import seccomp
from cellwall.linux.syscalls import mounts, process

OUTSIDE = {
    *(
        "Type",
        "ExecStart",
        "ExecReload",
        "Environment",
        "User",
        "Group",
        "StateDirectory",
        "StateDirectoryMode",
    ),
    *("LogsDirectory", "LogsDirectoryMode"),
    *("KillMode", "TimeoutStopSec", "Restart", "RestartSec", "OOMPolicy", "OOMScoreAdjust"),
    *("Delegate", "TasksMax", "KeyringMode", "RemoveIPC", "LimitNOFILE"),
}
"""Of the service manager's own business, or a bound that this test cannot reach."""
_BIND, _REC = mounts.MS_BIND, mounts.MS_REC
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_WRITABLE: list[str] = ["/tmp", "/var/tmp"]
"""Mount points that ProtectSystem leaves alone; the unit's own are added."""
_LAST_CAPABILITY = process.last_capability()  # while /proc/sys can be read
_AF = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
_CLONE = "0x7E020000"


def _bind(source: str, target: str) -> None:
    mounts.mount(source, target, None, _BIND | _REC, None)


def _read_only(target: str) -> None:
    mounts.mount_setattr(target, 0x1, recursive=True)  # MOUNT_ATTR_RDONLY


def _inaccessible(path: str) -> None:
    """systemd covers it with a node of mode 000."""
    if os.path.isdir(path):
        mounts.mount("tmpfs", path, "tmpfs", 0, "mode=000,size=4k")
    elif os.path.exists(path):
        _bind("/dev/null", path)


def protect_system(_: str) -> None:
    """All read-only but the API file systems and what the unit may write."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point = line.split()[4]
        is_reached = point == "/" or os.path.ismount(point)  # or something covers the way to it
        if is_reached and not point.startswith(("/proc", "/sys", "/dev", *_WRITABLE)):
            flags = mounts.MS_REMOUNT | _BIND | mounts.MS_RDONLY
            mounts.mount("none", point, None, flags, None)


def protect_home(_: str) -> None:
    for path in ("/home", "/root", "/run/user"):
        _inaccessible(path)


def private_tmp(_: str) -> None:
    for path in ("/tmp", "/var/tmp"):
        mounts.mount("tmpfs", path, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=1777")


def private_devices(_: str) -> None:
    staging = Path("/mnt")  # of a namespace of our own
    mounts.mount("tmpfs", str(staging), "tmpfs", mounts.MS_NOSUID, "mode=755")
    for name in _DEVICES:
        (staging / name).touch()
        _bind(f"/dev/{name}", str(staging / name))
    (staging / "pts").mkdir()
    (staging / "shm").mkdir()
    _bind("/dev/pts", str(staging / "pts"))
    _bind("/dev/shm", str(staging / "shm"))
    (staging / "ptmx").symlink_to("pts/ptmx")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (staging / name).symlink_to(f"/proc/self/{target}")
    _bind(str(staging), "/dev")


def protect_modules(_: str) -> None:
    _inaccessible("/usr/lib/modules")


def protect_proc(value: str) -> None:
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount("proc", "/proc", "proc", flags, f"hidepid={value}")


def proc_subset(value: str) -> None:
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount("proc", "/proc", "proc", flags, f"subset={value}")


def protect_tunables(_: str) -> None:
    for path in ("/proc/sys", "/sys", "/proc/fs"):
        if os.path.isdir(path):
            _bind(path, path)
            _read_only(path)


def protect_logs(_: str) -> None:
    _inaccessible("/proc/kmsg")


def protect_groups(_: str) -> None:
    _bind("/sys/fs/cgroup", "/sys/fs/cgroup")
    _read_only("/sys/fs/cgroup")


def limit_core(value: str) -> None:
    soft, _, hard = value.partition(":")
    resource.setrlimit(resource.RLIMIT_CORE, (int(soft), int(hard or soft)))


def umask(value: str) -> None:
    os.umask(int(value, 8))


def bounding(_: str) -> None:
    for call in process.prepare_drop_bounding(_LAST_CAPABILITY):
        process.do(call)


def ambient(_: str) -> None:
    process.do(process.prepare_clear_ambient())


def no_new_privileges(_: str) -> None:
    process.do(process.prepare_no_new_privs())


def _filter(*lines: str) -> None:
    """Install a filter that has an opinion on the calls of `lines` and allows everything else."""
    named = {word for line in lines for word in line.split()}
    names = seccomp.syscall_numbers(os.uname().machine)
    rest = " ".join(name for name in names if name not in named)
    text = "\n".join([*lines, f"allow {rest}" if rest else ""])
    seccomp.install(seccomp.compile_policy(text, os.uname().machine))


def system_calls(value: str) -> None:
    """Both lists of SystemCallFilter, with the answer of SystemCallErrorNumber for the rest."""
    allowed: set[str] = set()
    for line in value.splitlines():
        names = _resolved(line.removeprefix("~").split())
        allowed = allowed - names if line.startswith("~") else allowed | names
    allowed |= _resolved(["@default"])
    rest = [n for n in seccomp.syscall_numbers(os.uname().machine) if n not in allowed]
    _filter("errno ENOSYS " + " ".join(rest))


def _resolved(words: list[str]) -> set[str]:
    found: set[str] = set()
    for word in words:
        if not word.startswith("@"):
            found.add(word)
            continue
        argv = ["systemd-analyze", "--no-pager", "syscall-filter", word]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        listed = [line.strip() for line in text.splitlines()[1:]]
        found |= _resolved([name for name in listed if name and not name.startswith("#")])
    return found


def address_families(value: str) -> None:
    families = ", ".join(str(_AF[name]) for name in value.split())
    _filter(f"allow socket if low32(arg0) in {{{families}}}", "errno EAFNOSUPPORT socket")


def personality(_: str) -> None:
    _filter("allow personality if low32(arg0) in {0, 0xFFFFFFFF}", "errno EPERM personality")


def realtime(_: str) -> None:
    _filter(
        "allow sched_setscheduler if low32(arg1) & 0xBFFFFFFF in {0, 3, 5}",
        "errno EPERM sched_setscheduler",
    )


def architectures(_: str) -> None:
    _filter()


def protect_clock(_: str) -> None:
    _filter("errno EPERM " + " ".join(sorted(_resolved(["@clock"]) & _known())))


def _known() -> set[str]:
    return set(seccomp.syscall_numbers(os.uname().machine))


def protect_hostname(_: str) -> None:
    _filter("errno EPERM sethostname setdomainname")


def restrict_namespaces(_: str) -> None:
    _filter(
        f"allow clone if low32(arg0) & {_CLONE} == 0",
        "errno EPERM clone unshare setns",
        "errno ENOSYS clone3",
    )


def restrict_set_id(_: str) -> None:
    """No file gets the bits; openat2, whose mode lies behind a pointer, is refused as a whole."""
    calls = [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1), ("mkdirat", 2)]
    lines = [f"allow {name} if low32(arg{place}) & 0xC00 == 0" for name, place in calls]
    _filter(*lines, "errno EPERM chmod fchmod fchmodat mkdir mkdirat", "errno ENOSYS openat2")


def no_written_code(_: str) -> None:
    _filter("errno EPERM mmap if low32(arg2) & 6 == 6", "allow mmap", *_MPROTECT)


_MPROTECT = ("errno EPERM mprotect if low32(arg2) & 4 == 4", "allow mprotect")

MOUNTS: dict[str, Callable[[str], None]] = {
    "PrivateDevices": private_devices,
    "ProtectKernelModules": protect_modules,
    "ProtectHome": protect_home,
    "PrivateTmp": private_tmp,
    "ProtectSystem": protect_system,
    "ProtectProc": protect_proc,
    "ProcSubset": proc_subset,
    "ProtectKernelTunables": protect_tunables,
    "ProtectKernelLogs": protect_logs,
    "ProtectControlGroups": protect_groups,
}
"""In the order in which they are put up."""
LIMITS: dict[str, Callable[[str], None]] = {
    "LimitCORE": limit_core,
    "UMask": umask,
    "CapabilityBoundingSet": bounding,
    "AmbientCapabilities": ambient,
}
FILTERS: dict[str, Callable[[str], None]] = {
    "NoNewPrivileges": no_new_privileges,
    "RestrictRealtime": realtime,
    "LockPersonality": personality,
    "ProtectClock": protect_clock,
    "ProtectHostname": protect_hostname,
    "SystemCallArchitectures": architectures,
    "SystemCallFilter": system_calls,
    "RestrictAddressFamilies": address_families,
    "RestrictNamespaces": restrict_namespaces,
    "RestrictSUIDSGID": restrict_set_id,
    "MemoryDenyWriteExecute": no_written_code,
}
KNOWN = OUTSIDE | {*MOUNTS, *LIMITS, *FILTERS, "SystemCallErrorNumber"}


def _keep(folders: list[str]) -> list[tuple[str, int]]:
    """Hold what must stay reachable, whatever is laid over the way to it."""
    return [(path, os.open(path, os.O_PATH)) for path in folders]


def _restore(kept: list[tuple[str, int]], *, writable: bool) -> None:
    for path, fd in kept:
        Path(path).mkdir(parents=True, exist_ok=True)
        _bind(f"/proc/self/fd/{fd}", path)
        if not writable:
            _read_only(path)
        os.close(fd)


def main() -> None:
    """Put the walls up from the outside in, then become the program."""
    document = json.loads(sys.argv[1])
    directives: dict[str, str] = document["directives"]
    unknown = sorted(set(directives) - KNOWN)
    if unknown:
        sys.exit(f"walls: no test for {', '.join(unknown)}")
    process.unshare(process.CLONE_NEWNS)
    mounts.mount("none", "/", None, _REC | mounts.MS_PRIVATE, None)
    _WRITABLE.extend(document["writable"])
    readable, writable = _keep(document["readable"]), _keep(document["writable"])
    for name, put_up in MOUNTS.items():
        if name == "ProtectSystem":  # what was covered comes back while it can
            _restore(readable, writable=False)
            _restore(writable, writable=True)
        if name in directives:
            put_up(directives[name])
    os.chdir("/")
    for name, put_up in LIMITS.items():
        if name in directives:
            put_up(directives[name])
    os.setgroups([])
    os.setresgid(*[document["ids"][1]] * 3)
    os.setresuid(*[document["ids"][0]] * 3)
    for name, put_up in FILTERS.items():
        if name in directives:
            put_up(directives[name])
    os.execve(document["argv"][0], document["argv"], document["environment"])


if __name__ == "__main__":
    main()
