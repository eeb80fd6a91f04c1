"""Locks of a volume: who may have its file system mounted, across all engines of this host.

Blocking. `volume.img` is locked (flock(2)) exclusively by an engine that may write, shared by those
that only read. The invariant: the locked open file is the one that the loop device gets, so that a
lock lasts as long as the kernel has the file system mounted, also after the engine was killed.

`lock` beside it is held while locks are taken or changed: the kernel drops a lock before it
converts it, and another engine must not come between.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from cellwall.model.errors import Conflict, NotFound
from cellwall.runtimes.volumes import ext4

IMAGE = "volume.img"
_GATE = "lock"
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_WAIT_S = 2.0
"""Most seconds to wait for a lock: the kernel unmounts a moment after the last sandbox has ended,
also for an engine that has ended."""
_LOOK_S = 0.005


def acquire(folder: Path, *, exclusive: bool, is_to_be_used: bool = True) -> int:
    """Return the volume's file, locked, with a file system that is right if it `is_to_be_used`.

    Raises NotFound, Conflict if another engine has it, or what `ext4.repair` raises.
    """
    until = time.monotonic() + _WAIT_S
    while True:
        fd = _tried(folder, exclusive=exclusive, is_to_be_used=is_to_be_used)
        if fd is not None:
            return fd
        if time.monotonic() > until:
            raise in_use(folder, "another engine uses it")
        time.sleep(_LOOK_S)


def _tried(folder: Path, *, exclusive: bool, is_to_be_used: bool) -> int | None:
    with _gate(folder):
        fd = os.open(folder / IMAGE, _FLAGS)
        try:
            if _lock(fd, exclusive=True):
                if is_to_be_used and not ext4.figures(folder / IMAGE).is_clean:
                    ext4.repair(folder / IMAGE)
                if exclusive or _lock(fd, exclusive=False):
                    return fd
            elif not exclusive and _lock(fd, exclusive=False):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None


def upgrade(folder: Path, fd: int) -> None:
    """Turn our shared lock into an exclusive one; Conflict, and no change, if others read."""
    with _gate(folder):
        if not _lock(fd, exclusive=True):
            _lock(fd, exclusive=False)  # succeeds: an engine that wants more waits at the gate
            raise in_use(folder, "sandboxes of another engine read it")


def downgrade(folder: Path, fd: int) -> None:
    """Turn our exclusive lock into a shared one."""
    with _gate(folder):
        _lock(fd, exclusive=False)


def in_use(folder: Path, why: str) -> Conflict:
    """Return the error for a volume that cannot be had now."""
    return Conflict(
        f"volume {folder.name}: {why}",
        remedy="end those sandboxes; one may write, or many may read (`ro`)",
    )


@contextlib.contextmanager
def _gate(folder: Path) -> Iterator[None]:
    try:
        gate = os.open(folder / _GATE, _FLAGS | os.O_CREAT, 0o600)
    except FileNotFoundError:
        raise absent(folder.name) from None
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not (folder / IMAGE).exists():  # removed while we waited
            raise absent(folder.name)
        yield
    finally:
        os.close(gate)


def absent(name: str) -> NotFound:
    """Return the error for a name that no volume has."""
    return NotFound(
        f"volume {name}: there is none of that name",
        remedy=f"`cellwall volumes create {name}` makes it, `cellwall volumes` lists all",
    )


def _lock(fd: int, *, exclusive: bool) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
