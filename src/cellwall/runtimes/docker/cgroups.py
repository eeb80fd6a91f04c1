"""Cgroups of containers: found where the kernel placed them, and read; the daemon writes them.

Used by `runtime` once a container runs. The invariant: what is found is the container's own, by its
id in the path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cellwall.linux.cgroups import hierarchies
from cellwall.linux.cgroups.freezer import Freezer
from cellwall.linux.cgroups.sandbox_groups import Groups
from cellwall.model.errors import HostUnsupported


def layout() -> hierarchies.Layout:
    """Return all cgroup hierarchies of this host: this process only reads them."""
    seen = hierarchies.View.of_this_process()
    view = hierarchies.View(seen.mountinfo, seen.own, writable=lambda _path: True)
    return hierarchies.discover(view)


def groups_of(seen: hierarchies.Layout, pid: int, made: str) -> Groups:
    """Return the cgroups of the container `made`, whose first process is `pid`.

    Raises HostUnsupported if they are not on this host.
    """
    own: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    paths = []
    for hierarchy in seen.hierarchies:
        key = "" if hierarchy.version == 2 else min(hierarchy.controllers)
        path = f"{hierarchy.root or hierarchy.base}{own.get(key, '')}"
        if made not in path or not os.path.exists(path + "/cgroup.procs"):
            raise HostUnsupported(
                "cgroups",
                f"read the counters of container {made[:12]}: {path} is not its cgroup",
                remedy="run cellwall where the Docker daemon runs",
            )
        paths.append((hierarchy, path))
    return Groups(tuple(paths), freezer=_freezer(seen, made, own))


def _freezer(seen: hierarchies.Layout, made: str, own: Mapping[str, str]) -> Freezer | None:
    """Return the freezer that the daemon uses, for when it does not thaw.

    The daemon prefers v1 where it has controllers there.
    """
    for freezing, key in ((seen.v1_freezer, "freezer"), (seen.freezing, "")):
        if freezing is not None:
            path = f"{freezing.root or freezing.base}{own.get(key, '')}"
            if made in path and os.path.exists(path + "/cgroup.procs"):
                return Freezer(path, freezing.version, is_own=False)
    return None
