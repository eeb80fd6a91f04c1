"""Runtime contract: the interface that every isolation technology implements.

Its shape follows from what `engine` asks for, not from what a technology offers. It is not the
guest protocol (`runtimes.channel.channel`). The invariant: a `RuntimeSandbox` exists only after its
posture was read back and compared; no sandbox weaker than its spec can be obtained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from cellwall.model.errors import HostUnsupported, UsageError

if TYPE_CHECKING:
    import socket

    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation, IsolationLevel, Profile
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.channel.channel import GuestChannel
    from cellwall.runtimes.roots import ImageRoot, VolumeRoot
    from cellwall.runtimes.shared.saved_tree import SavedTree

_HOMES = {
    "cellwall.runtimes.keeping": ("Keepable", "KeepsSandboxes", "NotTakenOver", "TakenOver"),
    "cellwall.runtimes.roots": (
        "ImageAccounts",
        "ImageBounds",
        "ImageRoot",
        "PreparesVolumes",
        "UnpackedImage",
        "UnpacksImages",
        "VolumeRoot",
    ),
}
"""The rest of the contract, by its modules: read from here, as before, and imported when it is."""

Grade = Literal["PASS", "CAUTION", "FAIL"]
Start = Literal["fork", "exec"]
Purpose = Literal["session", "program", "single_program"]
"""What a sandbox will be used for; each needs less than the one before it.

`session`: anything. `program`: the stages of one program, with files, input and tools. A
`single_program` is one small Python program without any of these.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One host feature as found by `probe`; `doctor` prints these."""

    feature: str
    grade: Grade
    detail: str
    remedy: str = ""


class RuntimeGone(HostUnsupported):
    """A prerequisite of a runtime has gone away since the probe; the engine probes it anew."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Properties that a sandbox must have before it may start."""

    sandbox_id: str
    template: BuiltTemplate
    limits: Limits
    contexts: tuple[str, ...] = ("main",)
    """Warm interpreters to prepare; empty for sandboxes that only run commands."""
    language: str = "python"
    """Language of the contexts, by the name of a language's `context`."""
    env: Mapping[str, str] = field(default_factory=dict)
    own_env: Mapping[str, str] = field(default_factory=dict)
    """The part of `env` that is the engine's, such as where packages are; parked sandboxes have
    it."""
    demand_hard: bool = False
    """Whether to refuse a start where a limit could only be held softly."""
    start: Start = "fork"
    """`exec` gives an interpreter that shares no hash seed or layout with others; slower."""
    purpose: Purpose = "session"
    """A runtime may omit what a narrower purpose does not use; a smaller image forks faster."""
    has_network: bool = False
    """Whether it gets a way out, whose listeners are opened at the start (`OpensListeners`)."""
    image: ImageRoot | None = None
    """The image whose tree is its root; None: the template's."""
    profile: Profile = "default"
    """Which system calls it may use; one with another profile than the default is not parked."""
    lineage: str = ""
    """The fork-server that it has to come from, because it is to become a copy; empty: any."""
    volumes: tuple[VolumeRoot, ...] = ()
    """The volumes that it sees; such a sandbox is never parked."""
    saved: SavedTree | None = None
    """The sandbox that it continues as a copy, if its runtime writes whole ones down; such a
    sandbox is never parked."""
    is_awaited: bool = True
    """Whether a caller waits for the sandbox; False for one to be parked, which has time to warm
    up."""


def no_network(runtime: str) -> HostUnsupported:
    """Return the refusal of a network by a runtime that cannot enforce a policy."""
    return HostUnsupported(
        "network",
        f"network: the runtime {runtime!r} cannot give a sandbox one",
        remedy="use runtime 'jail', 'gvisor' or 'docker', or network='none'",
    )


def refuse_network(spec: SandboxSpec, runtime: str) -> None:
    """Raise `HostUnsupported` if `spec` demands a network, which `runtime` cannot enforce."""
    if spec.has_network:
        raise no_network(runtime)


def refuse_image(spec: SandboxSpec, runtime: str) -> None:
    """Raise `HostUnsupported` if `spec` demands an image as root, which `runtime` cannot give."""
    if spec.image is not None:
        raise HostUnsupported(
            "images",
            f"image: the runtime {runtime!r} cannot use one as the root of a sandbox",
            remedy="use runtime 'jail', 'gvisor' or 'docker'",
        )


def refuse_profile(spec: SandboxSpec, runtime: str) -> None:
    """Raise `HostUnsupported` if `spec` demands a profile, which `runtime` does not have."""
    if spec.profile != "default":
        raise HostUnsupported(
            "profile",
            f"profile: the runtime {runtime!r} has no {spec.profile!r}",
            remedy="use runtime 'jail', or leave the profile out",
        )


def refuse_changes(spec: SandboxSpec, runtime: str) -> None:
    """Raise `HostUnsupported` if `spec` is to show what it changes, which `runtime` cannot."""
    if spec.image is not None and spec.image.shows_changes:
        raise HostUnsupported(
            "images",
            f"image: the runtime {runtime!r} cannot show what a sandbox has changed",
            remedy="make an image of the whole root there, or use runtime 'jail'",
        )


def refuse_volumes(spec: SandboxSpec, runtime: str) -> None:
    """Raise `HostUnsupported` if `spec` demands a volume, which `runtime` cannot mount."""
    if spec.volumes:
        raise HostUnsupported(
            "volumes",
            f"volumes: the runtime {runtime!r} cannot give a sandbox one",
            remedy="use runtime 'jail', 'gvisor' or 'docker'",
        )


def refuse_hiding(spec: SandboxSpec) -> None:
    """Raise `UsageError` if a volume would hide the interpreter of a template."""
    from cellwall.model.volume import is_below  # most sandboxes have no volume

    for each in spec.volumes:
        for tree in spec.template.base_mounts if spec.image is None else ():
            if is_below(each.path, tree) or is_below(tree, each.path):
                raise UsageError(
                    f"volumes: {each.path} would hide the template's interpreter in {tree}",
                    remedy="use another path, such as /data",
                )


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
    """Counters of one sandbox, from the kernel, cumulative since the start."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    oom_kills: int = 0
    processes_refused: int = 0
    """Number of forks that the kernel refused because of the process limit."""
    processes_peak: int | None = None
    disk_full: bool = False
    """Whether the work area has no free blocks or inodes left."""
    work_bytes: int = 0
    """Bytes of memory that files of the work area hold, if they are in memory and visible."""


class RuntimeSandbox(Protocol):
    """One live sandbox of a runtime."""

    @property
    def isolation(self) -> Isolation:
        """Isolation that is in force, with posture digest and hardness per limit."""

    @property
    def posture(self) -> Mapping[str, Any]:
        """Confinement facts read back from the OS."""

    @property
    def channel(self) -> GuestChannel:
        """Connection to the guest's init."""

    async def apply_limits(self, limits: Limits) -> None:
        """Set limits from outside before caller code runs; raise if one cannot be enforced.

        Only limits that `fits` accepted may change: the others were fixed at the start.
        """

    def fits(self, spec: SandboxSpec) -> bool:
        """Report whether `apply_limits` can turn this parked sandbox into one of `spec`."""

    @property
    def fresh(self) -> KernelReadings:
        """Readings from before any code of a caller runs; read once, before that."""

    def readings(self) -> KernelReadings:
        """Read the counters; cheap, never blocks."""

    def kill(self) -> None:
        """Kill the whole tree now, by pid namespace or cgroup; idempotent, never blocks."""

    async def wait_ended(self) -> None:
        """Return when every process of the sandbox is gone."""

    async def aclose(self) -> None:
        """Kill, wait, and remove everything the sandbox had on the host; idempotent."""


@runtime_checkable
class OpensListeners(Protocol):
    """A live sandbox that can be given a way out."""

    async def open_listeners(self) -> list[socket.socket]:
        """Return listeners in its network namespace, for the egress proxy.

        The first call returns those that were opened at the start, a later one new ones: after the
        caller has closed the first.

        The order: HTTP proxy, DNS over UDP and over TCP, transparent for IPv4, and for IPv6 if
        there is one. The caller owns them. Raises HostUnsupported, SandboxBroken.
        """


@runtime_checkable
class Pauses(Protocol):
    """A live sandbox whose processes can be stopped where they are, and go on later.

    `kill` and `aclose` end a paused one as any other, and its readings stay readable.
    """

    def check_pausing(self) -> None:
        """Raise `HostUnsupported` if this host cannot pause it."""

    async def pause(self) -> None:
        """Stop every process; return when they stand still.

        It runs if this raises. Never called while `resume` is under way. Raises HostUnsupported,
        SandboxBroken.
        """

    async def resume(self) -> None:
        """Let the processes go on. Raises HostUnsupported, SandboxBroken."""


@runtime_checkable
class PagesOut(Protocol):
    """A live sandbox whose memory can be written to swap while it is paused."""

    async def page_out(self) -> None:
        """Write it to swap, where this machine has some; it comes back as it is used."""


def no_pause(runtime: str) -> HostUnsupported:
    """Return the refusal of a pause by a runtime that cannot stop processes."""
    return HostUnsupported(
        "pause",
        f"pause: the runtime {runtime!r} cannot stop the processes of a sandbox",
        remedy="use runtime 'jail', 'gvisor' or 'docker'",
    )


@dataclass(frozen=True, slots=True)
class RuntimeStatistics:
    """Counts for `/stats`, the console and tests."""

    live: int
    started: int
    failed: int
    detail: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Objects that a sweep found and removed, by kind: `processes`, `cgroups`, `directories`…"""

    removed: Mapping[str, int] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    """Dead objects of cellwall that could not be removed, with the reason."""


def served_as(runtime: Runtime, spec: SandboxSpec) -> SandboxSpec:
    """Return `spec` with the purpose that `runtime` prepares for.

    A runtime that declares `has_single_programs` prepares less for one whose interpreter is a fork;
    for the others a single program is a `program`, so that both come from one bucket of the pool.
    """
    if spec.purpose != "single_program":
        return spec
    if spec.start == "fork" and getattr(runtime, "has_single_programs", False):
        return spec
    return replace(spec, purpose="program")


class Runtime(Protocol):
    """An isolation technology. Construction is cheap and touches nothing."""

    name: str
    level: IsolationLevel

    async def probe(self) -> list[Finding]:
        """Report what this host offers; no side effects that outlive the call."""

    async def warm(self, template: BuiltTemplate) -> None:
        """Prepare a template so that `start` is fast; idempotent."""

    async def start(self, spec: SandboxSpec) -> RuntimeSandbox:
        """Start a sandbox, or raise and leave nothing behind."""

    def statistics(self) -> RuntimeStatistics:
        """Return the runtime's counts."""

    async def sweep(self) -> SweepReport:
        """Remove leftovers of dead owners, found by asking the OS."""

    async def aclose(self) -> None:
        """Destroy every sandbox and helper process of this runtime; idempotent."""


class AheadOfEngine(Protocol):
    """Processes of a runtime that were started before the engine was there."""

    @property
    def is_left(self) -> bool:
        """Whether there is something that no runtime has taken over, and that has not ended."""

    def go_on(self, template: BuiltTemplate) -> None:
        """Make ready for programs on a template; where that fails, end."""

    def close(self) -> None:
        """End what no runtime has taken over."""

    def abandon(self) -> None:
        """Close its descriptors in a forked child, and end nothing."""


@runtime_checkable
class AnswersFirst(Protocol):
    """A runtime that can answer sooner at first, before it makes ready for many starts."""

    answers_first: bool
    """Whether it does; set before anything is started."""

    def take_head_start(self, begun: AheadOfEngine) -> None:
        """Take over what was started for it; what is another runtime's is left alone."""

    async def probe_for_faults(self) -> list[Finding]:
        """Do what `probe` does, but leave out what is never a fault."""


@runtime_checkable
class KeepsReady(Protocol):
    """A runtime that keeps something ready for the next start, besides the pool's sandboxes."""

    idle_s: float
    """Seconds without a start after which it releases that; set before anything is started."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - module attributes are of any type
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
