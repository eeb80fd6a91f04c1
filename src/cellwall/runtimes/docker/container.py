"""What a sandbox's container is: a pure function from spec to the engine's create request.

No call is made here, so tests read it like a table. The invariant: every right is named here and
none is left to the daemon's defaults, which differ between versions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from cellwall.runtimes.docker.seccomp_profile import profile

if TYPE_CHECKING:
    from cellwall.model.limits import Limits
    from cellwall.model.template import BuiltTemplate

UID = 1000
OWNER_LABEL = "org.cellwall.owner"
SANDBOX_LABEL = "org.cellwall.sandbox"
NAME_PREFIX = "cellwall-"
TEMPLATE_ROOT = "/opt/env"
GUEST_PATH = "/opt/cellwall/guest.pyz"
HOME = "/home/user"
OWN_PROCESSES = 1
"""Init counts as a process of the container; the limit is on the rest."""
START_PROCESSES = 32
"""What the engine's own starter needs in the container before it becomes init."""
PERIOD_US = 100_000
_MIB = 1024 * 1024


@cache
def _seccomp() -> str:
    return json.dumps(profile(), separators=(",", ":"))


def environment(template: BuiltTemplate, cpus: float, added: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a sandbox, made from nothing."""
    count = str(max(1, math.ceil(cpus)))
    return {
        "PATH": f"{TEMPLATE_ROOT}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "VIRTUAL_ENV": TEMPLATE_ROOT,
        "PYTHONDONTWRITEBYTECODE": "1",
        **{f"{name}_NUM_THREADS": count for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
        **template.template.env,
        **added,
    }


def shared_memory_mb(limits: Limits) -> int:
    """Part of the work area that is /dev/shm: two file systems, whose sum is the limit."""
    return max(1, min(64, limits.disk_mb // 4))


def rlimits(limits: Limits) -> dict[str, int]:
    """Per-process limits by the engine's names for them (setrlimit(2)).

    No `nproc`: it counts a user's processes over all containers; the pids cgroup counts ours.
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
) -> dict[str, Any]:
    """Return the body of the engine's create request; `image` is an id, never a name."""
    home_mb = max(1, limits.disk_mb - shared_memory_mb(limits))
    shm_inodes = max(16, limits.inodes // 4)
    options = f"rw,nosuid,nodev,exec,uid={UID},gid={UID}"
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
            "/home": f"{options},mode=755,size={home_mb}m,nr_inodes={limits.inodes - shm_inodes}",
            "/dev/shm": f"{options},mode=1777,size={shared_memory_mb(limits)}m,"
            f"nr_inodes={shm_inodes}",
        },
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": max(START_PROCESSES, limits.processes + OWN_PROCESSES),
        "CpuPeriod": PERIOD_US,
        "CpuQuota": max(1000, int(limits.cpus * PERIOD_US)),
        "CpusetCpus": cpu_set,
        "OomKillDisable": False,
        "OomScoreAdj": 500,
        "Ulimits": [{"Name": n, "Soft": v, "Hard": v} for n, v in rlimits(limits).items()],
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
        "User": f"{UID}:{UID}",
        "Hostname": "cellwall",
        "WorkingDir": "/",
        "Env": ["HOME=/", "PATH=/usr/bin:/bin", "LANG=C.UTF-8"],
        "Entrypoint": [f"{TEMPLATE_ROOT}/bin/python", "-I", "-S", GUEST_PATH],
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
