"""A sandbox that an owner holds: the runtime's object plus what the engine must know of it.

Used by one-shot runs and by the public sandbox object alike; not public itself. The invariant:
once `kill` was called it serves nobody again. Whether memory is a reason is for the owner's object
(`sandbox`) to say.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cellwall.engine.attempts.verdicts import Cause
from cellwall.model.errors import SandboxUnavailable
from cellwall.runtimes.channel.replies import ChannelLost

if TYPE_CHECKING:
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.model.outcome import Isolation
    from cellwall.runtimes.base import KernelReadings, RuntimeSandbox, SandboxSpec
    from cellwall.runtimes.channel.channel import GuestChannel


class Live:
    """One claimed sandbox."""

    __slots__ = (
        "_fresh",
        "active_at",
        "begun",
        "channel",
        "claimed_kills",
        "ended_because",
        "isolation",
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
        """Executions and commands so far."""
        self.active_at = time.monotonic()
        self.ended_because = ""
        self.claimed_kills = 0
        """Of the kernel's kills for memory, those that were the reason of an end already told."""
        self.unknown_kills = 0
        """Those that no execution was charged with: more than one may have lost a process."""
        self.trust: str | None = None
        """The word of trust it was asked for with, for its answers."""
        self._fresh: KernelReadings | None = fresh

    @property
    def is_alive(self) -> bool:
        """Whether it can take requests."""
        return not self.ended_because and self.channel.is_open

    def touch(self) -> None:
        """Note that its owner uses it."""
        self.active_at = time.monotonic()

    def readings(self) -> KernelReadings:
        """Read the kernel's counters now."""
        return self.runtime_sandbox.readings()

    def readings_before(self) -> KernelReadings:
        """Return what the counters were before the work that starts now."""
        self.touch()
        fresh, self._fresh = self._fresh, None
        return self.readings() if fresh is None else fresh

    def read_cpu_s(self) -> float:
        """CPU seconds of the tree since it started."""
        return self.readings().cpu_s

    def check_alive(self) -> None:
        """Raise `SandboxUnavailable`, with the reason, if it has ended."""
        if not self.is_alive:
            raise self._unavailable()

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Raise what `check_alive` does if it ends under what is asked of it in the block."""
        try:
            yield
        except ChannelLost as lost:
            raise self._unavailable() from lost

    def _unavailable(self) -> SandboxUnavailable:
        reason = self.ended_because or str(self.channel.lost)
        return SandboxUnavailable(
            f"sandbox {self.spec.sandbox_id}: it has ended: {reason}",
            remedy="create a new sandbox",
        )

    def kill(self, reason: str) -> None:
        """Kill everything in it; idempotent, the first reason is kept."""
        self.ended_because = self.ended_because or reason
        self.runtime_sandbox.kill()

    def why_it_ended(self) -> str:
        """Return the kernel's reason for the end of its channel, else that it ended."""
        try:
            kills = self.readings().oom_kills
        except OSError:  # it is on its way out, and nothing is left to be read
            kills = 0
        if not kills:
            return str(self.channel.lost)
        return f"it was killed at its memory limit of {self.spec.limits.memory_mb} MiB"

    def explain(self, reason: str) -> None:
        """Put the cause in the place of what was seen of it first: that the channel has ended."""
        if self.ended_because == str(self.channel.lost):
            self.ended_because = reason

    def stop_all(self, reason: str) -> None:
        """Kill it on its owner's wish: what runs in it ends as cancelled."""
        for recorder in list(self.running):
            recorder.settle(Cause.CANCEL, reason)
        self.kill(reason)
