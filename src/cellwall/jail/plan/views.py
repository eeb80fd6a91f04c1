"""Small synthetic files that a sandbox sees of the machine instead of the kernel's own figures.

Pure data for `plan`, which decides where they lie and what they cover. The invariant: a view shows
the quota and what every sandbox of a template has alike, never a momentary figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from cellwall.jail.plan import steps as s

if TYPE_CHECKING:
    from cellwall.jail.plan.plan import HostFacts

FOLDER = "/opt/cellwall/views"


def of_cpus(facts: HostFacts, count: int) -> List[s.Step]:
    """Return the files that a sandbox of `count` CPUs sees of the machine."""
    base = f"{FOLDER}/{count}"
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
        "proc/sys/kernel/random/boot_id": "00000000-0000-0000-0000-000000000000\n",
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
    """Return every directory above `path`, from the directory of the views on."""
    parts = path[len("/opt/cellwall") :].split("/")[1:-1]
    return ["/opt/cellwall/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


_IN_USE = (
    *("Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Dirty"),
    *("Writeback", "AnonPages", "Mapped", "Shmem", "Slab", "SReclaimable"),
)


def meminfo(memory_mb: int) -> str:
    """Return /proc/meminfo for a sandbox of `memory_mb` MiB; kB as in proc_meminfo(5).

    All memory is free: a view shows no momentary figures. The lines are those that programs miss.
    """
    total = memory_mb * 1024
    figures = [(name, total) for name in ("MemTotal", "MemFree", "MemAvailable")]
    figures += [(name, 0) for name in _IN_USE]
    return "".join(f"{name + ':':15s} {kib:8d} kB\n" for name, kib in figures)
