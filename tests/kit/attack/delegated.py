"""Cgroups given to an ordinary user, as deploy/delegate-cgroup and systemd give them.

Not a fixture. Version 1 only: there each hierarchy has a folder that the user may write below, and
the program that embeds the engine is started in it. The invariant: the folders are new and go with
the context.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kit.unprivileged import OrdinaryUser

_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_TOP = Path("/sys/fs/cgroup")
_GONE_S = 10.0


class Delegation:
    """Where a program is started that is to have them."""

    def __init__(self, user: OrdinaryUser, folders: list[Path]) -> None:
        """Hold both."""
        self._user = user
        self._folders = folders

    def join(self) -> None:
        """Put this process there; as root."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text("0", encoding="ascii")

    def enter(self) -> None:
        """The same, and become the user: for `preexec_fn`."""
        self.join()
        os.setgroups([])
        os.setgid(self._user.gid)
        os.setuid(self._user.uid)


def are_possible() -> bool:
    """Whether this machine has version 1 hierarchies that we may write to."""
    return os.geteuid() == 0 and all((_TOP / each / "tasks").exists() for each in _CONTROLLERS)


@contextlib.contextmanager
def delegated(user: OrdinaryUser) -> Iterator[Delegation]:
    """Make them."""
    folders = [_TOP / each / f"cellwall-test-{user.uid}" for each in _CONTROLLERS]
    try:
        for folder in folders:
            folder.mkdir()
            os.chown(folder, user.uid, user.gid)
        yield Delegation(user, folders)
    finally:
        for folder in folders:
            _remove(folder)


def _remove(folder: Path) -> None:
    until = time.monotonic() + _GONE_S
    for below in sorted(folder.glob("**/"), reverse=True):
        while below.exists():
            try:
                below.rmdir()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
