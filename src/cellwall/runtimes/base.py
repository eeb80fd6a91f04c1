"""The contract every isolation technology fulfils.

Shaped by what `engine` asks for, not by what a technology offers. Not the guest protocol (that is
`runtimes.channel.channel`). The invariant: a `RuntimeSandbox` exists only after its posture was
read back and compared; there is no way to get one that is weaker than its spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from cellwall.model.errors import HostUnsupported

if TYPE_CHECKING:
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation, IsolationLevel
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.channel.channel import GuestChannel

Grade = Literal["PASS", "CAUTION", "FAIL"]
Start = Literal["fork", "exec"]
Purpose = Literal["program", "session"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One host feature as `probe` found it; `doctor` prints these."""

    feature: str
    grade: Grade
    detail: str
    remedy: str = ""


class RuntimeGone(HostUnsupported):
    """What a runtime stands on has gone away since it was probed; the engine asks it anew."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox has to be before it may start."""

    sandbox_id: str
    template: BuiltTemplate
    limits: Limits
    contexts: tuple[str, ...] = ("main",)
    """Warm interpreters to have ready; empty for sandboxes that only run commands."""
    language: str = "python"
    """What those speak, by the name of a language's `context`."""
    env: Mapping[str, str] = field(default_factory=dict)
    demand_hard: bool = False
    """Refuse to start where a limit could only be held softly."""
    start: Start = "fork"
    """`exec` gives an interpreter that shares no hash seed or layout with others; slower."""
    purpose: Purpose = "session"
    """`program` may leave out what only a session's cells use; a smaller image forks faster."""
    is_alone: bool = False
    """One small Python program is all that it will ever be asked for: no input, files or tools.

    Only for a runtime that says `runs_alone`, and so makes less for such a one."""
    is_awaited: bool = True
    """Somebody waits for it; False for one to be parked, which has time to make itself warm."""


def refuse_soft(spec: SandboxSpec, hardness: Mapping[str, str], who: str) -> None:
    """Raise `HostUnsupported` if `spec` demands hard limits and `who` holds some softly."""
    weak = sorted(name for name, how in hardness.items() if how == "soft")
    if spec.demand_hard and weak:
        raise HostUnsupported(
            "hard limits",
            f"{who}: start a sandbox with hard limits: {', '.join(weak)} can only be held softly",
            remedy="use isolation='namespace' (runtime 'jail') where all limits must be hard",
        )


@dataclass(frozen=True, slots=True)
class KernelReadings:
    """Counters of one sandbox, from the kernel, cumulative since it started."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    oom_kills: int = 0
    processes_refused: int = 0
    """Forks the kernel refused because of the process limit."""
    processes_peak: int | None = None
    disk_full: bool = False
    """The work area has no free blocks or inodes left."""
    work_bytes: int = 0
    """Memory that files of the work area hold, where they are in memory and that can be seen."""


class RuntimeSandbox(Protocol):
    """One live sandbox of a runtime."""

    @property
    def isolation(self) -> Isolation:
        """Which isolation really runs, with posture digest and hardness per limit."""

    @property
    def posture(self) -> Mapping[str, Any]:
        """The confinement facts read back from the OS."""

    @property
    def channel(self) -> GuestChannel:
        """The connection to the guest's init."""

    async def apply_limits(self, limits: Limits) -> None:
        """Set limits from outside before caller code runs; raise if one cannot be enforced.

        Only what `fits` accepted may change: the rest was fixed at the start.
        """

    def fits(self, spec: SandboxSpec) -> bool:
        """Report whether `apply_limits` can turn this parked sandbox into one of `spec`."""

    @property
    def fresh(self) -> KernelReadings:
        """What `readings` says before any code of a caller runs; asked for once, before that."""

    def readings(self) -> KernelReadings:
        """Read the counters; cheap, never blocks."""

    def kill(self) -> None:
        """Kill the whole tree now, by pid namespace or cgroup; idempotent, never blocks."""

    async def wait_ended(self) -> None:
        """Return when every process of the sandbox is gone."""

    async def aclose(self) -> None:
        """Kill, wait, and remove everything the sandbox had on the host; idempotent."""


@dataclass(frozen=True, slots=True)
class RuntimeStatistics:
    """Counts for `/stats`, the console and tests."""

    live: int
    started: int
    failed: int
    detail: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep found and removed, by kind: `processes`, `cgroups`, `directories`…"""

    removed: Mapping[str, int] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    """Objects that are ours, dead, and could not be removed, with the reason."""


def runs_alone(runtime: Runtime) -> bool:
    """Whether a runtime may be asked for a sandbox that `is_alone`; most know of no such thing."""
    return bool(getattr(runtime, "runs_alone", False))


class Runtime(Protocol):
    """An isolation technology. Construction is cheap and touches nothing."""

    name: str
    level: IsolationLevel

    async def probe(self) -> list[Finding]:
        """Say what this host offers; no side effects that outlive the call."""

    async def warm(self, template: BuiltTemplate) -> None:
        """Get a template ready so that `start` is fast; idempotent."""

    async def start(self, spec: SandboxSpec) -> RuntimeSandbox:
        """Start a sandbox, or raise and leave nothing behind."""

    def statistics(self) -> RuntimeStatistics:
        """Return counts."""

    async def sweep(self) -> SweepReport:
        """Remove leftovers of dead owners, found by asking the OS."""

    async def aclose(self) -> None:
        """Destroy every sandbox and helper process of this runtime; idempotent."""


@runtime_checkable
class KeepsReady(Protocol):
    """A runtime that has something ready for the next start, besides the pool's sandboxes."""

    idle_s: float
    """Seconds without a start after which it lets go of that; set before anything is started."""
