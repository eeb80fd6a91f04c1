"""One of the processes of a fork-server that clone sandboxes: its identity and its cgroups.

Called by `runtimes.jail.fork_server` and `runtimes.jail.runtime` in the engine process. Sending
orders to a worker is in `fork_server`. The invariant: when a worker clones, it is in the cgroups of
the next sandbox, and of no living one.
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
    """Cgroups into which a worker will move itself, and the open files through which it moves."""

    groups: sandbox_groups.Groups
    entrances: tuple[int, ...]

    def close(self) -> None:
        """Close the files; the directories stay."""
        fds.close_all(self.entrances)


@dataclass(slots=True)
class Worker:
    """A process of a fork-server that clones sandboxes, one after the other."""

    control: socket.socket
    purpose: str
    pid: int
    """Pid on the host."""
    started: int | None
    groups: sandbox_groups.Groups | None = None
    """Cgroups where the worker is now. They are the next sandbox's, which is born into them."""
    berth: Berth | None = None
    """Cgroups into which the worker moves itself after the next clone; None if the host has to move
    it."""

    @property
    def is_gone(self) -> bool:
        """Whether the process of this worker has ended."""
        return self.started is None or owner_label.start_time(self.pid) != self.started

    def move(self, groups: sandbox_groups.Groups) -> None:
        """Put the worker into other cgroups; raise if it has ended or its pid was reused."""
        if self.is_gone:
            raise SandboxBroken("fork-server: a worker is gone before it could be moved")
        try:
            groups.join(self.pid)
        except HostUnsupported as error:
            if error.errno != errno.ESRCH:
                raise
            raise SandboxBroken("fork-server: a worker ended while it was moved") from error
        self.groups = groups

    def open_berth(self, groups: sandbox_groups.Groups) -> None:
        """Open the files of `groups` through which the worker will move itself."""
        self.berth = Berth(groups, tuple(groups.entrances()))

    def let_go(self) -> list[sandbox_groups.Groups]:
        """Forget where the worker is and would go; return the directories, to be removed."""
        held = [] if self.groups is None else [self.groups]
        if self.berth is not None:
            held.append(self.berth.groups)
            self.berth.close()
        self.groups = self.berth = None
        return held

    def arrive(self) -> None:
        """Record that the worker has moved into its berth, which the worker itself has reported.

        SECURITY: the kernel is asked, because the worker imported unreviewed packages, and no
        process of the engine may be in a sandbox's cgroups when caller code comes.
        """
        if self.berth is None:
            return
        found = sandbox_groups.places(posture.read_text(f"/proc/{self.pid}/cgroup"))
        if not self.berth.groups.expected_lines() <= found:
            raise SandboxBroken("fork-server: a worker has not left a sandbox's cgroups")
        self.groups = self.berth.groups
        self.berth.close()
        self.berth = None
