"""One of the processes of a fork-server that clone sandboxes: its identity and its cgroups.

Called by `runtimes.jail.fork_server` and `runtimes.jail.runtime` in the engine process. Sending
requests to a worker is in `fork_server`. The invariant: when a worker clones, it is in the cgroups
of the next sandbox, and of no living one.
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


class NextCgroups(NamedTuple):
    """Cgroups into which a worker will move itself, and the open files through which it moves."""

    groups: sandbox_groups.Groups
    move_files: tuple[int, ...]

    def close(self) -> None:
        """Close the files; the directories stay."""
        fds.close_all(self.move_files)


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
    next_cgroups: NextCgroups | None = None
    """Cgroups into which the worker moves itself after the next clone; None if the host has to move
    it."""

    @property
    def move_files(self) -> tuple[int, ...]:
        """The open files through which the worker moves itself after the next clone."""
        return () if self.next_cgroups is None else self.next_cgroups.move_files

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

    def open_next_cgroups(self, groups: sandbox_groups.Groups) -> None:
        """Open the files of `groups` through which the worker will move itself."""
        self.next_cgroups = NextCgroups(groups, tuple(groups.open_self_move_files()))

    def release(self) -> list[sandbox_groups.Groups]:
        """Forget where the worker is and would go; return the directories, to be removed."""
        held = [] if self.groups is None else [self.groups]
        if self.next_cgroups is not None:
            held.append(self.next_cgroups.groups)
            self.next_cgroups.close()
        self.groups = self.next_cgroups = None
        return held

    def confirm_moved(self) -> None:
        """Record that the worker has moved into `next_cgroups`, as it has reported itself.

        SECURITY: the kernel is asked, because the worker imported unreviewed packages, and no
        process of the engine may be in a sandbox's cgroups when caller code comes.
        """
        if self.next_cgroups is None:
            return
        found = sandbox_groups.places(posture.read_text(f"/proc/{self.pid}/cgroup"))
        if not self.next_cgroups.groups.expected_lines() <= found:
            raise SandboxBroken("fork-server: a worker has not left a sandbox's cgroups")
        self.groups = self.next_cgroups.groups
        self.next_cgroups.close()
        self.next_cgroups = None
