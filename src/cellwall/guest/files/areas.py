"""Copy everything that a session may have written to files into another sandbox.

Run in a child of init (`child_tasks.py`). The stream is a tar of all areas, and of what was made in
`/`; the first part of each name is the number of the area. SECURITY: what arrives was written by
hostile code; it is unpacked as any archive of a caller's, with the rights of the sandbox.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.files.tree_walk import AFTER, walk_tree
from cellwall.guest.files.trees import COPY_BYTES, Packing, Unpacking, archived_name

if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.files.child_tasks import Task

_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  the sandbox's own


def areas(home: str) -> list[str]:
    """Return the directories that a sandbox's programs may write to, by their real paths."""
    return [os.path.realpath(each) for each in (home, *_SHARED)]


def own_of_root() -> list[str]:
    """Return the names of what its user has made in `/`, where that can be told.

    Where the user is the owner of `/` as well (an engine of an ordinary user), it cannot be.
    """
    user = os.getuid()
    if os.stat("/").st_uid == user:
        return []
    with os.scandir("/") as entries:
        return sorted(each.name for each in entries if _is_of(each, user))


def _is_of(entry: os.DirEntry[str], user: int) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == user
    except OSError:
        return False


def are_empty(home: str) -> bool:
    """Whether no area has an entry."""
    if own_of_root():
        return False
    for path in areas(home):
        try:
            with os.scandir(path) as entries:
                if next(entries, None) is not None:
                    return False
        except OSError:
            continue
    return True


def departure(home: str) -> Task:
    """Return a task that writes all areas as one tar stream."""
    return lambda _input, output_w: _pack(areas(home), output_w)


def arrival(home: str) -> Task:
    """Return a task that unpacks such a stream."""
    return lambda input_r, _output: _unpack(areas(home), input_r)


def _pack(tops: Sequence[str], output_w: int) -> Header:
    with os.fdopen(output_w, "wb", closefd=False) as stream:
        packing = Packing(stream)
        for number, top in enumerate(tops):
            for visit in walk_tree(top):
                if visit.moment != AFTER:
                    name = f"{number}/{archived_name(visit)}"
                    packing.add(visit.name, name, visit.status)
        for name in own_of_root():
            _pack_of_root(packing, name, f"{len(tops)}/{name}")
        return packing.finish()


def _pack_of_root(packing: Packing, name: str, archived: str) -> None:
    """Add an entry of `/`, and what is below it."""
    path = f"/{name}"
    status = os.lstat(path)
    packing.add(path, archived, status)
    if stat.S_ISDIR(status.st_mode):
        for visit in walk_tree(path):
            if visit.moment != AFTER:
                packing.add(visit.name, f"{archived}/{archived_name(visit)}", visit.status)


def _unpack(tops: Sequence[str], input_r: int) -> Header:
    unpacking = [
        Unpacking(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) for top in (*tops, "/")
    ]
    try:
        with os.fdopen(input_r, "rb", closefd=False) as stream, tarfile.open(
            mode="r|", fileobj=stream, bufsize=COPY_BYTES
        ) as tar:
            for member in tar:
                number, _, member.name = member.name.partition("/")
                unpacking[int(number)].add(tar, member)
                tar.members = []  # type: ignore[attr-defined]  # or it remembers every one
    except (tarfile.TarError, EOFError, ValueError, OverflowError, IndexError) as error:
        raise Refusal("invalid", f"copy files: not the files of a sandbox: {error}") from None
    return {
        "files": sum(each.files for each in unpacking),
        "bytes": sum(each.bytes for each in unpacking),
    }
