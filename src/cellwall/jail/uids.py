"""Unprivileged id ranges of the host for fork-servers, and single ids for sandboxes.

As root every fork-server gets 65536 ids that no account uses, held by a lock on a file that lives
as long as the embedding process, so that two engines never share one. Rootless there is one id,
our own, and the posture says so. Range source: systemd's "Users, Groups, UIDs and GIDs" lists
0x70000000–0x7FFFFFFF as unused.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from pathlib import Path

from cellwall.model.errors import CapacityError, HostUnsupported

_FIRST = 0x70000000
COUNT = 65_536
_RANGES = 0x0FFF
_DIRECTORY = Path("/run/cellwall/uid-ranges")


class UidRange:
    """A range held by this process; index 0 is the fork-server's root, the rest are sandboxes'."""

    def __init__(self, base: int, gid_base: int, count: int, lock_fd: int | None) -> None:
        """Use `acquire` or `single`."""
        self.base = base
        self.gid_base = gid_base
        self.count = count
        self._lock_fd = lock_fd
        self._live: set[int] = set()
        self._next = itertools.cycle(range(1, count)) if count > 1 else itertools.repeat(0)

    def take(self) -> int:
        """Take an index no live sandbox has."""
        if self.count == 1:
            return 0
        for _ in range(self.count):
            index = next(self._next)
            if index not in self._live:
                self._live.add(index)
                return index
        raise CapacityError("uid range: every id belongs to a live sandbox", retry_after_s=1.0)

    def give_back(self, index: int) -> None:
        """Make an index available again, once its sandbox is gone."""
        self._live.discard(index)

    def host_uid(self, index: int) -> int:
        """The user id on the host behind an index."""
        return self.base + index

    def host_gid(self, index: int) -> int:
        """The group id on the host behind an index; an ordinary user's may differ from the uid."""
        return self.gid_base + index

    def release(self) -> None:
        """Let another engine have the range."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def covers(id_map: str) -> bool:
    """Report whether a uid_map or gid_map (user_namespaces(7)) holds every range of ours."""
    for line in id_map.splitlines():
        first, _, count = (int(word) for word in line.split())
        if first <= _FIRST and first + count >= _FIRST + _RANGES * COUNT:
            return True
    return False


def is_rootless() -> bool:
    """Report whether we can map nothing but ourselves.

    That is an ordinary user, and also the root of somebody's user namespace (rootless Podman, a
    container with remapped ids): the host's unprivileged ranges do not exist in there.
    """
    if os.geteuid() != 0:
        return True
    maps = (
        Path(f"/proc/self/{name}").read_text(encoding="ascii") for name in ("uid_map", "gid_map")
    )
    return not all(covers(text) for text in maps)


def single() -> UidRange:
    """The rootless range: our own ids."""
    return UidRange(os.geteuid(), os.getegid(), 1, None)


def acquire() -> UidRange:
    """Lock the first free range."""
    try:
        _DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise HostUnsupported(
            "uid ranges",
            f"make {_DIRECTORY}: {error.strerror}",
            remedy="make /run writable for root, or run as an ordinary user",
            errno=error.errno,
        ) from error
    for number in range(_RANGES):
        fd = os.open(_DIRECTORY / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        first = _FIRST + number * COUNT
        return UidRange(first, first, COUNT, fd)
    raise CapacityError("uid ranges: all 4095 are in use on this host", retry_after_s=60.0)
