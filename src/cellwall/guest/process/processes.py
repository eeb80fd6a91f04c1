"""Process calls that init needs of the kernel: how a process ended, what it used, how to signal it.

Contexts, commands and workers use this. No state, no policy.

A pid may be signalled only while its process is unreaped; after `wait4` it can belong to any
process.
"""

from __future__ import annotations

# The C module under `signal`: the wrapper turns numbers into enum members, a page each.
import _signal  # type: ignore[import-not-found]
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")

_SIGINT: int = _signal.SIGINT
SIGCHLD: int = _signal.SIGCHLD
_SIGKILL: int = _signal.SIGKILL
DEFAULT_IN_CHILDREN: tuple[int, ...] = (
    SIGCHLD,
    _signal.SIGTERM,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)
_IGNORED_BY_INIT = (_SIGINT, *(number for number in DEFAULT_IN_CHILDREN if number != SIGCHLD))


class Exit:
    """The kernel's word on how a process ended."""

    __slots__ = ("exit_code", "rusage", "signal")

    def __init__(self, exit_code: int | None, signal: int | None, rusage: dict[str, int]) -> None:
        """One of `exit_code` and `signal` is None; `rusage` is in microseconds and KiB."""
        self.exit_code = exit_code
        self.signal = signal
        self.rusage = rusage


def leader_of(task: int) -> int:
    """Return the process to which a thread belongs, as the kernel reports it; 0 if it is gone."""
    try:
        with open(f"/proc/{task}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("Tgid:"):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return 0


def exit_from(status: int, usage: struct_rusage) -> Exit:
    """Convert a wait status and its usage."""
    rusage = {
        "user_us": int(usage.ru_utime * 1_000_000),
        "system_us": int(usage.ru_stime * 1_000_000),
        "maxrss_kib": usage.ru_maxrss,
    }
    if os.WIFSIGNALED(status):
        return Exit(None, os.WTERMSIG(status), rusage)
    return Exit(os.WEXITSTATUS(status), None, rusage)


class LivingUsage:
    """Usage of a living process from now on, with the children that it waits for."""

    def __init__(self, pid: int, previous: LivingUsage | None = None) -> None:
        """Counting starts now; what `previous` read at its end need not be read again."""
        self._pid = pid
        self._total_us = self._read_total_us()
        self._ticks: tuple[int, ...] = self._read_stat()[0] if previous is None else previous._ticks

    def since_start(self) -> dict[str, int]:
        """Return the usage since the beginning; system time has the precision of a clock tick."""
        total_us = self.processor_us()
        ticks, resident_kib = self._read_stat()
        system, child_user, child_system = (
            max(0, now - before) * TICK_US for now, before in zip(ticks, self._ticks)
        )
        system_us = min(total_us, system)
        self._ticks = ticks
        # The peak memory would be another file to read for every cell; the host has the cgroup's.
        return {
            "user_us": total_us - system_us + child_user,
            "system_us": system_us + child_system,
            "maxrss_kib": resident_kib,
        }

    def processor_us(self) -> int:
        """Return the processor time in µs since the beginning, without that of children."""
        return max(0, self._read_total_us() - self._total_us)

    def _read_total_us(self) -> int:
        return processor_ns(self._pid) // 1000

    def _read_stat(self) -> tuple[tuple[int, int, int], int]:
        """Return stime, cutime and cstime of proc_pid_stat(5), and the resident memory in KiB."""
        fields = read_stat(self._pid)
        if len(fields) <= 21:
            return (0, 0, 0), 0
        times = (int(fields[12]), int(fields[13]), int(fields[14]))
        return times, int(fields[21]) * _PAGE_KIB


def processor_ns(pid: int) -> int:
    """Return the ns of CPU of a whole process, dead or alive; 0 once it has been waited for."""
    try:
        # CPUCLOCK_SCHED of the whole process, clock_getcpuclockid(3).
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def read_stat(pid: int, name: str = "stat") -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the third on; none if the process is gone.

    The second field is a name that may hold any character, so the fields count from its closing
    bracket.
    """
    return read_proc(pid, name).rpartition(b")")[2].split()


def read_proc(pid: int, name: str) -> bytes:
    """Return a short file of a process's directory in /proc; empty if it cannot be read."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def private_bytes(pid: int) -> int:
    """Return the bytes of resident memory that belong to no file; 0 if the process is gone.

    The source is proc_pid_statm(5).
    """
    fields = read_proc(pid, "statm").split()
    if len(fields) <= 2:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_KIB * 1024


def read_whole(path: str) -> bytes:
    """Return a short file of /proc; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def fork_quietly() -> int:
    """Call fork(2) without CPython's fork hooks, in a process with one thread that is at rest.

    The hooks mend locks that another thread may hold and restart what threads did. With one thread
    there is nothing to mend, and the hooks write to hundreds of pages that every context would then
    copy. libc's own handlers run. `reseed.py` takes care of random generators. Raises OSError.
    """
    from cellwall.guest.process import libc

    return libc.fork()


def set_dumpable(wanted: bool) -> None:
    """Decide whether processes of the same user may inspect this one. Best effort."""
    # SECURITY: init holds the channel; its /proc/1/mem and /proc/1/fd must not be a way to it.
    _prctl(PR_SET_DUMPABLE, int(wanted))


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, as pid 1 is by birth."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    from cellwall.guest.process import libc

    libc.prctl(option, value)


def reset_signals() -> None:
    """Give a forked child the signal state of a fresh Python interpreter."""
    _signal.set_wakeup_fd(-1)
    for number in DEFAULT_IN_CHILDREN:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_SIGINT, _signal.default_int_handler)


def ignore_signals() -> None:
    """Ignore the signals that would end an ordinary process; SIGINT would become an exception."""
    for number in _IGNORED_BY_INIT:
        _signal.signal(number, _signal.SIG_IGN)


def _do_nothing(_number: int, _frame: object) -> None:
    """Do nothing; a handler has to exist for the signal to reach the wake-up descriptor."""


def wake_on_child(wakeup_fd: int) -> None:
    """Have a byte written to `wakeup_fd` whenever a child ends."""
    _signal.signal(SIGCHLD, _do_nothing)
    _signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)


def await_children() -> int:
    """Return a descriptor that becomes readable whenever a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    wake_on_child(writable)
    return readable


def become_init() -> None:
    """Make this process an init, whatever it was before."""
    confine()
    settle()
    if os.getpid() != 1:
        adopt_orphans()


def settle() -> None:
    """Take on what of an init a fork-server can have for all of its sandboxes."""
    ignore_signals()
    os.umask(0o022)
    os.chdir("/")


def confine() -> None:
    """Hide init's descriptors from its children, and init from processes of the same user."""
    # SECURITY: no command may inherit the channel, nor anything a runtime left open.
    bequeath_nothing(3)
    set_dumpable(False)


def bequeath_nothing(first_fd: int) -> None:
    """Mark every open descriptor from `first_fd` on as not to be inherited by programs."""
    from cellwall.guest.process import libc

    if libc.close_on_exec_from(first_fd):
        return
    # Older than Linux 5.11 or glibc 2.34.
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= first_fd:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                continue  # the listing's own descriptor is gone


def close_from(first_fd: int) -> None:
    """Close every descriptor from `first_fd` on."""
    os.closerange(first_fd, max(os.sysconf("SC_OPEN_MAX"), 4096))


def ended_child() -> int | None:
    """Return a child that has ended and was not waited for; until then its pid stays valid."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def session_of(pid: int) -> int:
    """Return the session of a child that may have ended, before wait4(2); 0 if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def signal_process(pid: int, number: int) -> None:
    """Signal one process; its absence is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def signal_group(pid: int, number: int) -> None:
    """Signal a process and its group (the group it was given; it may have left that)."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        signal_process(pid, number)
        return
    if number == _SIGKILL:
        signal_process(pid, number)


def signal_session(leader: int, number: int) -> None:
    """Signal every process of a session: a shell with job control keeps many groups in it."""
    members = _session_members(leader)
    for pid in members or [leader]:
        signal_process(pid, number)


def _session_members(leader: int) -> list[int]:
    members = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            fields = read_stat(int(name))
            if len(fields) > 3 and int(fields[3]) == leader:  # proc(5): session
                members.append(int(name))
    return members


def kill_descendants() -> None:
    """Kill and reap every process below this one; for an init whose end ends no namespace."""
    while True:
        for pid in _children():
            signal_process(pid, _SIGKILL)
        try:
            # Orphans of the processes that die here become children of init and are found next
            # round.
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as listing:
            return [int(pid) for pid in listing.read().split()]
    except OSError:
        return []
