"""The machine and the load a bench ran on.

Facts only, read from the OS. Invariant: nothing that identifies the machine's owner: no host
name, no addresses, no paths.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Return what matters for comparing figures."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": _memory_mib(),
        "kernel": platform.release(),
        "system": _field(Path("/etc/os-release"), "PRETTY_NAME", "=") or platform.system(),
        "python": platform.python_version(),
        "cgroup": _cgroup(),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _field(path: Path, name: str, separator: str = ":") -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(separator)
        if key.strip() == name:
            return value.strip().strip('"')
    return None


def _memory_mib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def _cgroup() -> str:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return "v2"
    if (root / "unified" / "cgroup.controllers").exists():
        return "v1 hybrid"
    return "v1" if (root / "memory").exists() else "none"
