"""A walk through a directory tree of any depth, by changing directory.

`trees.py` uses this, in a worker: the walk moves the process's working directory, so it must never
run in init. It follows no symbolic link and keeps no descriptor open per level.

Paths are never joined: a tree a thousand levels deep has no path that the kernel would accept. On
the way up the walk checks that `..` is where it came from, because hostile code may move
directories meanwhile.
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections.abc import Iterator
from typing import NamedTuple

from cellwall.guest.channel.errors import Refusal

_MOST_LEVELS = 100_000

ENTRY = 0
"""A visit of an entry of the current directory that is not a directory."""

BEFORE = 1
"""A visit of a directory that is about to be entered."""

AFTER = 2
"""A visit of the same directory after it was left: its content has been visited."""


class Visit(NamedTuple):
    """One entry met on the way; `name` is relative to the current directory.

    `parents` is the walk's own list, valid until the next step: a copy for each of a hundred
    thousand levels would not fit any memory.
    """

    moment: int
    name: str
    parents: list[str]
    status: os.stat_result


class _Level(NamedTuple):
    names: Iterator[str]
    identity: tuple[int, int]
    entered_as: Visit | None


def walk_tree(
    top: str, *, is_one_system: bool = False, most_names: int | None = None
) -> Iterator[Visit]:
    """Visit everything below `top`, which becomes the working directory.

    `is_one_system` leaves out directories that another file system is mounted on. A directory with
    more than `most_names` entries is refused before their names take memory.
    """
    _enter(top)
    levels = [_Level(iter(_names(most_names)), _here(), None)]
    parents: list[str] = []
    while levels:
        name = next(levels[-1].names, None)
        if name is None:
            left = levels.pop()
            if left.entered_as is None:
                return
            _climb(levels[-1].identity)
            parents.pop()
            yield left.entered_as._replace(moment=AFTER)
            continue
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            yield Visit(ENTRY, name, parents, status)
            continue
        if is_one_system and status.st_dev != levels[0].identity[0]:
            continue
        if len(levels) > _MOST_LEVELS:
            raise Refusal("too_large", f"tree: deeper than {_MOST_LEVELS} levels")
        visit = Visit(BEFORE, name, parents, status)
        yield visit
        _enter(name)
        parents.append(name)
        levels.append(_Level(iter(_names(most_names)), _here(), visit))


def _names(most: int | None) -> list[str]:
    with os.scandir(".") as entries:
        # `sys.maxsize` is the largest bound that islice takes.
        bound = sys.maxsize if most is None else most + 1
        names = sorted(entry.name for entry in itertools.islice(entries, bound))
    if most is not None and len(names) > most:
        raise Refusal("too_large", f"tree: has more than {most} files in one directory")
    return names


def _enter(name: str) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags)
    try:
        os.fchdir(fd)
    finally:
        os.close(fd)


def _here() -> tuple[int, int]:
    status = os.stat(".")
    return status.st_dev, status.st_ino


def _climb(expected: tuple[int, int]) -> None:
    os.chdir("..")
    if _here() != expected:
        raise Refusal("busy", "tree: was moved while it was read; stop what changes it")
