"""Counters of a sandbox where no cgroup counts for us: sums over its process tree.

Host half, for rootless hosts without delegation. Not enforcement by the kernel: a program can
grow between two looks, which is why the posture calls these limits `soft`.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from cellwall.jail import posture

_TICKS = os.sysconf("SC_CLK_TCK")


class Sums(NamedTuple):
    """CPU seconds since the start, bytes now, live processes and threads; init included."""

    cpu_s: float
    memory_bytes: int
    processes: int


def read(init_pid: int, work_bytes: int = 0) -> Sums:
    """Walk the tree below init: everything orphaned inside is reparented to it.

    `work_bytes` is what the work area's tmpfs holds: memory that belongs to no process.
    """
    cpu, anonymous, shared, count = 0.0, 0, 0, 0
    queue = [init_pid]
    while queue:
        pid = queue.pop()
        try:
            queue += posture.children(pid)
            own_cpu_s, threads = _cpu_and_threads(pid)
            cpu += own_cpu_s
            proportional = _proportional_bytes(pid)
            anonymous += proportional[0]
            shared += proportional[1]
            count += threads
        except (OSError, ValueError):
            continue  # it ended while we looked
    # A mapped file of the work area is in both; memory that only a memfd holds is in neither.
    return Sums(cpu, anonymous + max(shared, work_bytes), count)


def _cpu_and_threads(pid: int) -> tuple[float, int]:
    """CPU time, own and of reaped children, and threads; /proc/<pid>/stat (proc_pid_stat(5))."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        text = file.read()
    fields = text[text.rindex(")") + 2 :].split()
    return sum(int(word) for word in fields[11:15]) / _TICKS, int(fields[17])


def _proportional_bytes(pid: int) -> tuple[int, int]:
    """(anonymous, shared memory) of one process, each page divided by those who map it.

    Not the private pages alone: what a parent filled before it forked is private to nobody, and
    a program could hide as much as it likes that way. The share of the fork-server's image is
    small, because everybody maps it. proc_pid_smaps(5), Linux 5.3.
    """
    anonymous = shared = 0
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith(("Pss_Anon:", "SwapPss:")):
                anonymous += int(line.split()[1]) * 1024
            elif line.startswith("Pss_Shmem:"):
                shared += int(line.split()[1]) * 1024
    return anonymous, shared
