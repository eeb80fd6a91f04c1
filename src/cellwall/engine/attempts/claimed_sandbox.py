"""Claimed sandbox: the runtime's sandbox object, plus what the engine records about it.

Used by one-shot runs and by the public sandbox object; not public itself. The invariant: after
`kill` the sandbox serves no request again. Whether the memory limit was the reason is decided by
the owner's object (`sandbox`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.engine.attempts.verdicts import Cause
from cellwall.model.errors import CellwallError, Conflict, SandboxUnavailable
from cellwall.runtimes.channel.replies import ChannelLost

if TYPE_CHECKING:
    from cellwall.engine.attempts.deadlines import Deadlines
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.model.network import NetworkPolicy
    from cellwall.model.outcome import Isolation, NetworkUsage, Outcome
    from cellwall.runtimes.base import KernelReadings, RuntimeSandbox, SandboxSpec
    from cellwall.runtimes.channel.channel import GuestChannel


class WayOut(Protocol):
    """A sandbox's way to the outside, which `engine.parts.network` makes."""

    policy: NetworkPolicy
    log: deque[dict[str, Any]]

    @property
    def is_opened(self) -> bool:
        """Whether TLS is opened in it, or secrets are put into requests."""

    async def set(self, policy: NetworkPolicy) -> None:
        """Change the policy; connections that it does not allow are closed."""

    async def usage(self) -> NetworkUsage:
        """Return the use since the start of the sandbox."""

    async def added_to(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the use since the last one."""


class Pausing(Protocol):
    """A sandbox's pauses, which `engine.parts.pausing` makes."""

    @property
    def is_paused(self) -> bool:
        """Whether its processes stand still."""

    @property
    def has_paused(self) -> bool:
        """Whether its processes stand still, and no request has come since."""

    @property
    def paused_s(self) -> float:
        """Seconds that its processes have stood still so far."""

    def enter(self) -> None:
        """Note a request: a paused sandbox begins to resume. Raises Conflict if it must not."""

    async def arrive(self) -> None:
        """Do that, and bring a hibernated sandbox back before. Raises the error of that."""

    def wake(self) -> None:
        """Begin to resume, for a request to end something, which is never refused."""


class ClaimedSandbox:
    """One claimed sandbox."""

    __slots__ = (
        "_earlier_cpu_s",
        "_fresh",
        "active_at",
        "asleep",
        "begun",
        "channel",
        "claimed_kills",
        "clocks",
        "copies_under_way",
        "ended_because",
        "ending",
        "is_restoring",
        "isolation",
        "network",
        "on_released",
        "pausing",
        "running",
        "runtime_sandbox",
        "spec",
        "trust",
        "unknown_kills",
    )

    def __init__(
        self, runtime_sandbox: RuntimeSandbox, spec: SandboxSpec, fresh: KernelReadings
    ) -> None:
        """`fresh` are the readings taken when it was ready, before any code of a caller ran."""
        self.runtime_sandbox = runtime_sandbox
        self.spec = spec
        self.channel: GuestChannel = runtime_sandbox.channel
        self.isolation: Isolation = runtime_sandbox.isolation
        self.running: set[Recorder] = set()
        self.begun = 0
        """Number of executions and commands begun so far."""
        self.active_at = time.monotonic()
        self.ended_because = ""
        self.claimed_kills = 0
        """Number of the kernel's memory kills that were already reported as the reason of an
        end."""
        self.unknown_kills = 0
        """Number of memory kills not attributed to any execution: more than one may have lost a
        process."""
        self.on_released: Callable[[], None] | None = None
        """What lets go of what it needs as long as it lives; called once, when it is released."""
        self.is_restoring = False
        """Whether its work area is being rolled back: nothing may begin in it meanwhile."""
        self.copies_under_way = 0
        """Number of copies of it that are being written: its work area stays as it is meanwhile."""
        self.clocks: set[Deadlines] = set()
        """The clocks that run: they stand still while the sandbox does."""
        self.ending: set[Recorder] = set()
        """Executions and commands that are being ended, or whose end is being looked into."""
        self.pausing: Pausing | None = None
        """Its pauses; None for a sandbox of one program, which has none."""
        self.network: WayOut | None = None
        """Its way out; None if it has none."""
        self.trust: str | None = None
        """Trust word of the request, repeated in its answers."""
        self.asleep: KernelReadings | None = None
        """The last readings of one that is hibernated: it has no processes."""
        self._fresh: KernelReadings | None = fresh
        self._earlier_cpu_s = 0.0
        """CPU seconds of its processes before it was hibernated."""

    def be_called(self, sandbox_id: str) -> None:
        """Have the id that it was claimed for, which its runtime does not know; empty: as it is."""
        if sandbox_id:
            self.spec = replace(self.spec, sandbox_id=sandbox_id)

    @property
    def is_alive(self) -> bool:
        """Whether it can take requests."""
        return not self.ended_because and (self.asleep is not None or self.channel.is_open)

    def touch(self) -> None:
        """Note that its owner uses it."""
        self.active_at = time.monotonic()

    def readings(self) -> KernelReadings:
        """Read the kernel's counters now."""
        if self.asleep is not None:
            return self.asleep
        now = self.runtime_sandbox.readings()
        earlier_s = self._earlier_cpu_s
        return replace(now, cpu_s=now.cpu_s + earlier_s) if earlier_s else now

    def readings_before(self) -> KernelReadings:
        """Return the counters from before the work that starts now.

        Raises `Conflict` if nothing may start now.
        """
        self._check_steady()
        self.touch()
        fresh, self._fresh = self._fresh, None
        return self.readings() if fresh is None else fresh

    def _check_steady(self) -> None:
        if self.is_restoring:
            raise Conflict(
                "sandbox: its work area is being rolled back", remedy="try again", is_passing=True
            )

    @contextlib.contextmanager
    def being_copied(self) -> Iterator[None]:
        """Count a copy that is being written. Raises `Conflict` during a rollback."""
        self._check_steady()
        self.copies_under_way += 1
        try:
            yield
        finally:
            self.copies_under_way -= 1

    @property
    def paused_s(self) -> float:
        """Seconds that it has been paused so far."""
        return 0.0 if self.pausing is None else self.pausing.paused_s

    def read_cpu_s(self) -> float:
        """Return the CPU seconds of its process tree since the start."""
        return self.readings().cpu_s

    def check_alive(self) -> None:
        """Raise `SandboxUnavailable`, with the reason, if it has ended."""
        if not self.is_alive:
            raise self._unavailable()

    async def enter(self) -> None:
        """Begin a request of its owner's: it is in use, and resumes if it is paused.

        What is sent meanwhile waits in the channel; a hibernated one is there again before this
        returns. Raises SandboxUnavailable, Conflict if it is paused and its owner resumes it by
        hand, and what bringing it back raises, such as CapacityError.
        """
        self.check_alive()
        if self.pausing is not None:
            await self.pausing.arrive()
        self.touch()

    def knock(self) -> None:
        """Do what `enter` does for what has begun earlier, also if the sandbox has ended.

        Nothing that began before a hibernation goes on after it: this brings nothing back.
        """
        if self.pausing is not None:
            self.pausing.enter()
        self.touch()

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Raise the error of `check_alive` if the sandbox ends during the block."""
        try:
            yield
        except ChannelLost as lost:
            raise self._unavailable() from lost

    def _unavailable(self) -> CellwallError:
        if self.is_alive:
            return Conflict(
                f"sandbox {self.spec.sandbox_id}: it was hibernated in the middle of this request",
                remedy="make the request again",
                is_passing=True,
            )
        reason = self.ended_because or str(self.channel.lost)
        return SandboxUnavailable(
            f"sandbox {self.spec.sandbox_id}: it has ended: {reason}",
            remedy="create a new sandbox",
        )

    # -- without processes -----------------------------------------------------------------

    def put_to_sleep(self) -> ClaimedSandbox:
        """Go on without processes; return what has them, which is to be released."""
        now = self.readings()
        left = ClaimedSandbox(self.runtime_sandbox, self.spec, now)
        left.on_released, self.on_released = self.on_released, None
        self.asleep = replace(now, memory_bytes=0, work_bytes=0)
        return left

    def wake_as(self, fresh: ClaimedSandbox) -> None:
        """Go on with the processes of a fresh sandbox, under the id that it has."""
        if self.asleep is not None:
            self._earlier_cpu_s = self.asleep.cpu_s
        fresh.channel.go_past(self.channel.last_id)
        self.runtime_sandbox, self.channel = fresh.runtime_sandbox, fresh.channel
        self.isolation, self.on_released = fresh.isolation, fresh.on_released
        self.spec = replace(fresh.spec, sandbox_id=self.spec.sandbox_id)
        self.claimed_kills = self.unknown_kills = 0
        self.asleep = self._fresh = None

    def kill(self, reason: str) -> None:
        """Kill every process in it; idempotent, the first reason is kept."""
        self.ended_because = self.ended_because or reason
        self.runtime_sandbox.kill()

    def why_it_ended(self) -> str:
        """Return the reason why the channel ended: a memory kill, or the channel's own error."""
        try:
            kills = self.readings().oom_kills
        except OSError:  # the sandbox is being removed and has no counters left
            kills = 0
        if not kills:
            return str(self.channel.lost)
        return f"it was killed at its memory limit of {self.spec.limits.memory_mb} MiB"

    def explain(self, reason: str) -> None:
        """Replace the first symptom of the end, the lost channel, by its cause."""
        if self.ended_because == str(self.channel.lost):
            self.ended_because = reason

    def stop_all(self, reason: str) -> None:
        """Kill it at its owner's request: running executions end as cancelled."""
        for recorder in list(self.running):
            recorder.settle(Cause.CANCEL, reason)
        self.kill(reason)
