"""Verdicts: one pure function from the evidence of an execution's end to a verdict.

It does not collect evidence (`attempt`, the runtimes' readings) and does not render it. The
order of the rules is the meaning of this file. It goes from causes that only the kernel or the
engine can produce to ends that the program may have faked:

1. the guest broke the protocol        → `sandbox_error`: nothing else it reported counts
2. the kernel's OOM killer struck      → `memory`, even if a timer fired afterwards: a program
                                         whose worker was killed often just hangs
3. the engine stopped it               → `cancelled`, `wall_time`, `cpu_time`
4. it did not end well and the kernel  → `processes`, `disk`
   counted a refusal
5. the sandbox vanished                → `sandbox_error`
6. the kernel's limit signals          → SIGXCPU `cpu_time` (only if that much CPU was really
                                         used: every process can raise a signal), SIGXFSZ `disk`,
                                         SIGSYS `syscall`
7. an interrupt by the engine          → `interrupted`
8. its own end                         → `signalled`, `exception`, `nonzero_exit`
9. output was cut, otherwise fine      → `output`
10.                                    → `ok`

An exit code never stands for a limit: a program may exit with 137 or 124 at will.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from cellwall.model.limits import Limits
from cellwall.model.outcome import Truncated, Verdict

ONE_DISPLAY_MB = 1
DISPLAYS_MB = 8
"""Limits in MiB of the displays that the guest sends, one and all together; no limit of a caller
changes them."""


class Cause(StrEnum):
    """Cause of an execution's end."""

    ITSELF = "itself"
    CANCEL = "cancel"
    WALL = "wall"
    CPU = "cpu"
    LOST = "lost"
    HOSTILE = "hostile"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of the end of one execution or command."""

    limits: Limits
    cause: Cause = Cause.ITSELF
    exit_code: int | None = None
    signal: int | None = None
    raised: bool = False
    interrupted: bool = False
    """Whether the engine sent an interrupt and the program ended by KeyboardInterrupt or SIGINT."""
    cpu_s: float = 0.0
    oom_kills: int = 0
    """Number of memory kills that hit this execution's processes."""
    processes_refused: int = 0
    """Number of refused forks during this execution."""
    is_crowd: bool = False
    """Whether its remaining processes were most of those allowed, and were ended for that."""
    disk_full: bool = False
    softly_held_bytes: int = 0
    """Bytes of the largest process's peak by its wait status, where memory is held softly."""
    cut: Truncated = field(default_factory=Truncated)
    detail: str = ""
    """Reason why the channel was lost, or its sandbox ended it, if that was so."""


Finding = tuple[Verdict, str]


def _protocol(e: Evidence) -> Finding | None:
    if e.cause is not Cause.HOSTILE:
        return None
    return Verdict.SANDBOX_ERROR, f"the inside broke the guest protocol ({e.detail})"


def _memory(e: Evidence) -> Finding | None:
    if not e.oom_kills:
        return None
    return (
        Verdict.MEMORY,
        f"{e.oom_kills} of its processes had to be killed at the memory limit of "
        f"{e.limits.memory_mb} MiB; raise limits.memory_mb if that was too little",
    )


def _stopped(e: Evidence) -> Finding | None:
    if e.cause is Cause.CANCEL:
        return Verdict.CANCELLED, e.detail or "stopped by its caller"
    if e.cause is Cause.WALL:
        return (
            Verdict.WALL_TIME,
            f"stopped after {e.limits.wall_s:g} s of wall time; raise timeout (limits.wall_s)"
            + _besides(e),
        )
    if e.cause is Cause.CPU:
        return (
            Verdict.CPU_TIME,
            f"stopped after {e.limits.cpu_s:g} s of CPU time; raise limits.cpu_s" + _besides(e),
        )
    return None


def _besides(e: Evidence) -> str:
    """Name a possible reason of the delay: a shell, for one, repeats a refused fork."""
    if not e.processes_refused:
        return ""
    return f"; it had also reached the limit of {e.limits.processes} processes and threads"


def _ended_badly(e: Evidence) -> bool:
    return e.cause is Cause.LOST or e.raised or bool(e.signal) or bool(e.exit_code)


def _refused(e: Evidence) -> Finding | None:
    if not (_ended_badly(e) or e.is_crowd):
        return None
    if e.softly_held_bytes >= e.limits.memory_bytes:
        return (
            Verdict.MEMORY,
            f"one process reached {e.softly_held_bytes >> 20} MiB, above the limit of "
            f"{e.limits.memory_mb} MiB; raise limits.memory_mb if that was too little",
        )
    if e.processes_refused:
        return (
            Verdict.PROCESSES,
            f"the limit of {e.limits.processes} processes and threads was reached "
            f"{e.processes_refused} times; raise limits.processes",
        )
    if e.disk_full:
        return (
            Verdict.DISK,
            f"the work area of {e.limits.disk_mb} MiB and {e.limits.inodes} files is full; "
            "raise limits.disk_mb or limits.inodes",
        )
    return None


def _lost(e: Evidence) -> Finding | None:
    if e.cause is not Cause.LOST:
        return None
    return Verdict.SANDBOX_ERROR, f"the sandbox ended under it ({e.detail})"


def _limit_signal(e: Evidence) -> Finding | None:
    if e.signal == signal.SIGXCPU and e.cpu_s >= 0.9 * min(e.limits.cpu_s, 1e9):
        return Verdict.CPU_TIME, f"the kernel ended it after {e.cpu_s:.2f} s of CPU time"
    if e.signal == signal.SIGXFSZ:
        return (
            Verdict.DISK,
            f"it wrote a file above {e.limits.file_mb} MiB; raise limits.file_mb",
        )
    if e.signal == signal.SIGSYS:
        return Verdict.SYSCALL, "the kernel ended it at a system call that is not allowed"
    return None


def _own_end(e: Evidence) -> Finding | None:
    if e.interrupted:
        return Verdict.INTERRUPTED, "interrupted by its caller"
    if e.signal:
        return Verdict.SIGNALLED, f"ended by {_signal_name(e.signal)}"
    if e.raised:
        return Verdict.EXCEPTION, ""
    if e.exit_code:
        return Verdict.NONZERO_EXIT, ""
    return None


def _output(e: Evidence) -> Finding | None:
    notes = []
    if e.cut.stdout or e.cut.stderr:
        notes.append(
            f"output above {e.limits.output_kb} KiB per stream was cut; raise limits.output_kb"
        )
    if e.cut.display:
        notes.append(
            f"displays were cut: one may hold {ONE_DISPLAY_MB} MiB, "
            f"all of one execution {DISPLAYS_MB} MiB; write what is larger to a file"
        )
    return (Verdict.OUTPUT, "; ".join(notes)) if notes else None


RULES: tuple[Callable[[Evidence], Finding | None], ...] = (
    _protocol,
    _memory,
    _stopped,
    _refused,
    _lost,
    _limit_signal,
    _own_end,
    _output,
)


def classify(evidence: Evidence) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict and sentences for a person."""
    for rule in RULES:
        finding = rule(evidence)
        if finding is not None:
            verdict, note = finding
            return verdict, ((note,) if note else ())
    return Verdict.OK, ()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
