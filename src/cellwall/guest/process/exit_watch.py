"""The end of a process as soon as it is certain: before the kernel has released its memory.

wait(2) reports an end only after that release, which takes 0.5 ms for a warm Python, 1.7 ms with
pandas, 2 ms for Node.js: the longest part of many a program. So a process that is about to exit
announces it (`announce`), and its parent asks the kernel (`status_of`).

SECURITY: the announcement is a signal that any process inside may send, and no reader believes it.
A program has ended only when the kernel says that every thread of it is exiting, and its exit code
comes from the kernel as well. Used where one program has a sandbox of its own, which ends with it.
"""

from __future__ import annotations

import os
import select

from cellwall.guest.process import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PF_EXITING = 4
"""Bit of `flags` in proc_pid_stat(5), include/linux/sched.h; set for good when a thread exits."""
_PARENT, _FLAGS, _THREADS, _SIZE, _EXIT_CODE = 1, 6, 17, 20, 49
"""Indexes into the result of `processes.read_stat`: ppid, flags, num_threads, vsize, exit_code."""
_TRIES = 20
_SIGCHLD = processes.SIGCHLD
_kill: Callable[[int, int], None] = os.kill
"""`os.kill` as it was before caller code could replace it."""


class Usage:
    """Usage of a process that has not been waited for; names as in `struct_rusage`."""

    __slots__ = ("ru_maxrss", "ru_stime", "ru_utime")

    def __init__(self, pid: int) -> None:
        """Processor time is in seconds; only the cgroup knows the memory."""
        self.ru_utime = processes.processor_ns(pid) / 1e9
        self.ru_stime = 0.0
        self.ru_maxrss = 0


def announce() -> None:
    """Tell the parent that this process has nothing left to do but to exit."""
    # The parent has a handler for SIGCHLD, so nothing is opened for this, and pid 1 receives it,
    # too.
    _kill(os.getppid(), _SIGCHLD)


def only_child(pid: int) -> int | None:
    """Return the only child of a process; None if it has none or several."""
    children = processes.read_proc(pid, f"task/{pid}/children").split()
    return int(children[0]) if len(children) == 1 else None


def poll_exit_status(pid: int, wakeup_fd: int = -1, wait_s: float = 0.0) -> int | None:
    """Return the wait status of a child that announced its end, None if that takes longer.

    Without `wakeup_fd` the tries follow each other at once. With it, each try is followed by a wait
    of `wait_s` seconds, and the result is None as soon as `wakeup_fd` is readable.
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
    """Return the wait status of a process that will run no more code of its own; None if it may.

    With `parent`, the process has to be a child of that process; this excludes another process that
    has got the same pid.

    When a process has no memory any more (`vsize` is 0), its first thread is past the point where
    the kernel noted the exit code. The kernel shows that code to processes that may trace this one;
    others read 0. Inside a sandbox they read nothing at all (`hidepid=invisible`, proc(5));
    outside, ask `host_facts.sees_exit_codes` before this.
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
    # A thread that is not exiting could make another; if all are exiting, none comes back.
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    found = [processes.read_stat(pid, f"task/{thread}/stat") for thread in threads]
    return all(_is_exiting(fields) for fields in found if fields)  # no fields: the thread is gone


def _is_exiting(fields: list[bytes]) -> bool:
    return bool(int(fields[_FLAGS]) & _PF_EXITING)
