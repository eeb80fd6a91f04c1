"""What this host enforces of a sandbox's limits, and how firmly.

Used by `runtime` at each start, and by `cellwall jail explain`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cellwall.jail.plan import plan

if TYPE_CHECKING:
    from cellwall.linux.cgroups import hierarchies
    from cellwall.model.limits import Limits
    from cellwall.runtimes.base import SandboxSpec


def shape_for(spec: SandboxSpec, layout: hierarchies.Layout, *, rootless: bool) -> plan.Shape:
    """Return what is built in of a sandbox of `spec`."""
    mounts = tuple(spec.template.base_mounts)
    shape = shape_of(spec.limits, layout, rootless=rootless, base_mounts=mounts)
    if spec.profile == "debug":
        shape = shape._replace(debug=True)
    if spec.volumes:
        volumes = tuple((each.path, each.read_only) for each in spec.volumes)
        shape = shape._replace(volumes=volumes)
    if spec.image is not None:
        image = (spec.image.uid, spec.image.gid)
        shape = shape._replace(shows_changes=spec.image.shows_changes)
        return shape._replace(image=image, own_python=not spec.image.has_python)
    return shape._replace(own_layers=spec.purpose == "session")


def shape_of(
    limits: Limits,
    layout: hierarchies.Layout,
    *,
    rootless: bool,
    base_mounts: tuple[str, ...] = (),
) -> plan.Shape:
    """The part of limits, and of a template, that is built in when a sandbox starts."""
    return plan.Shape(
        cpus=max(1, math.ceil(limits.cpus)),
        memory_mb=limits.memory_mb,
        disk_mb=limits.disk_mb,
        inodes=limits.inodes,
        processes=limits.processes,
        file_mb=limits.file_mb,
        open_files=limits.open_files,
        pids_held="pids" in layout.hard,
        soft_memory="memory" not in layout.hard,
        rootless=rootless,
        has_root=not rootless,
        base_mounts=base_mounts,
    )


def hardness_of(limits: Limits, layout: hierarchies.Layout) -> dict[str, str]:
    """How firmly each limit is enforced on this host: "hard" or "soft", by the limit's name."""
    hard = layout.hard
    return {
        "memory_mb": "hard" if "memory" in hard else "soft",
        "processes": "hard",
        "cpus": "hard" if "cpu" in hard or limits.cpus == int(limits.cpus) else "soft",
        "cpu_s": "hard" if hard or layout.hierarchies else "soft",
        "disk_mb": "hard",
        "inodes": "hard",
        "file_mb": "hard",
        "open_files": "hard",
    }
