"""A tree that is what another one has become: made of hard links, so that it costs few bytes.

Used by `process`, after the layers have been unpacked over the other tree as an overlay (lower),
whose changes lie in an upper directory. Files in some directories are copied. The invariants: no
file of the lower tree is changed, because it belongs to another image; each name is looked up below
an open directory, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from cellwall.jail.unpack.child_process import Refused

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = "user.overlay.opaque"
_COPIED = ("etc/", "var/spool/")
"""Directories whose files are copied: cron(8) reads no crontab that has several names."""
_MOST_LEVELS = 1000
DESCRIPTORS = 4 * _MOST_LEVELS
"""Number of descriptors that the process needs."""


class _Level(NamedTuple):
    """A directory on the way: what it is made of, what it is made as, and what is left to do."""

    lower: int
    """Descriptor of the directory in the lower tree; -1: there is none, or it is hidden."""
    upper: int
    out: int
    names: Iterator[Tuple[str, bool]]
    """What is in it, and whether the upper directory has it."""
    path: str
    """Where it is in the tree: empty at the top, else with a slash at its end."""


class Merge:
    """One tree of two. `bytes` and `inodes` count it; `own_bytes` what the lower has not."""

    def __init__(self, most_bytes: int, most_inodes: int) -> None:
        """More is an error: `Refused`."""
        self._most_bytes, self._most_inodes = most_bytes, most_inodes
        self.bytes = self.own_bytes = self.inodes = 0
        self._seen: Set[Tuple[int, int]] = set()
        """Files that were counted, which may have several names."""

    def answer(self) -> Dict[str, int]:
        """Return what was counted."""
        return {"bytes": self.bytes, "own_bytes": self.own_bytes, "inodes": self.inodes}

    def make(self, lower: str, upper: str, out: str) -> None:
        """Fill `out`, an empty directory. Raises `Refused`, OSError."""
        below, above = os.open(lower, _DIRECTORY), os.open(upper, _DIRECTORY)
        levels = [_entered((below, above, os.open(out, _DIRECTORY)), "")]
        while levels:
            level = levels[-1]
            name = next(level.names, None)
            if name is None:
                self._leave(levels.pop())
                continue
            entered = self._take(level, *name)
            if entered is not None:
                levels.append(entered)
            if len(levels) > _MOST_LEVELS:
                raise Refused(f"it has more than {_MOST_LEVELS} directories in each other", "bound")

    def _take(self, level: _Level, name: str, is_changed: bool) -> Optional[_Level]:
        """Put one name into a directory; return the level of a directory."""
        source = level.upper if is_changed else level.lower
        found = os.lstat(name, dir_fd=source)
        if stat.S_ISCHR(found.st_mode):  # a whiteout: an unpacked tree has no device
            return None
        if not stat.S_ISDIR(found.st_mode):
            copies = stat.S_ISREG(found.st_mode) and level.path.startswith(_COPIED)
            self._count(found, is_own=is_changed or copies)
            (_copy if copies and not is_changed else _link)(name, source, level.out, found)
            return None
        self._count(found, is_own=is_changed)
        os.mkdir(name, 0o700, dir_fd=level.out)
        upper = os.open(name, _DIRECTORY, dir_fd=level.upper) if is_changed else -1
        lower = -1 if upper >= 0 and _is_opaque(upper) else _directory(name, level.lower)
        out = os.open(name, _DIRECTORY, dir_fd=level.out)
        return _entered((lower, upper, out), f"{level.path}{name}/")

    def _leave(self, level: _Level) -> None:
        """Give a directory its owner, mode and times, now that nothing changes it any more."""
        found = os.fstat(level.upper if level.upper >= 0 else level.lower)
        os.fchown(level.out, found.st_uid, found.st_gid)
        os.fchmod(level.out, stat.S_IMODE(found.st_mode))
        os.utime(level.out, ns=(found.st_mtime_ns, found.st_mtime_ns))
        for fd in level[:3]:
            if fd >= 0:
                os.close(fd)

    def _count(self, found: os.stat_result, *, is_own: bool) -> None:
        self.inodes += 1
        identity = (found.st_dev, found.st_ino)
        if stat.S_ISREG(found.st_mode) and identity not in self._seen:
            self._seen.add(identity)
            self.bytes += found.st_size
            self.own_bytes += found.st_size if is_own else 0
        if self.inodes > self._most_inodes:
            raise Refused(f"it has more than {self._most_inodes} files", "bound")
        if self.bytes > self._most_bytes:
            raise Refused(f"it has more than {self._most_bytes} bytes", "bound")


def _entered(opened: Tuple[int, int, int], path: str) -> _Level:
    lower, upper, out = opened
    changed: List[str] = [] if upper < 0 else os.listdir(upper)
    hidden = set(changed)
    names = [(name, True) for name in changed]
    if lower >= 0:
        names += [(name, False) for name in os.listdir(lower) if name not in hidden]
    return _Level(lower, upper, out, iter(names), path)


def _directory(name: str, parent: int) -> int:
    """Open a directory, if there is one of that name; -1 if not."""
    if parent < 0:
        return -1
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return -1
        raise


def _is_opaque(directory: int) -> bool:
    """Report whether a directory of an upper hides that of the lower; overlayfs.rst."""
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        raise


def _link(name: str, source: int, out: int, found: os.stat_result) -> None:
    """Link a file; copy it where the file system allows it no more names."""
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=out, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK or not stat.S_ISREG(found.st_mode):
            raise
        _copy(name, source, out, found)


def _copy(name: str, source: int, out: int, found: os.stat_result) -> None:
    reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    writing = os.open(name, flags, 0o600, dir_fd=out)
    with open(reading, "rb") as origin, open(writing, "wb") as target:
        shutil.copyfileobj(origin, target)
        target.flush()
        os.fchown(writing, found.st_uid, found.st_gid)
        os.fchmod(writing, stat.S_IMODE(found.st_mode))
        os.utime(writing, ns=(found.st_mtime_ns, found.st_mtime_ns))
