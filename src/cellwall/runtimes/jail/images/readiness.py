"""Readiness: whether an image can be the root of a sandbox on this machine, and what to mend."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cellwall.linux import uid_ranges
from cellwall.runtimes.base import Finding

_LEAST = (6, 6)
"""First Linux that mounts an overlay over a mount with mapped ids in a user namespace."""
_FITTING = frozenset({"ext4", "xfs", "btrfs", "tmpfs"})
"""File systems whose mounts may map ids (mount_setattr(2))."""


def readiness(
    state_dir: Path, *, ids: uid_ranges.Ids | None = None, release: str = "", mounts: str = ""
) -> Finding:
    """Return the finding; the other arguments replace what this machine says."""
    ids = ids or uid_ranges.find()
    release = release or os.uname().release
    mounts = mounts or Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    if ids.rootless and ids.of_images is None:
        lack = uid_ranges.too_few_for_images(ids)
        return _lacks(lack.message, lack.remedy or "")
    number = re.match(r"(\d+)\.(\d+)", release)
    if number is None or (int(number[1]), int(number[2])) < _LEAST:
        return _lacks(f"Linux {release} cannot mount them", "use Linux 6.6 or newer")
    kind = _kind_of(state_dir, mounts)
    if ids.rootless:  # the files have the ids of sandboxes on disk
        return Finding("images", "PASS", "container images can be roots, on the jail", "")
    if kind not in _FITTING:
        return _lacks(
            f"{state_dir} is on {kind}, whose files cannot have other ids in a sandbox",
            f"keep CELLWALL_STATE_DIR on one of: {', '.join(sorted(_FITTING))}",
        )
    return Finding("images", "PASS", f"container images can be roots; {state_dir} is on {kind}", "")


def _lacks(why: str, remedy: str) -> Finding:
    return Finding("images", "CAUTION", f"no container image can be a root: {why}", remedy)


def _kind_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that a path is on, or would be."""
    real = os.path.realpath(path)
    best, kind = "", "an unknown file system"
    for line in mounts.splitlines():
        _, place, found, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        is_above = place in ("/", real) or real.startswith(f"{place}/")
        if is_above and len(place) >= len(best):
            best, kind = place, found
    return kind
