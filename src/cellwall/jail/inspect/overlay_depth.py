"""Measures how many overlays this host allows, one over the other, over the trees we share.

Runs in the engine process, for `host_facts` and `probe`. Newer kernels allow every user two: one
for a template, and over it one for each sandbox. In a container whose own root is an overlay, one
is left. Tried in throw-away processes, under the conditions of `boot` and of a sandbox.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cellwall.linux import uid_ranges
from cellwall.linux.syscalls import mounts, process
from cellwall.linux.trial import trial

MOST = 2
_PLACE = "/tmp"  # noqa: S108 - of a mount namespace of the trial's own


class Layers(NamedTuple):
    """The number of overlays that a host allows."""

    depth: int
    problem: str
    """The reason why `depth` is not `MOST`."""


def ask(trees: Sequence[str]) -> Layers:
    """Try overlays on every tree; some milliseconds."""
    nested = mounted_below(trees)
    problem = ""
    for count in range(MOST, 0, -1):
        if count == MOST and nested:
            problem = f"{nested[0]} is a file system of its own"
            continue
        found = trial(lambda count=count: _mount(count, [*trees, *nested]))  # type: ignore[misc]
        if not found:
            return Layers(count, problem)
        problem = problem or found
    return Layers(0, problem)


def _mount(count: int, trees: Sequence[str]) -> None:
    if uid_ranges.is_rootless():
        _enter()
    else:
        process.unshare(process.CLONE_NEWNS)
    mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
    opened = [os.open(tree, os.O_PATH | os.O_DIRECTORY) for tree in trees]
    mounts.mount("tmpfs", _PLACE, "tmpfs", 0, "mode=755")
    os.mkdir(f"{_PLACE}/none")
    places = []
    for fd in opened:
        places.append(f"{_PLACE}/{fd}")
        os.mkdir(places[-1])
        _overlay(f"/proc/self/fd/{fd}", places[-1])
    if count == MOST:
        _enter()
        for place in places:
            _overlay(place, place)


def _overlay(lower: str, place: str) -> None:
    options = mounts.layers(lower, f"{_PLACE}/none")
    mounts.mount("overlay", place, "overlay", mounts.MS_RDONLY, options)


def _enter() -> None:
    uid, gid = os.geteuid(), os.getegid()
    process.unshare(process.CLONE_NEWUSER | process.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def mounted_below(trees: Sequence[str]) -> tuple[str, ...]:
    """Return the mount points below the trees that are directories, parents first; mountinfo."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    points = {_unescaped(line.split()[4]) for line in text.splitlines()}
    below = [p for p in points if any(p.startswith(f"{tree}/") for tree in trees)]
    return tuple(sorted(point for point in below if os.path.isdir(point)))


def _unescaped(point: str) -> str:
    for sign in (" ", "\t", "\n", "\\"):
        point = point.replace(f"\\{ord(sign):03o}", sign)
    return point


def channels(trees: Sequence[str]) -> tuple[str, ...]:
    """Return sockets and FIFOs in the trees, which are covered where a tree is bound as it is."""
    return tuple(sorted(path for tree in trees for path in _channels(tree)))


def _channels(folder: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # no sandbox may enter what this process may not
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _channels(entry.path)
        elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                yield entry.path
