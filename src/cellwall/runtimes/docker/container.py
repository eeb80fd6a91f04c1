"""Container request: a pure function from a sandbox's spec to the Docker engine's create request.

No call is made here, so tests read it like a table. The invariant: every right is named here and
none is left to the daemon's defaults, which differ between versions.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from cellwall.jail.plan.plan import GUEST_PATH, INSIDE_UID
from cellwall.runtimes.docker.inside import TOP_NAMES, place_of
from cellwall.runtimes.docker.seccomp_profile import profile
from cellwall.runtimes.shared.environment import INTERPRETER
from cellwall.runtimes.shared.shedding import ROOM_MB

if TYPE_CHECKING:
    from cellwall.model.limits import Limits
    from cellwall.runtimes.base import Purpose, SandboxSpec

GID = INSIDE_UID
"""Group id of containers; the kernel counts nothing by it."""
OWNER_LABEL = "org.cellwall.owner"
SANDBOX_LABEL = "org.cellwall.sandbox"
NAME_PREFIX = "cellwall-"
OWN_PROCESSES = 1
"""Number of own processes: init counts as a process of the container; the limit is on the
others."""
START_PROCESSES = 32
"""Number of processes that the Docker engine's own starter needs in the container before init
runs."""
PERIOD_US = 100_000
WORK_AREA = ("/home", "/dev/shm")
"""Writable parts of a container: two file systems, whose sizes together are the limit."""
OWN_INODES_ON_IMAGE = 8
"""Number of inodes of the work area that are not the user's, on an image: its own directories."""
OWN_KERNEL_MB = 48
"""MiB for gVisor itself: its kernel and its file server, before a program has run."""
_MIB = 1024 * 1024


@cache
def _seccomp() -> str:
    return json.dumps(profile(), separators=(",", ":"))


def shared_memory_mb(limits: Limits) -> int:
    """Return the MiB of the work area that are /dev/shm: both file systems share the limit."""
    return max(1, min(64, limits.disk_mb // 4))


def volume_points(spec: SandboxSpec) -> dict[str, bool]:
    """Return where a sandbox's volumes are mounted, and whether each is read-only."""
    on_image = spec.image is not None
    return {each.path if on_image else place_of(each.path): each.read_only for each in spec.volumes}


def held_for_own_kernel(limits: Limits, purpose: Purpose) -> Limits:
    """Return the limits of the host's cgroups for gVisor, under which a program gets `limits`.

    Its kernel needs memory, and threads of its own for each thread inside: about five on ptrace.
    """
    processes = min(100_000, 128 + 8 * limits.processes)
    own_mb = OWN_KERNEL_MB + (ROOM_MB if purpose == "session" else 0)
    return replace(limits, memory_mb=limits.memory_mb + own_mb, processes=processes)


def rlimits(limits: Limits) -> dict[str, int]:
    """Return per-process limits by the Docker engine's names for them (setrlimit(2)).

    No `nproc`: it counts a user's processes over all containers; the pids cgroup counts this
    container's.
    """
    return {
        "core": 1,
        "fsize": limits.file_mb * _MIB,
        "nofile": limits.open_files,
        "memlock": 0,
        "msgqueue": 0,
        "nice": 0,
        "rtprio": 0,
    }


def request(  # noqa: PLR0913 - each is a fact of its own
    limits: Limits,
    *,
    sandbox_id: str,
    owner: str,
    image: str,
    oci_runtime: str | None,
    cpu_set: str,
    masked: tuple[str, ...],
    uid: int = INSIDE_UID,
    purpose: Purpose = "session",
) -> dict[str, Any]:
    """Return the body of the engine's create request; `image` is an id, never a name.

    With `oci_runtime` the container has a kernel of its own. `uid`: see `ids`.
    """
    held, each = limits, rlimits(limits)
    if oci_runtime is not None:
        held = held_for_own_kernel(limits, purpose)
        # gVisor's kernel counts for this container alone
        each["nproc"] = limits.processes + OWN_PROCESSES
    home_mb = max(1, limits.disk_mb - shared_memory_mb(limits))
    shm_inodes = max(16, limits.inodes // 4)
    home_inodes = limits.inodes - shm_inodes + len(TOP_NAMES)
    options = f"rw,nosuid,nodev,exec,uid={uid},gid={GID}"
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "IpcMode": "none",
        "PidMode": "",
        "UTSMode": "",
        "CgroupnsMode": "private",
        "Privileged": False,
        "ReadonlyRootfs": True,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={_seccomp()}"],
        "Binds": [],
        "Devices": [],
        "PublishAllPorts": False,
        "Tmpfs": {
            "/home": f"{options},mode=755,size={home_mb}m,nr_inodes={home_inodes}",
            "/dev/shm": f"{options},mode=1777,size={shared_memory_mb(limits)}m,"
            f"nr_inodes={shm_inodes}",
        },
        "Memory": held.memory_bytes,
        "MemorySwap": held.memory_bytes,
        "PidsLimit": max(START_PROCESSES, held.processes + OWN_PROCESSES),
        "CpuPeriod": PERIOD_US,
        "CpuQuota": max(1000, int(limits.cpus * PERIOD_US)),
        "CpusetCpus": cpu_set,
        "OomKillDisable": False,
        "OomScoreAdj": 500,
        "Ulimits": [{"Name": n, "Soft": v, "Hard": v} for n, v in each.items()],
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": True,
        "Init": False,
        "MaskedPaths": list(masked),
        "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
    }
    if oci_runtime is not None:
        host["Runtime"] = oci_runtime
    return {
        "Image": image,
        "User": f"{uid}:{GID}",
        "Hostname": "cellwall",
        "WorkingDir": "/",
        "Env": ["HOME=/", "PATH=/usr/bin:/bin", "LANG=C.UTF-8"],
        "Entrypoint": [INTERPRETER, "-I", "-S", GUEST_PATH],
        "Cmd": [],
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "NetworkDisabled": True,
        "Labels": {OWNER_LABEL: owner, SANDBOX_LABEL: sandbox_id},
        "HostConfig": host,
    }
