"""What one gVisor sandbox is, as the OCI configuration and the flags `runsc` gets: pure data.

Not the root directory (`gvisor_root`) and not the running of anything. The invariant: deny by
default. User 1000 without a capability, no new privileges, every mount of the host's read-only,
one work area with a size, no network but a loopback of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from cellwall.jail import plan
from cellwall.runtimes.environment import INTERPRETER
from cellwall.runtimes.gvisor_root import WORK, Root

if TYPE_CHECKING:
    from cellwall.model.limits import Limits

OWN_PROCESSES = 1
"""Init, which is of our user inside as well."""
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_READ_ONLY = ["ro", "nosuid", "nodev"]
_PRIVATE = ["nosuid", "nodev"]
_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")
_ALWAYS = {
    "network": "none",
    "ignore-cgroups": "true",  # ours are around runsc itself, and count its helpers too
    "host-uds": "none",
    "host-fifo": "none",
    "overlay2": "none",  # the root is read-only: nothing may be written on the host
    "directfs": "false",  # the inside's kernel then opens no file of the host's by itself
    "file-access": "exclusive",
    "file-access-mounts": "exclusive",
    "oci-seccomp": "false",
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
        },
    }


def guest_words() -> tuple[str, ...]:
    """Return the command every sandbox starts with."""
    return (INTERPRETER, "-I", "-S", plan.GUEST_PATH)


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


def _mounts(root: Root, limits: Limits) -> list[dict[str, Any]]:
    size = f"size={limits.disk_mb}m"
    found: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": [*_PRIVATE]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": _READ_ONLY},
        _tmpfs(WORK, size, f"mode=755,uid={plan.INSIDE_UID},gid={plan.INSIDE_UID}"),
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
