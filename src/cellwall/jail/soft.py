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
    """CPU seconds since the start, bytes now, live processes; init included."""

    cpu_s: float
    memory_bytes: int
    processes: int


def read(init_pid: int) -> Sums:
    """Walk the tree below init: everything orphaned inside is reparented to it."""
    cpu, memory, count = 0.0, 0, 0
    queue = [init_pid]
    while queue:
        pid = queue.pop()
        try:
            queue += posture.children(pid)
            cpu += _cpu_s(pid)
            memory += _private_bytes(pid)
            count += 1
        except (OSError, ValueError):
            continue  # it ended while we looked
    return Sums(cpu, memory, count)


def _cpu_s(pid: int) -> float:
    """Own time and that of reaped children, from /proc/<pid>/stat (proc_pid_stat(5))."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        text = file.read()
    fields = text[text.rindex(")") + 2 :].split()
    return sum(int(word) for word in fields[11:15]) / _TICKS


def _private_bytes(pid: int) -> int:
    """Private and shared-memory pages; what is shared with the fork-server does not count."""
    total = 0
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith(("Private_Dirty:", "Private_Clean:", "Shmem", "Swap:")):
                total += int(line.split()[1]) * 1024
    return total
