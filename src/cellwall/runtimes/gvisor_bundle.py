"""What one gVisor sandbox is, as the OCI configuration and the flags `runsc` gets: pure data.

Not the root directory (`gvisor_root`) and not the running of anything. The invariant: deny by
default. User 1000 without a capability, no new privileges, every mount of the host's read-only,
work areas with a size, no network but a loopback of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from cellwall.jail import plan
from cellwall.runtimes.environment import INTERPRETER
from cellwall.runtimes.gvisor_image import RUN
from cellwall.runtimes.gvisor_root import Root

if TYPE_CHECKING:
    from cellwall.model.limits import Limits

OWN_PROCESSES = 1
"""Init, which is of our user inside as well."""
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_READ_ONLY = ["ro", "nosuid", "nodev"]
_PRIVATE = ["nosuid", "nodev"]
_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")
_NEW_USER_NAMESPACE = 0x10000000
_ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
_REFUSED = (
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot"),
    *("ptrace", "process_vm_readv", "process_vm_writev"),
)
_ALWAYS = {
    "network": "none",
    "ignore-cgroups": "true",  # ours are around runsc itself, and count its helpers too
    "host-uds": "none",
    "host-fifo": "none",
    "overlay2": "none",  # the root is read-only: nothing may be written on the host
    "directfs": "false",  # the inside's kernel then opens no file of the host's by itself
    "file-access": "exclusive",
    "file-access-mounts": "exclusive",
    "oci-seccomp": "true",
    "net-raw": "false",
    "debug": "false",
}
"""Those a version does not know are left out, see `flags`."""
REQUIRED_FLAGS = frozenset({"network", "ignore-cgroups", "platform", "root"})


def flags(known: frozenset[str], platform: str, place: str) -> list[str]:
    """Return `runsc`'s flags for a sandbox, of those that this version knows."""
    wanted = {"root": f"{place}/state", "platform": platform, **_ALWAYS}
    return [f"--{name}={value}" for name, value in wanted.items() if name in known]


def configuration(root: Root, limits: Limits, words: tuple[str, ...]) -> dict[str, Any]:
    """Return the OCI configuration of a sandbox that starts with the command `words`."""
    return {
        "ociVersion": "1.0.0",
        "hostname": "cellwall",
        "process": {
            "user": {"uid": plan.INSIDE_UID, "gid": plan.INSIDE_UID},
            "args": list(words),
            "env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {name: [] for name in _CAPABILITY_SETS},
            "rlimits": _rlimits(limits),
        },
        "root": {"path": root.path, "readonly": True},
        "mounts": _mounts(root, limits),
        "linux": {
            "namespaces": [{"type": name} for name in _NAMESPACES],
            "resources": {"memory": {"limit": limits.memory_bytes}},
            "seccomp": _filter(),
        },
    }


def guest_words() -> tuple[str, ...]:
    """Return the command every sandbox starts with."""
    return (INTERPRETER, "-I", "-S", "-c", RUN)


def _rlimits(limits: Limits) -> list[dict[str, Any]]:
    values = {
        "RLIMIT_NPROC": limits.processes + OWN_PROCESSES,
        "RLIMIT_FSIZE": limits.file_mb << 20,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    return [{"type": name, "soft": n, "hard": n} for name, n in values.items()]


def _filter() -> dict[str, Any]:
    """What the inside's kernel itself refuses, so that less of it can be reached.

    Not the wall (that is the kernel itself). No `errnoRet`: the versions of Debian do not know it.
    A call that wants a tracer, and has none because ptrace is refused, looks as if it were missing,
    which sends libraries down another way.
    """
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            {"names": list(_ABSENT), "action": "SCMP_ACT_TRACE"},
            {"names": list(_REFUSED), "action": "SCMP_ACT_ERRNO"},
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ERRNO",
                "args": [
                    {
                        "index": 0,
                        "value": _NEW_USER_NAMESPACE,
                        "valueTwo": _NEW_USER_NAMESPACE,
                        "op": "SCMP_CMP_MASKED_EQ",
                    }
                ],
            },
        ],
    }


def _mounts(root: Root, limits: Limits) -> list[dict[str, Any]]:
    size = f"size={limits.disk_mb}m"
    found: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": [*_PRIVATE]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": _READ_ONLY},
        _tmpfs(plan.HOME, size, f"mode=755,uid={plan.INSIDE_UID},gid={plan.INSIDE_UID}"),
        # Named, or gVisor makes one of its own there, without a size. It cannot share one tmpfs
        # among paths: each of the three has the work area's size, all of it counts as memory.
        _tmpfs("/tmp", size, "mode=1777"),  # noqa: S108 - a path inside
        _tmpfs("/dev/shm", size, "mode=1777"),  # noqa: S108 - a path inside
    ]
    found += [
        {"destination": path, "type": "bind", "source": source, "options": _READ_ONLY}
        for source, path in root.mounts
    ]
    return found


def _tmpfs(path: str, *options: str) -> dict[str, Any]:
    every = [*_PRIVATE, *(word for option in options for word in option.split(","))]
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": every}


def digest(configured: dict[str, Any], words: list[str], version: str) -> str:
    """SHA-256 of what a sandbox was asked to be; the part of its posture that is ours."""
    text = json.dumps([configured, words, version], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cpu_count(limits: Limits) -> int:
    """CPUs a sandbox shows: its share, rounded up."""
    return max(1, math.ceil(limits.cpus))
