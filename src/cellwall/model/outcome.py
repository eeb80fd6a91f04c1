"""Outcome: how a piece of code ended, and under which confinement it ran.

Data, never an exception. Built by `runtimes` and `engine` from kernel evidence; rendered by the
interfaces.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Literal

from cellwall.model.errors import UsageError

OUR_FAILURE = 125
INTERRUPTED = 130


class Verdict(StrEnum):
    """Verdict on how a piece of code ended (DESIGN.md §2)."""

    OK = "ok"
    EXCEPTION = "exception"
    NONZERO_EXIT = "nonzero_exit"
    SIGNALLED = "signalled"
    WALL_TIME = "wall_time"
    CPU_TIME = "cpu_time"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"
    OUTPUT = "output"
    SYSCALL = "syscall"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    COMPILE_ERROR = "compile_error"
    SANDBOX_ERROR = "sandbox_error"


_OWN_END = frozenset({Verdict.OK, Verdict.EXCEPTION, Verdict.NONZERO_EXIT, Verdict.SIGNALLED})
_FIXED_STATUS = {
    Verdict.WALL_TIME: 124,
    Verdict.MEMORY: 137,
    Verdict.SANDBOX_ERROR: OUR_FAILURE,
    Verdict.CANCELLED: INTERRUPTED,
    Verdict.INTERRUPTED: INTERRUPTED,
}


Profile = Literal["default", "debug"]
"""A set of system calls that a sandbox's programs may use."""


class IsolationLevel(IntEnum):
    """Ordered strength of a boundary; higher is stronger."""

    PROCESS = 0
    NAMESPACE = 1
    KERNEL = 2
    VM = 3

    @property
    def label(self) -> str:
        """Lower-case word used on every surface."""
        return self.name.lower()

    @classmethod
    def called(cls, text: str) -> IsolationLevel:
        """Return the level called `text`; `UsageError` when there is none."""
        for level in cls:
            if level.label == text:
                return level
        raise UsageError(
            f"isolation: {text!r} is not a level",
            remedy=f"levels: {', '.join(level.label for level in cls)}",
        )


@dataclass(frozen=True, slots=True)
class Isolation:
    """Isolation that was in force, read back from the OS."""

    runtime: str
    level: IsolationLevel
    posture_digest: str
    """SHA-256 over the posture as the kernel reported it, or "" where a runtime has none."""
    hardness: dict[str, str] = field(default_factory=dict)
    """By limit: `hard`, the kernel refuses or kills; `soft`, a watchdog of the engine does."""
    ids: str = "shared"
    """`own`: no other sandbox has the same user id on the host. `shared`: others have it as well,
    and the kernel's per-user counts (descriptors in flight, epoll watches, pages of pipes) cover
    all of them together."""
    profile: Profile = "default"
    """Which system calls its programs may use: `default`, or `debug`, with those of tracers."""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON for answers."""
        return {
            "runtime": self.runtime,
            "level": self.level.label,
            "posture": self.posture_digest,
            "limits": dict(self.hardness),
            "ids": self.ids,
            "profile": self.profile,
        }


@dataclass(frozen=True, slots=True)
class NetworkUsage:
    """What passed the egress proxy, which counts it outside the sandbox."""

    connections: int = 0
    """Number of connections that were allowed and made."""
    refused: int = 0
    """Number of connections, requests and questions for names that were refused."""
    sent_bytes: int = 0
    """Bytes from the sandbox to the outside."""
    received_bytes: int = 0
    """Bytes from the outside to the sandbox."""

    def since(self, before: NetworkUsage) -> NetworkUsage:
        """Return what was added to `before`."""
        return NetworkUsage(
            self.connections - before.connections,
            self.refused - before.refused,
            self.sent_bytes - before.sent_bytes,
            self.received_bytes - before.received_bytes,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources used, from the kernel's counters where there are any."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    processes_peak: int | None = None
    """Highest number of processes; None where the kernel does not count it."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    network: NetworkUsage | None = None
    """Use of the network since the execution before it; None where the sandbox has none."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """Bytes that were produced and not kept: of each stream, and of all displays together."""

    stdout: int = 0
    stderr: int = 0
    display: int = 0

    def __bool__(self) -> bool:
        """Report whether anything was cut."""
        return bool(self.stdout or self.stderr or self.display)


LOST = "not brought back: "
"""Beginning of a note on a requested file that existed and is not in the answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdict plus the evidence for it."""

    verdict: Verdict
    isolation: Isolation
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage = field(default_factory=Usage)
    truncated: Truncated = field(default_factory=Truncated)
    notes: tuple[str, ...] = ()
    """Sentences for a person: which limit, what killed it, what to try."""

    @property
    def is_its_own(self) -> bool:
        """Whether the program chose its end, instead of a limit, its caller or a failure here."""
        return self.verdict in _OWN_END

    @property
    def status(self) -> int:
        """The end as one number from 0 to 255, as shells report it.

        A program that ended by itself keeps its own status, whatever number it chose; these stand
        for ends that were not its own:

            124   wall time          the status `timeout` uses
            125   cellwall failed    the program's end is unknown
            130   interrupted or cancelled
            137   memory             the status of a kernel's OOM kill
            128+n ended by signal n
            1     any other: CPU time, processes, disk, output, system call, a failed compile
        """
        fixed = _FIXED_STATUS.get(self.verdict)
        if fixed is not None:
            return fixed
        if not self.is_its_own:
            return 1
        if self.signal is not None:
            return 128 + self.signal
        if self.exit_code is not None:
            return self.exit_code
        return 0 if self.verdict is Verdict.OK else 1

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON for answers and events."""
        return {
            "verdict": self.verdict.value,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "exit_status": self.status,
            "usage": {
                "wall_s": round(self.usage.wall_s, 6),
                "cpu_s": round(self.usage.cpu_s, 6),
                "memory_peak_bytes": self.usage.memory_peak_bytes,
                "processes_peak": self.usage.processes_peak,
                "stdout_bytes": self.usage.stdout_bytes,
                "stderr_bytes": self.usage.stderr_bytes,
                "network": None if self.usage.network is None else asdict(self.usage.network),
            },
            "truncated": {
                "stdout": self.truncated.stdout,
                "stderr": self.truncated.stderr,
                "display": self.truncated.display,
            },
            "isolation": self.isolation.as_json(),
            "notes": list(self.notes),
        }
