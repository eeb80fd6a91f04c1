"""Freezer of one sandbox: stops its processes where they are, and lets them go on.

Called from worker threads of the engine process, except `thaw` and `let_die`, which never wait. v2
is used wherever it is mounted: a process frozen there ends by a kill. SECURITY: one frozen in v1
ends only when it is thawed, so whatever kills must thaw afterwards: `Groups.kill` and `leftovers`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cellwall.linux.cgroups.files import read, read_counter, read_whole, write
from cellwall.model.errors import HostUnsupported, SandboxBroken

FILES = {1: ("freezer.state", "THAWED"), 2: ("cgroup.freeze", "0")}
"""File of a group by the version of its hierarchy, and what thaws the group."""
_PATIENCE_S = 5.0
"""Seconds for every process to stop; one that waits for a disk takes as long as that."""
_FIRST_LOOK_S = 0.0002
_LONGEST_LOOK_S = 0.01


class Freezer:
    """The freezer group of one sandbox, which all of its processes are in or are moved to."""

    def __init__(self, path: str, version: int, *, is_own: bool) -> None:
        """`is_own`: the directory was made for this, and goes with the sandbox."""
        self.path = path
        self.is_own = is_own
        self.version = version
        self._lock = threading.Lock()
        self._is_ending = False

    def freeze(self, members: Callable[[], set[int]]) -> None:
        """Stop every process of the sandbox; return when they stand still.

        `members` lists its processes, wherever they are. Those that are elsewhere are moved here,
        which takes a global lock of the kernel and therefore some milliseconds; it is done once,
        because children are born where their parents are. Raises HostUnsupported, SandboxBroken.
        """
        until = time.monotonic() + _PATIENCE_S
        try:
            if self.is_own:
                self._move(members)
            self._order(frozen=True)
            # A process that was being forked meanwhile stops as soon as it is moved.
            pause_s = _FIRST_LOOK_S
            while (self.is_own and self._move(members)) or not self.is_frozen():
                if self._is_ending:
                    return
                if time.monotonic() > until:
                    raise SandboxBroken(
                        "pause: its processes did not stop", remedy="try again, or close it"
                    )
                time.sleep(pause_s)
                pause_s = min(_LONGEST_LOOK_S, 2 * pause_s)
        except BaseException:
            with contextlib.suppress(HostUnsupported):
                self.thaw()
            raise

    def thaw(self) -> None:
        """Let the processes go on. Raises HostUnsupported."""
        with self._lock:
            self._order_now(frozen=False)

    def let_die(self) -> None:
        """Let processes end that were killed; nothing is frozen afterwards. Idempotent."""
        with self._lock:
            self._is_ending = True
            if self.version == 1:
                with contextlib.suppress(HostUnsupported):  # the directory is gone
                    self._order_now(frozen=False)

    def _order(self, *, frozen: bool) -> None:
        with self._lock:
            if not self._is_ending:
                self._order_now(frozen=frozen)

    def _order_now(self, *, frozen: bool) -> None:
        name, thaw = FILES[self.version]
        freeze = "FROZEN" if self.version == 1 else "1"
        write(f"{self.path}/{name}", freeze if frozen else thaw)

    def is_frozen(self) -> bool:
        """Whether every process in it stands still."""
        if self.version == 2:
            return read_counter(f"{self.path}/cgroup.events", b"frozen") == 1
        return read(f"{self.path}/{FILES[1][0]}").strip() == b"FROZEN"

    def _move(self, members: Callable[[], set[int]]) -> bool:
        """Move those that are not here yet; whether there was one."""
        here = {int(word) for word in read_whole(f"{self.path}/cgroup.procs").split()}
        missing = members() - here
        for pid in missing:
            try:
                write(f"{self.path}/cgroup.procs", str(pid))
            except HostUnsupported as error:
                if error.errno != errno.ESRCH:  # it has ended meanwhile
                    raise
        return bool(missing)

    def remove(self) -> str | None:
        """Remove the directory if it was made for this; return why that failed."""
        if not self.is_own:
            return None
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        return None


def thaw_v1(path: Path) -> None:
    """Let processes in a v1 group go on, so that those killed before end; nothing on v2."""
    name, thaw = FILES[1]
    if (path / name).exists():
        with contextlib.suppress(HostUnsupported):
            write(path / name, thaw)
