"""A process that clones sandboxes, one of a fork-server: which one it is, and where.

Called by `runtimes.jail.fork_server` and `runtimes.jail.runtime`. Not how it is asked
(`fork_server`). The invariant: a worker is in the cgroups of the next sandbox, and of no living
one, when it clones.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import NamedTuple

from cellwall.jail.inspect import posture
from cellwall.jail.protocol import fds
from cellwall.linux import owner_label
from cellwall.linux.cgroups import sandbox_groups
from cellwall.model.errors import HostUnsupported, SandboxBroken


class Berth(NamedTuple):
    """Cgroups a worker will move itself to, and the open files through which it does."""

    groups: sandbox_groups.Groups
    entrances: tuple[int, ...]

    def close(self) -> None:
        """Close the files; the directories stay."""
        fds.close_all(self.entrances)


@dataclass(slots=True)
class Worker:
    """One process of a fork-server that clones sandboxes, one after the other."""

    control: socket.socket
    purpose: str
    pid: int
    """On the host."""
    started: int | None
    groups: sandbox_groups.Groups | None = None
    """Where it is now: the cgroups of the next sandbox, which is born into them."""
    berth: Berth | None = None
    """Where it goes by itself once it has cloned that one; None where the host has to move it."""

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return self.started is None or owner_label.start_time(self.pid) != self.started

    def move(self, groups: sandbox_groups.Groups) -> None:
        """Put the worker into other cgroups; raise if it is gone, or its pid somebody else's."""
        if self.is_gone:
            raise SandboxBroken("fork-server: a worker is gone before it could be moved")
        try:
            groups.join(self.pid)
        except HostUnsupported as error:
            if error.errno != errno.ESRCH:
                raise
            raise SandboxBroken("fork-server: a worker ended while it was moved") from error
        self.groups = groups

    def let_go(self) -> list[sandbox_groups.Groups]:
        """Forget where it is and where it would go; returns the directories, to be removed."""
        held = [] if self.groups is None else [self.groups]
        if self.berth is not None:
            held.append(self.berth.groups)
            self.berth.close()
        self.groups = self.berth = None
        return held

    def arrive(self) -> None:
        """It says that it has gone to its berth.

        SECURITY: the kernel is asked, because the worker imported packages that nobody reviewed,
        and nothing of ours may be in a sandbox's cgroups when caller code comes.
        """
        if self.berth is None:
            return
        found = sandbox_groups.places(posture.read_text(f"/proc/{self.pid}/cgroup"))
        if not self.berth.groups.expected_lines() <= found:
            raise SandboxBroken("fork-server: a worker has not left a sandbox's cgroups")
        self.groups = self.berth.groups
        self.berth.close()
        self.berth = None
