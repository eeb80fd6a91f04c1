"""State lock: one server per state directory, by a lock that the kernel releases at its end.

Called by `serve`. It is not a pid file: its text is for people, the lock is `flock`. The invariant:
two servers never have the same store open, and a file left by a dead server, whatever pid it
contains, blocks no other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from cellwall.model.errors import Conflict, UsageError

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold `state_dir` for this process; `Conflict` names the server that holds it."""
    path = state_dir / "server" / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(
            f"serve: lock {path}: {error.strerror}",
            remedy="give --state-dir a directory you may write",
        ) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"serve: {state_dir} is used by another server, {_holder(fd)}",
                remedy="stop that one, or give --state-dir",
            ) from None
        words = {"pid": os.getpid(), "boot_id": _boot_id(), "since": int(time.time())}
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(words).encode(), 0)
        yield
    finally:
        os.close(fd)  # this also releases the lock; the file stays, because removing it would race


def _boot_id() -> str:
    return _BOOT.read_text(encoding="ascii").strip()


def _holder(fd: int) -> str:
    try:
        words = json.loads(os.pread(fd, 4096, 0))
        where = "" if words["boot_id"] == _boot_id() else " on another machine or boot"
        return f"pid {words['pid']}{where}"
    except (ValueError, KeyError, TypeError, OSError):
        return "which does not say its pid"
