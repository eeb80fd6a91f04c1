"""What stands for the processes of a sandbox that was hibernated by an earlier engine.

It has none, so nothing here speaks, kills or waits; a claimed sandbox has this until it wakes. The
invariant: its channel has ended, so that a request that reaches it fails as one to an ended guest.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.channel.channel import GuestChannel

if TYPE_CHECKING:
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation
    from cellwall.runtimes.base import KernelReadings, SandboxSpec


class NoProcesses:
    """A `RuntimeSandbox` without a process."""

    posture: Mapping[str, Any] = MappingProxyType({})
    """Nothing is confined; the digest of what was is in its isolation."""

    def __init__(self, isolation: Isolation, readings: KernelReadings) -> None:
        """Isolation that its processes had, and what they had used."""
        self.isolation = isolation
        self.fresh = readings
        ours, theirs = socket.socketpair()
        theirs.close()
        self.channel = GuestChannel(ours)
        self.channel.close("it is hibernated")

    async def apply_limits(self, limits: Limits) -> None:
        """Raise SandboxBroken: nothing here could hold a limit."""
        raise SandboxBroken(f"limits: there is no process for {limits}"[:200])

    def fits(self, spec: SandboxSpec) -> bool:
        """Report that it can become no other sandbox."""
        del spec
        return False

    def readings(self) -> KernelReadings:
        """Return what its processes had used."""
        return self.fresh

    def kill(self) -> None:
        """Do nothing: there is nothing to kill."""

    async def wait_ended(self) -> None:
        """Return at once."""

    async def aclose(self) -> None:
        """Do nothing: it has nothing on the host."""
