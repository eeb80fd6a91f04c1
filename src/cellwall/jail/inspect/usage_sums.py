"""Counters of a sandbox where no cgroup counts: sums over its process tree.

Runs in the engine process, for rootless hosts without delegation. The kernel enforces nothing here:
a program can grow between two looks, which is why the posture calls these limits `soft`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

from cellwall.jail.inspect import posture

_DYING_S = 1.0
"""Most seconds that the kernel needs to dismantle a killed process."""
_TICKS = os.sysconf("SC_CLK_TCK")
_MAPPING_BYTES = 224
"""Bytes that the kernel keeps for each mapping, in memory that it shows to no process: struct
vm_area_struct, and its part of a tree. Measured: 90 processes of 65,000 took 1,253 MiB."""
_MOST_COUNTED = 200_000
"""Most mappings counted in one look, some 30 ms of the event loop; the next look counts the others.
"""
_MOST_MAPPINGS = 65_530
"""Most mappings of one process: the usual vm.max_map_count of kernels."""
_MAKING_S = 0.02
"""Seconds of CPU time after which mappings are counted again: making enough to matter takes longer.
"""


class Sums(NamedTuple):
    """CPU seconds since the start, bytes now, live processes and threads; init included."""

    cpu_s: float
    memory_bytes: int
    processes: int


class _Process(NamedTuple):
    """Fields of /proc/<pid>/stat (proc_pid_stat(5))."""

    pid: int
    began: str
    """Start time on the kernel's clock: pids are given out again."""
    touched: tuple[str, ...]
    """Minor and major faults, resident pages."""
    own_s: float
    reaped_s: float
    """CPU seconds of the children that it has waited for; `own_s` are its own."""
    threads: int
    top: int
    """Pid of the child of init that this process is or descends from; 0 for init."""


class Meter:
    """The usage of one sandbox, look after look; the last result where no look is possible.

    To measure its memory costs a millisecond, because the kernel walks its pages. A page becomes a
    process's own by a fault, which is counted, or it adds to the resident pages. So where neither
    number has changed for any process, and the processes are the same, the last measurement is
    still true.
    """

    def __init__(self, init_pid: int) -> None:
        """Count everything below init: orphans inside are reparented to it."""
        self._init_pid = init_pid
        self._touched: list[tuple[int, str, tuple[str, ...]]] = []
        self._anonymous = self._shared = 0
        self._own_s: dict[tuple[int, str], float] = {}
        self._mappings: dict[tuple[int, str], tuple[float, int]] = {}
        """By process: its CPU time when its mappings were counted, and their number."""
        self._gone_s = self._most_s = 0.0
        self._latest = Sums(0.0, 0, 0)
        self.idle_looks = 0
        """Number of consecutive latest looks that found no use of memory."""
        self.kills = 0
        """Number of families that were killed here."""
        self._killed: dict[tuple[int, str], float] = {}
        """Processes of the tree that were killed here, and when."""
        self._each: list[tuple[_Process, int]] = []
        """The latest measurement of each process, in bytes."""

    def read(self, work_bytes: int = 0) -> Sums:
        """Walk the tree. `work_bytes` is what the work area's tmpfs holds."""
        try:
            processes = _tree(self._init_pid)
            self._measure(processes)
        except OSError:
            return self._latest  # no descriptor was left to look with
        cpu_s = self._cpu_s(processes)
        count = sum(each.threads for each in processes)
        # Mapped files of the work area are in both. No other memory can be had without being
        # counted, except buffers of pipes and sockets: linux/no_memory_cgroup.policy.
        memory = self._anonymous + max(self._shared, work_bytes)
        memory += self._count_mappings(processes) * _MAPPING_BYTES
        self._latest = Sums(cpu_s, memory, count)
        return self._latest

    def kill_heaviest(self, excess_bytes: int) -> bool:
        """Kill the families with the most memory until the excess is gone; False to give up.

        A family is a child of init, with all that descends from it: a context, a command or an
        orphan. A process that was already killed is visible until the kernel has dismantled it, so
        it is deducted.
        """
        now = time.monotonic()
        alive: dict[int, int] = {}
        seen = {(each.pid, each.began) for each, _ in self._each}
        self._killed = {key: at for key, at in self._killed.items() if key in seen}
        if any(now - at > _DYING_S for at in self._killed.values()):
            return False  # it cannot be killed, or not as fast as others grow
        for each, size in self._each:
            if (each.pid, each.began) in self._killed:
                excess_bytes -= size
            elif each.top:
                alive[each.top] = alive.get(each.top, 0) + size
        if sum(alive.values()) < excess_bytes:
            return False  # the excess is not in these families
        for top in sorted(alive, key=alive.__getitem__, reverse=True):
            if excess_bytes <= 0:
                break
            excess_bytes -= alive[top]
            self._kill_below(top, now)
        return True

    def _kill_below(self, top: int, now: float) -> None:
        killed = [each for each, _ in self._each if each.top == top and _kill(each)]
        self._killed.update({(each.pid, each.began): now for each in killed})
        self.kills += 1

    def _cpu_s(self, processes: list[_Process]) -> float:
        """Return the CPU seconds of the sandbox; they never decrease.

        SECURITY: a process that ignores SIGCHLD waits for no child, and the kernel forgets what the
        child used. So what was last seen of ended processes counts as well, if it is more than what
        was waited for, which includes children that came and went between two looks. A child that
        was neither waited for nor seen by a look is not counted: nothing in /proc shows it any
        more.
        """
        own_s = {(each.pid, each.began): each.own_s for each in processes}
        self._gone_s += sum(spent for key, spent in self._own_s.items() if key not in own_s)
        self._own_s = own_s
        living_s = sum(own_s.values())
        reaped_s = sum(each.reaped_s for each in processes)
        self._most_s = max(self._most_s, living_s + max(self._gone_s, reaped_s))
        return self._most_s

    def _count_mappings(self, processes: list[_Process]) -> int:
        """Return the number of mappings; each takes memory of the kernel.

        SECURITY: that is 14 MiB for a process that splits one mapping into pages, and neither
        faults nor resident pages show it. Making them takes time.
        """
        known: dict[tuple[int, str], tuple[float, int]] = {}
        looked_at = 0
        for each in processes:
            key = (each.pid, each.began)
            counted_s, count = self._mappings.get(key, (-1.0, 0))
            if each.own_s - counted_s >= _MAKING_S and looked_at < _MOST_COUNTED:
                count, counted_s = _mappings(each, count), each.own_s
                looked_at += count
            known[key] = (counted_s, count)
        self._mappings = known
        return sum(count for _, count in known.values())

    def _measure(self, processes: list[_Process]) -> None:
        touched = [(each.pid, each.began, each.touched) for each in processes]
        if touched == self._touched:
            self.idle_looks += 1
            return
        anonymous = shared = 0
        self._each = []
        for each in processes:
            try:
                own = _memory(each)
            except (FileNotFoundError, ProcessLookupError, ValueError):
                continue  # it ended during the look
            anonymous += own[0]
            shared += own[1]
            self._each.append((each, sum(own)))
        # The state before the measurement: memory touched meanwhile is found by the next look.
        self._touched, self.idle_looks = touched, 0
        self._anonymous, self._shared = anonymous, shared


def _kill(process: _Process) -> bool:
    """Kill a process unless its pid has been given out again.

    SECURITY: kill by a pidfd, after a check that the process behind it is the same.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if _process(process.pid).began != process.began:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except (OSError, ValueError):
        return False
    finally:
        os.close(pidfd)
    return True


def _tree(init_pid: int) -> list[_Process]:
    found = []
    queue = [(init_pid, 0)]
    while queue:
        pid, top = queue.pop()
        try:
            process = _process(pid, top)
            is_init = pid == init_pid
            queue += [(child, child if is_init else top) for child in _children(process)]
        except (FileNotFoundError, ProcessLookupError, ValueError):
            continue  # it ended during the look
        found.append(process)
    return found


def _process(pid: int, top: int = 0) -> _Process:
    text = posture.read_text(f"/proc/{pid}/stat")
    fields = text[text.rindex(")") + 2 :].split()
    user, system, reaped_user, reaped_system = (int(word) / _TICKS for word in fields[11:15])
    touched = (fields[7], fields[9], fields[21])
    reaped_s = reaped_user + reaped_system
    return _Process(pid, fields[19], touched, user + system, reaped_s, int(fields[17]), top)


def _children(process: _Process) -> list[int]:
    """Return the children of all threads. SECURITY: those of the first thread are not all."""
    if process.threads == 1:
        return posture.children(process.pid)
    found: list[int] = []
    for thread in posture.threads(process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # A thread may have ended; another thread has its children now.
            found += posture.children(process.pid, thread)
    return found


def _memory(process: _Process) -> tuple[int, int]:
    """Measure a process by a living thread.

    SECURITY: the first thread may have ended, and then no memory is shown under its number.
    """
    try:
        return _proportional_bytes(process.pid, process.pid)
    except ProcessLookupError:
        for thread in posture.threads(process.pid):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                return _proportional_bytes(process.pid, thread)
        raise


def _proportional_bytes(pid: int, thread: int) -> tuple[int, int]:
    """(anonymous, shared memory) of a thread's process, each page divided by its users.

    Not the private pages alone: what a parent filled before it forked is private to no process, and
    a program could hide any amount that way. The share of the fork-server's image is small, because
    all its forks map it. proc_pid_smaps(5), Linux 5.3. Page tables are memory as well, 4 KiB for
    each page of a program that strides.

    SECURITY: only root may inspect the process of a program that may be run and not read. It counts
    with all that it maps, undivided: the kernel shows that much to every user.
    """
    base = f"/proc/{pid}/task/{thread}"
    status = posture.read_text(base + "/status")
    tables = _sum_bytes(status, ("VmPTE:",))
    try:
        text = posture.read_text(base + "/smaps_rollup")
    except PermissionError:
        own = _sum_bytes(status, ("RssAnon:", "VmSwap:"))
        return tables + own, _sum_bytes(status, ("RssShmem:",))
    own = _sum_bytes(text, ("Pss_Anon:", "SwapPss:"))
    return tables + own, _sum_bytes(text, ("Pss_Shmem:",))


def _sum_bytes(text: str, names: tuple[str, ...]) -> int:
    """Add up these lines of a file whose values are in kB."""
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(names))


def _mappings(process: _Process, known: int) -> int:
    """Count the lines of proc_pid_maps(5); return `known` where there is nothing to read.

    SECURITY: none are shown under the number of a first thread that has ended. Of a program that
    may be run and not read only the size is shown: it counts as if each page were a mapping.
    """
    try:
        for thread in (process.pid, *_other_threads(process)):
            count = _lines(f"/proc/{process.pid}/task/{thread}/maps")
            if count:
                return count
    except PermissionError:
        pages = int(posture.read_text(f"/proc/{process.pid}/statm").split()[0])
        return min(pages, _MOST_MAPPINGS)
    except OSError:
        return known
    return known


def _other_threads(process: _Process) -> Iterator[int]:
    if process.threads > 1:
        yield from posture.threads(process.pid)


def _lines(path: str) -> int:
    count = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, 65_536):
            count += part.count(b"\n")
    finally:
        os.close(fd)
    return count
