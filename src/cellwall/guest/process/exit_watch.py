"""The end of a process as soon as it is certain: before the kernel has taken its memory apart.

wait(2) tells a parent only after that, which takes 0.5 ms of a warm Python, 1.7 ms of one with
pandas, 2 ms of Node.js: the longest part of many a program. So a process that is about to leave
says so (`announce`), and its parent asks the kernel (`status_of`).

SECURITY: the announcement is a signal that anybody inside may send, and it is believed by nobody.
What ends a program is the kernel's word that every thread of it is on its way out, and its exit
code is the kernel's as well. Used where one program has a sandbox of its own, which ends with it.
"""

from __future__ import annotations

import os
import select

from cellwall.guest.process import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PF_EXITING = 4
"""Of `flags` in proc_pid_stat(5); include/linux/sched.h. Set for good when a thread leaves."""
_PARENT, _FLAGS, _THREADS, _SIZE, _EXIT_CODE = 1, 6, 17, 20, 49
"""Of what `processes.read_stat` gives: ppid, flags, num_threads, vsize and exit_code."""
_TRIES = 20
_SIGCHLD = processes.SIGCHLD
_kill: Callable[[int, int], None] = os.kill
"""As it was before caller code could put another in its place."""


class Usage:
    """What is known of a process that has not been waited for; names as in `struct_rusage`."""

    __slots__ = ("ru_maxrss", "ru_stime", "ru_utime")

    def __init__(self, pid: int) -> None:
        """Its processor time, in seconds; its memory is told by the cgroup alone."""
        self.ru_utime = processes.processor_ns(pid) / 1e9
        self.ru_stime = 0.0
        self.ru_maxrss = 0


def announce() -> None:
    """Tell the parent that nothing is left to do here but to leave."""
    # It has a handler for this one, so nothing is opened for it, and pid 1 hears it, too.
    _kill(os.getppid(), _SIGCHLD)


def step_back() -> None:
    """Let whoever was told of the end go on first, when this process is killed for it.

    Its death takes a millisecond; a process of the policy SCHED_BATCH interrupts nobody when it
    wakes up, sched(7).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        return  # it costs that millisecond


def only_child(pid: int) -> int | None:
    """The one child of a process; None if it has another number of them."""
    children = processes.read_proc(pid, f"task/{pid}/children").split()
    return int(children[0]) if len(children) == 1 else None


def foreseen(pid: int, wakeup_fd: int = -1, wait_s: float = 0.0) -> int | None:
    """The wait status of a child that announced its end, None if that takes longer.

    With a `wakeup_fd` each of some tries waits `wait_s` seconds for the one before, or until that
    is readable.
    """
    for _ in range(_TRIES):
        status = status_of(pid)
        if status is not None:
            return status
        if wakeup_fd < 0:
            os.sched_yield()
        elif select.select([wakeup_fd], [], [], wait_s)[0]:
            return None
    return None


def status_of(pid: int, parent: int | None = None) -> int | None:
    """The wait status of a process that will run no more code of its own; None if it may.

    With a `parent` it has to be a child of that one, which nobody else with its number is.

    Without its memory (`vsize` is 0) the first thread is past the point where the kernel noted
    its exit code. That is shown to whoever may trace the process; others read 0. Inside a sandbox
    they read nothing at all (`hidepid=invisible`, proc(5)); outside, ask `facts.sees_exit_codes`
    before this.
    """
    fields = processes.read_stat(pid)
    if len(fields) <= _EXIT_CODE or not _is_exiting(fields) or fields[_SIZE] != b"0":
        return None
    if parent is not None and int(fields[_PARENT]) != parent:
        return None
    if fields[_THREADS] != b"1" and not _are_all_leaving(pid):
        return None
    return int(fields[_EXIT_CODE])


def _are_all_leaving(pid: int) -> bool:
    # One that has not left could make another; none that has left comes back.
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    found = [processes.read_stat(pid, f"task/{thread}/stat") for thread in threads]
    return all(_is_exiting(fields) for fields in found if fields)  # no fields: it is gone


def _is_exiting(fields: list[bytes]) -> bool:
    return bool(int(fields[_FLAGS]) & _PF_EXITING)
