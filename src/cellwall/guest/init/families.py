"""Process families: all processes of one context or command, how init finds and ends them.

`init/main.py` owns the table. The leader of a family (a context, a command) also leads a session,
and an existing session cannot be joined. So the kernel says which process belongs to which family:
those in the session, their descendants, and strays. A stray is a process that left its session and
lost its parents; it belongs to the family whose work was under way when it was born. In doubt it
ends.

All processes are first stopped, then killed: a stopped process makes no more children, and frees no
slot in which another process could make one. The invariant: no process of another family is
touched, and a family has ended only when no process of it can be found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from cellwall.guest.channel.loop import Loop
from cellwall.guest.init.cpu_time import Spending
from cellwall.guest.process import processes

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 2.0
"""Seconds for which init tries to end a family; then it reports how many processes are left.

The host waits a little longer than this.
"""
_ROUND_S = 0.01
_MOST_PASSES = 50
"""Maximum number of passes that stop processes: each finds the children made during the last."""
_MOST_SESSIONS = 512
_MOST_JOBS = 128
_FEW_PIDS = 1 << 16
_MOST_PIDS = 1 << 22
"""Highest pid that a 64-bit kernel assigns, proc_sys_kernel(5)."""
_HIDES = "hidepid="
_STRAYS = -1
"""Stands in for the leader of processes that descend from no known family any more."""
_PF_EXITING = 0x4
_KILL_BIT = 1 << (signal.SIGKILL - 1)

OnEnded = Callable[[int], None]
"""Callback that receives the number of processes that could not be ended."""


def now_ticks() -> int:
    """Return the time in the unit of a process's start in proc_pid_stat(5), or one tick less.

    Both values are rounded.
    """
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _CLOCK_TICKS) - 1


class Process(NamedTuple):
    """One process as /proc describes it."""

    pid: int
    parent: int
    session: int
    began: int
    tasks: int
    cpu_ticks: int
    """Processor time of the process and of the children that it has waited for, in clock ticks."""
    is_over: bool
    """Whether the process only remains to be waited for: it has no running thread left."""


def listing() -> dict[int, Process]:
    """Return every process that /proc shows, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = processes.read_stat(int(name))
            if len(fields) > 19:
                pid, parent, session = int(name), int(fields[1]), int(fields[3])
                tasks, began = int(fields[17]), int(fields[19])
                is_over = fields[0] in b"ZX" and tasks <= 1
                ticks = sum(int(word) for word in fields[11:15])
                found[pid] = Process(pid, parent, session, began, tasks, ticks, is_over)
    return found


class _Ending(NamedTuple):
    leader: int
    since: int | None
    until_s: float
    on_ended: OnEnded


class Families:
    """The families of all contexts and commands of this sandbox."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._sessions: set[int] = set()
        """Pids of all leaders; an ended one still owns the processes that it left behind."""
        self._jobs: dict[int, tuple[int, int]] = {}
        """Leader and start (in ticks) of the latest executions and commands, by request."""
        self._endings: list[_Ending] = []
        self._can_hide: bool | None = None
        self._spending = Spending()

    def lead(self, leader: int) -> None:
        """Note that the process `leader` leads a family from now on."""
        if len(self._sessions) >= _MOST_SESSIONS:
            self._sessions &= {each.session for each in listing().values()}
        self._sessions.add(leader)
        self._spending.lead(leader)

    def begin(self, job: int, leader: int, since: int) -> int:
        """Note that a family works for the request `job` since `since` (`now_ticks`)."""
        self._jobs[job] = (leader, since)
        if len(self._jobs) > _MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return since

    def end_job(self, job: int, on_ended: OnEnded) -> None:
        """Kill the family that works or worked for the request `job`."""
        if job in self._jobs:
            self.end(*self._jobs[job], on_ended)
        else:
            on_ended(0)

    def end(self, leader: int, since: int | None, on_ended: OnEnded) -> None:
        """Kill a family; strays belong to it if they were born at `since` (ticks) or later.

        Without `since`, kill only the processes that certainly belong to it.
        """
        ending = _Ending(leader, since, time.monotonic() + _PATIENCE_S, on_ended)
        self._endings.append(ending)
        self._step(ending)

    def thin(self, least: int, on_ended: Callable[[int, int, int], None]) -> None:
        """End the family with the most processes and threads, if it has at least `least` of them.

        `on_ended` receives its latest request (0: not known), how many it had, and how many are
        left.
        """
        leader, tasks = self._largest(lambda each: each.tasks)
        if tasks < least:
            on_ended(0, 0, 0)
            return
        job, since = self._latest_job(leader)
        self.end(leader, since, lambda remains: on_ended(job, tasks, remains))

    def shed(self, least: int, on_found: Callable[[int, int], None]) -> None:
        """End the family with the most memory, if it has at least `least` bytes.

        Before that, `on_found` receives its latest request (0: not known) and the bytes it had.
        """
        leader, size = self._largest(lambda each: processes.private_bytes(each.pid))
        if size < least:
            on_found(0, 0)
            return
        job, since = self._latest_job(leader)
        on_found(job, size)
        self.end(leader, since, lambda _remains: None)

    def _latest_job(self, leader: int) -> tuple[int, int]:
        job = max((job for job, led in self._jobs.items() if led[0] == leader), default=0)
        return job, self._jobs[job][1] if job else 0

    def _largest(self, weigh: Callable[[Process], int]) -> tuple[int, int]:
        seen = listing()
        own, own_session = os.getpid(), os.getsid(0)
        weights: dict[int, int] = {}
        for each in seen.values():
            line = _lineage(each, seen, own)
            if line and line[-1].session != own_session:
                known = self._sessions & {i for up in line for i in (up.session, up.pid)}
                leader = min(known, default=_STRAYS)
                weights[leader] = weights.get(leader, 0) + weigh(each)
        return max(weights.items(), key=lambda item: item[1], default=(_STRAYS, 0))

    def childless(self, leaders: dict[int, int]) -> list[int]:
        """Return those of these jobs (leader by request) whose leader never had another process.

        A leader that is being killed may have had some: the kernel no longer shows what it waited
        for.
        """
        seen = listing()
        crowded = {each.parent for each in seen.values()}
        crowded |= {each.session for each in seen.values() if each.session != each.pid}
        return [
            job
            for job, leader in leaders.items()
            if leader in seen and leader not in crowded and not _has_waited(leader)
        ]

    def note_end(self, pid: int, session: int, rusage: dict[str, int]) -> None:
        """Note the processor time of a process that init has waited for."""
        if session in self._sessions:
            self._spending.end(pid, session, rusage)

    def spent(self, job: int) -> tuple[int, int] | None:
        """Return the processor time of a request's family and of all others, in µs.

        The result is None if the request has no family. Neither figure contains the time of init
        itself, nor that of a process whose parent never waited for it.
        """
        if job not in self._jobs:
            return None
        leader, since = self._jobs[job]
        seen = listing()
        own, own_session = os.getpid(), os.getsid(0)
        foreign = self._sessions - {leader}
        ticks = [0, 0]
        for each in seen.values():
            line = _lineage(each, seen, own)
            if line and line[-1].session != own_session:
                is_own = _belongs(line, leader, foreign, own_session, since)
                ticks[not is_own] += each.cpu_ticks
        ended = self._spending.of(leader), self._spending.of_others(leader)
        mine, others = (n * processes.TICK_US + us for n, us in zip(ticks, ended))
        return mine, others

    def look(self) -> None:
        """Continue with the endings under way, because a process has ended."""
        for ending in tuple(self._endings):
            self._step(ending)

    def _step(self, ending: _Ending) -> None:
        if ending not in self._endings:
            return
        members = self._stop(ending)
        for pid in members:
            processes.signal_process(pid, signal.SIGKILL)
        if members and time.monotonic() < ending.until_s:
            self._loop.set_alarm(self, _ROUND_S, self.look)
            return
        self._endings.remove(ending)
        ending.on_ended(len(members))

    def _stop(self, ending: _Ending) -> set[int]:
        """Stop a family's living processes until no new one is found, and return their pids."""
        stopped: set[int] = set()
        for _ in range(_MOST_PASSES):
            found = self._members(ending.leader, ending.since) - stopped
            if not found:
                break
            for pid in found:
                processes.signal_process(pid, signal.SIGSTOP)
            stopped |= found
        return stopped

    def _members(self, leader: int, since: int | None) -> set[int]:
        seen = listing()
        own, own_session = os.getpid(), os.getsid(0)
        foreign = self._sessions - {leader}
        found: set[int] = set()
        sessions = {leader}
        for each in seen.values():
            line = _lineage(each, seen, own)
            if line and _belongs(line, leader, foreign, own_session, since):
                sessions.add(each.session)
                if not each.is_over:
                    found.add(each.pid)
        if not found and since is not None and own == 1 and self._may_hide():
            known = foreign | {own_session} | {each.session for each in seen.values()}
            found |= _hidden(seen, known - sessions)
        return found

    def _may_hide(self) -> bool:
        """Return whether /proc may hide a process that this process may not inspect (`hidepid`)."""
        if self._can_hide is None:
            try:
                with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
                    self._can_hide = any(_HIDES in line for line in mounts)
            except OSError:
                self._can_hide = True
        return self._can_hide


def _has_waited(pid: int) -> bool:
    """Return whether a process has waited for a child that ever ran, or is exiting itself."""
    fields = processes.read_stat(pid)
    if len(fields) < 15:
        return True
    is_leaving = bool(int(fields[6]) & _PF_EXITING) or fields[0] in b"ZX"
    # Field `cminflt` of proc_pid_stat(5): page faults of the children that it waited for.
    return is_leaving or bool(int(fields[8])) or _is_being_killed(pid)


def _is_being_killed(pid: int) -> bool:
    for line in processes.read_proc(pid, "status").splitlines():
        if line.startswith((b"SigPnd:", b"ShdPnd:")) and int(line.split()[1], 16) & _KILL_BIT:
            return True
    return False


def _lineage(process: Process, seen: dict[int, Process], own: int) -> list[Process]:
    """Return a process and its ancestors up to a child of init; empty if it descends from none."""
    line = [process]
    while line[-1].parent != own:
        parent = seen.get(line[-1].parent)
        if parent is None or len(line) > len(seen):
            return []
        line.append(parent)
    return line


def _belongs(
    line: list[Process], leader: int, foreign: set[int], own_session: int, since: int | None
) -> bool:
    sessions = {each.session for each in line} | {each.pid for each in line}
    if leader in sessions:
        return True
    if since is None or foreign & sessions:
        return False
    return line[-1].session != own_session and line[-1].began >= since


def _hidden(seen: dict[int, Process], known: set[int]) -> set[int]:
    """Return the processes that /proc does not show and that are in no session in `known`.

    getsid(2) answers for processes that may not be inspected, and for threads. Threads are in the
    session of a process that is shown.
    """
    found = set()
    for pid in range(2, _last_pid() + 1):
        if pid in seen:
            continue
        try:
            session = os.getsid(pid)
        except OSError:
            continue
        if session not in known:
            found.add(pid)
    return found


def _last_pid() -> int:
    """Return a number that no pid here exceeds."""
    try:
        most = int(processes.read_whole("/proc/sys/kernel/pid_max"))
    except ValueError:
        most = _MOST_PIDS
    if most <= _FEW_PIDS:
        return most
    from cellwall.guest.process import libc

    try:
        pid = libc.fork()
    except OSError:
        return most
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid
