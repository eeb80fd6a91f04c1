"""Counters of a sandbox where no cgroup counts for us: sums over its process tree.

Host half, for rootless hosts without delegation. Not enforcement by the kernel: a program can
grow between two looks, which is why the posture calls these limits `soft`.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from cellwall.jail import posture

_TICKS = os.sysconf("SC_CLK_TCK")


class Sums(NamedTuple):
    """CPU seconds since the start, bytes now, live processes and threads; init included."""

    cpu_s: float
    memory_bytes: int
    processes: int


class _Process(NamedTuple):
    """What /proc/<pid>/stat says (proc_pid_stat(5))."""

    pid: int
    touched: tuple[str, ...]
    """Minor and major faults, when it began, resident pages."""
    cpu_s: float
    """Own and of reaped children."""
    threads: int


class Meter:
    """What one sandbox uses, look after look.

    To find out what memory it has costs a millisecond, because the kernel walks its pages. They
    become a process's own by faults, which are counted, or are more than before: where neither has
    changed for any, and the processes are the same, what was measured last is still true.
    """

    def __init__(self, init_pid: int) -> None:
        """Everything below init counts: what is orphaned inside is reparented to it."""
        self._init_pid = init_pid
        self._touched: list[tuple[int, tuple[str, ...]]] = []
        self._anonymous = self._shared = 0
        self.idle_looks = 0
        """How many of the latest found nothing touched."""

    def read(self, work_bytes: int = 0) -> Sums:
        """Walk the tree. `work_bytes` is what the work area's tmpfs holds: memory of nobody's."""
        processes = _tree(self._init_pid)
        # Before it is measured: what is touched meanwhile is seen by the next look.
        touched = [(each.pid, each.touched) for each in processes]
        self.idle_looks += 1
        if touched != self._touched:
            self.idle_looks = 0
            self._touched = touched
            self._measure(processes)
        cpu_s = sum(each.cpu_s for each in processes)
        count = sum(each.threads for each in processes)
        # A mapped file of the work area is in both. What would be in neither is not to be had, but
        # for buffers of pipes and sockets: uncounted.refusals.
        return Sums(cpu_s, self._anonymous + max(self._shared, work_bytes), count)

    def _measure(self, processes: list[_Process]) -> None:
        self._anonymous = self._shared = 0
        for each in processes:
            try:
                anonymous, shared = _memory(each)
            except (OSError, ValueError):
                continue  # it ended while we looked
            self._anonymous += anonymous
            self._shared += shared


def _tree(init_pid: int) -> list[_Process]:
    found = []
    queue = [init_pid]
    while queue:
        pid = queue.pop()
        try:
            process = _process(pid)
            queue += _children(process)
        except (OSError, ValueError):
            continue  # it ended while we looked
        found.append(process)
    return found


def _process(pid: int) -> _Process:
    text = posture.read_text(f"/proc/{pid}/stat")
    fields = text[text.rindex(")") + 2 :].split()
    cpu_s = sum(int(word) for word in fields[11:15]) / _TICKS
    touched = (fields[7], fields[9], fields[19], fields[21])
    return _Process(pid, touched, cpu_s, int(fields[17]))


def _children(process: _Process) -> list[int]:
    """SECURITY: each thread has children of its own; those of the first are not all."""
    if process.threads == 1:
        return posture.children(process.pid)
    found: list[int] = []
    for thread in posture.threads(process.pid):
        with contextlib.suppress(OSError):  # it ended: its children are another's now
            found += posture.children(process.pid, thread)
    return found


def _memory(process: _Process) -> tuple[int, int]:
    """SECURITY: the first thread may have ended, and then no memory is shown under its number."""
    try:
        return _proportional_bytes(process.pid, process.pid)
    except OSError:
        for thread in posture.threads(process.pid):
            with contextlib.suppress(OSError):
                return _proportional_bytes(process.pid, thread)
        raise


def _proportional_bytes(pid: int, thread: int) -> tuple[int, int]:
    """(anonymous, shared memory) of a thread's process, each page divided by those who map it.

    Not the private pages alone: what a parent filled before it forked is private to nobody, and
    a program could hide as much as it likes that way. The share of the fork-server's image is
    small, because everybody maps it. proc_pid_smaps(5), Linux 5.3.
    """
    anonymous = shared = 0
    for line in posture.read_text(f"/proc/{pid}/task/{thread}/smaps_rollup").splitlines():
        if line.startswith(("Pss_Anon:", "SwapPss:")):
            anonymous += int(line.split()[1]) * 1024
        elif line.startswith("Pss_Shmem:"):
            shared += int(line.split()[1]) * 1024
    return anonymous, shared
