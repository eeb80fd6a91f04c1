"""Runtime contract, the part of sandboxes that outlive the process that started them.

It goes with `base`, the contract of every runtime. The invariant: a sandbox of an earlier server is
either taken over whole or was killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from cellwall.runtimes.base import RuntimeSandbox, SandboxSpec
    from cellwall.runtimes.channel.take_over import Found


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A sandbox of an earlier server, alive in this one."""

    sandbox: RuntimeSandbox
    spec: SandboxSpec
    """As it is now, without its variables."""
    owner: Mapping[str, Any]
    """What `Keepable.keep` was told last."""
    found: Found
    """What init reported."""
    was_paused: bool
    """Whether its processes stood still; they run now."""


@dataclass(frozen=True, slots=True)
class NotTakenOver:
    """A sandbox of an earlier server, which was killed instead."""

    sandbox_id: str
    reason: str


@runtime_checkable
class Keepable(Protocol):
    """A live sandbox that may outlive this process."""

    def keep(self, owner: Mapping[str, Any]) -> bool:
        """Have it outlive this process, with what its owner must know then; again to change that.

        Returns False if it is of a kind that cannot. Raises UsageError, SandboxBroken.
        """

    def leave(self) -> None:
        """Give it up and end nothing: the next server takes it over."""


@runtime_checkable
class KeepsSandboxes(Protocol):
    """A runtime whose sandboxes may outlive this process."""

    def keep_sandboxes(self) -> None:
        """Do so, from before the first start. Raises HostUnsupported, Conflict."""

    async def take_over(self) -> list[TakenOver | NotTakenOver]:
        """Take over what an earlier process of this state directory has left."""

    async def wait_kept(self) -> None:
        """Wait for what sandboxes are still to keep, before they are left, but not for long."""
