"""User namespaces that exist to map the ids of a mount's files, and for nothing else.

Used by `idmapper` and `jail.volumes.keeper`, which have one thread and the engine's rights (root).
The invariant: no process is in one of them, so they are no way to anything.
"""

from __future__ import annotations

import os
from typing import Dict, Tuple

from cellwall.jail.protocol import fds
from cellwall.linux.syscalls import process

Ranges = Tuple[Tuple[int, int, int], ...]
"""First id on disk, first id that is shown for it, and the number of ids, of each range."""
_MOST_KEPT = 512
"""Most user namespaces that are kept: one for each sandbox whose ids were in use."""


class Namespaces:
    """The namespaces that this process has made, by the ranges that they map."""

    def __init__(self) -> None:
        """Make none yet."""
        self._known: Dict[Ranges, int] = {}

    def of(self, ranges: Ranges) -> int:
        """Return a descriptor of a user namespace that maps `ranges`; it stays ours.

        Raises OSError.
        """
        if ranges not in self._known:
            while len(self._known) >= _MOST_KEPT:
                os.close(self._known.pop(next(iter(self._known))))
            self._known[ranges] = _made("\n".join("{} {} {}".format(*each) for each in ranges))
        return self._known[ranges]


def _made(lines: str) -> int:
    """Return a new user namespace with those lines as both of its maps. user_namespaces(7).

    The child that makes it has ended when this returns. Raises OSError.
    """
    told, tell = os.pipe()
    ready_r, ready_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            fds.close_all([tell, ready_r])
            process.unshare(process.CLONE_NEWUSER)
            os.write(ready_w, b"!")
            os.read(told, 1)
        finally:
            os._exit(0)
    fds.close_all([told, ready_w])
    try:
        if os.read(ready_r, 1) != b"!":
            raise OSError("its maker could not make it")
        for name in ("uid_map", "gid_map"):
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, lines.encode())
            finally:
                os.close(fd)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        fds.close_all([tell, ready_r])
        os.waitpid(pid, 0)
