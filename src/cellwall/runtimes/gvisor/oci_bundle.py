"""OCI bundle: the configuration and flags that `runsc` gets for one gVisor sandbox; pure data.

It neither builds the root directory (`root`) nor runs anything. The invariant: deny by default.
User 1000 without a capability, no new privileges, every tree of the host read-only, one work area
with a size, no network but a loopback of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from cellwall.jail.plan import image_plan, plan
from cellwall.linux import uid_ranges
from cellwall.model.errors import UsageError
from cellwall.runtimes.gvisor import work_area as gvisor_area
from cellwall.runtimes.gvisor.guest_image import RUN
from cellwall.runtimes.gvisor.root import Root
from cellwall.runtimes.shared.environment import INTERPRETER, OWN_PYTHON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellwall.model.limits import Limits
    from cellwall.runtimes.roots import ImageRoot, VolumeRoot

ROOT_ONLY = "/proc/sys/net/core"
"""Directory that is covered for a `runsc` with a network. Versions up to 2024 take a file in it for
the sign of the host's own namespace, and refuse; since Linux 6.x every namespace has that file."""
RESOLVER = "resolv.conf"
"""File of the bundle that a sandbox with a network has as its /etc/resolv.conf."""
VOLUME_IDS = ((uid_ranges.IMAGE_BASE, 0, uid_ranges.COUNT),)
"""Ids of volumes' files on disk, and what they are in a view: those inside, because the file server
of `runsc` works as root. The keeper's namespace alone has that view."""
SHARED = "--file-access-mounts=shared"
"""Flag by which gVisor keeps nothing of a volume's files in its own memory: others may see them,
too, and what a program wrote is there when gVisor is killed."""
OWN_PROCESSES = 1
"""Number of cellwall's own processes that run as the sandbox's user: init."""
PLACEHOLDER = "/tmp/.cellwall"  # noqa: S108 - a path inside
"""Directory that keeps gVisor from mounting a tmpfs of its own on /tmp; the boot inside removes
it."""
OWN_INODES = 64
"""Number of inodes of the work area that the system's own directories and links use."""
OWN_INODES_ON_IMAGE = 10
"""The same on an image: directories of the work area, and one that the overlay makes for itself."""
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_READ_ONLY = ["ro", "nosuid", "nodev"]
_PRIVATE = ["nosuid", "nodev"]
ROOT_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID"),
    *("CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"),
    *("CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_AUDIT_WRITE"),
)
"""Capabilities of root inside an image, as `image_plan.ROOT_CAPABILITIES` has them by number."""
_ROOT_SETS = frozenset({"bounding", "effective", "permitted"})
_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")
_NEW_USER_NAMESPACE = 0x10000000
_ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
_REFUSED = (
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot"),
    *("ptrace", "process_vm_readv", "process_vm_writev"),
)
_ALWAYS = {
    "network": "none",
    "ignore-cgroups": "true",  # the cgroups around runsc itself count its helpers too
    "host-uds": "none",
    "host-fifo": "none",
    "overlay2": "none",  # everything writable is a tmpfs made by the keeper, with a size
    "directfs": "false",  # then the sandbox's kernel opens no host file by itself
    "file-access": "exclusive",
    "file-access-mounts": "exclusive",
    "oci-seccomp": "true",
    "net-raw": "false",
    "debug": "false",
}
"""Flags of every sandbox; flags unknown to a version are left out, see `flags`."""
HIDDEN = ("membarrier",)
"""Calls of the host that `runsc` believes to be missing. Each of its processes registers for
membarrier(2) while it starts, and the kernel has it wait for all processors then (synchronize_rcu),
10 ms a time. It only offers it to programs, which do without it as on older kernels."""
REQUIRED_FLAGS = frozenset({"network", "ignore-cgroups", "platform", "root"})


def flags(
    known: frozenset[str], platform: str, place: str, *, has_network: bool = False
) -> list[str]:
    """Return `runsc`'s flags for a sandbox, of those that this version knows."""
    wanted = {"root": f"{place}/state", "platform": platform, **_ALWAYS}
    if has_network:
        wanted["network"] = "sandbox"  # its stack takes over the devices of the keeper's namespace
    return [f"--{name}={value}" for name, value in wanted.items() if name in known]


def configuration(
    root: Root,
    limits: Limits,
    words: tuple[str, ...],
    place: str,
    *,
    has_network: bool = False,
    image: ImageRoot | None = None,
) -> dict[str, Any]:
    """Return the OCI configuration of a sandbox that starts with the command `words`.

    With an `image` its user is the image's, and has a container's rights inside if that is root.
    """
    namespaces = [{"type": name} for name in _NAMESPACES]
    if has_network:  # the one that `runsc` is in: the keeper's, where the engine put a device
        namespaces[_NAMESPACES.index("network")]["path"] = "/proc/self/ns/net"
    return {
        "ociVersion": "1.0.0",
        "hostname": "cellwall",
        "process": {
            "user": _user(image),
            "args": list(words),
            "env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": _capabilities(image),
            "rlimits": _rlimits(limits),
        },
        "root": {"path": gvisor_area.root_of(place), "readonly": False},
        "mounts": _mounts(root, place) + (_resolver(place) if has_network else []),
        "linux": {
            "namespaces": namespaces,
            "resources": {"memory": {"limit": limits.memory_bytes}},
            "seccomp": _filter(may_chroot=image is not None and image.uid == 0),
        },
    }


def _user(image: ImageRoot | None) -> dict[str, int]:
    if image is None:
        return {"uid": plan.INSIDE_UID, "gid": plan.INSIDE_UID}
    return {"uid": image.uid, "gid": image.gid}


def _capabilities(image: ImageRoot | None) -> dict[str, list[str]]:
    """Return no capability, or for an image's root those that the jail gives, of this kernel."""
    is_root = image is not None and image.uid == 0
    return {
        name: [*ROOT_CAPABILITIES] if is_root and name in _ROOT_SETS else []
        for name in _CAPABILITY_SETS
    }


def guest_words(image: ImageRoot | None = None) -> tuple[str, ...]:
    """Return the command that every sandbox starts with."""
    interpreter = (INTERPRETER,) if image is None else OWN_PYTHON
    return (*interpreter, "-I", "-S", "-c", RUN)


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


def _filter(*, may_chroot: bool = False) -> dict[str, Any]:
    """Return the calls that the sandbox's own kernel refuses, to reduce its attack surface.

    The boundary is that kernel, not this filter. No `errnoRet`: the versions of Debian do not know
    it. A call that wants a tracer, and has none because ptrace is refused, looks as if it were
    missing, which makes libraries use an alternative. `may_chroot`: root inside an image, as in
    the jail.
    """
    refused = [name for name in _REFUSED if not (may_chroot and name == "chroot")]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            {"names": list(_ABSENT), "action": "SCMP_ACT_TRACE"},
            {"names": refused, "action": "SCMP_ACT_ERRNO"},
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


def area(
    root: Root,
    limits: Limits,
    image: ImageRoot | None = None,
    volumes: Sequence[VolumeRoot] = (),
) -> dict[str, Any]:
    """Return the keeper's instructions for the work area, see `work_area`. Raises UsageError."""
    inodes = limits.inodes + sum(each.path.count("/") for each in volumes)
    inodes += OWN_INODES if image is None else OWN_INODES_ON_IMAGE
    if image is not None:
        ids = f"{uid_ranges.IMAGE_BASE} 0 {image_plan.IDS}"
        shown = {
            "tree": image.tree,
            "ids": ids,
            "uid": image.uid,
            "gid": image.gid,
            "placeholder": PLACEHOLDER,
            "mount_points": [each.path for each in volumes],
        }
        return {"options": f"size={limits.disk_mb}m,nr_inodes={inodes},mode=755", "image": shown}
    made: dict[str, Any] = {
        "image": None,
        "options": f"size={limits.disk_mb}m,nr_inodes={inodes},mode=755",
        "directories": list(root.directories),
        "links": [list(pair) for pair in root.links],
        "uid": plan.INSIDE_UID,
        "home": plan.HOME,
        "temporary": "/tmp",  # noqa: S108 - a path inside
        "placeholder": PLACEHOLDER,
    }
    return {**made, "mount_points": mount_points(volumes, made)}


def _mounts(root: Root, place: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": [*_PRIVATE]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": _READ_ONLY},
        {
            "destination": "/dev/shm",  # noqa: S108 - a path inside
            "type": "bind",
            "source": gvisor_area.shared_memory_of(place),
            "options": ["rw", *_PRIVATE],
        },
    ]
    found += [
        {"destination": path, "type": "bind", "source": source, "options": _READ_ONLY}
        for source, path in root.mounts
    ]
    return found


def volume_binds(volumes: Sequence[VolumeRoot], place: str) -> list[dict[str, Any]]:
    """Return the mounts of volumes, whose views the keeper has attached."""
    return [
        {
            "destination": each.path,
            "type": "bind",
            "source": gvisor_area.view_of(place, number),
            "options": ["ro" if each.read_only else "rw", *_PRIVATE],
        }
        for number, each in enumerate(volumes)
    ]


def mount_points(volumes: Sequence[VolumeRoot], area: Mapping[str, Any]) -> list[str]:
    """Return the directories that volumes need besides those of a work area, parents first.

    SECURITY: they are made by root in the host's tree, so none may lie behind a link of the area.
    Raises UsageError.
    """
    known = {*area["directories"], area["home"]}
    links = {path for path, _ in area["links"]}
    found: dict[str, None] = {}
    for each in volumes:
        above = plan.above(each.path)
        if links.intersection(above):
            raise UsageError(
                f"volumes: {each.path} lies behind a link of the sandbox's system",
                remedy="use a directory of its own, such as /data",
            )
        found.update(dict.fromkeys(above))
    return [path for path in found if path not in known]


def _resolver(place: str) -> list[dict[str, Any]]:
    return [
        {
            "destination": "/etc/resolv.conf",
            "type": "bind",
            "source": f"{place}/bundle/{RESOLVER}",
            "options": _READ_ONLY,
        }
    ]


def digest(configured: str, area: dict[str, Any], words: list[str], version: str) -> str:
    """Return the SHA-256 of the requested configuration: the engine's part of the posture."""
    text = json.dumps([configured, area, words, version], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cpu_count(limits: Limits) -> int:
    """Return the number of CPUs that a sandbox shows: its share, rounded up."""
    return max(1, math.ceil(limits.cpus))
