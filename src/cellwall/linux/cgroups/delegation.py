"""Moves this process out of its own cgroup, so that the cgroup can give controllers to sandboxes.

Runs in the engine process, called once by the server before it has children. Only for cgroup v2,
whose kernel lets no group that holds processes hand controllers down (cgroups(7), "no internal
processes"). The invariant: nothing is touched unless the group was delegated to this process and
holds no other one.
"""

from __future__ import annotations

import os
from pathlib import Path

from cellwall.linux.cgroups.hierarchies import View, v2_place

NAME = "server"


def step_aside(view: View | None = None) -> Path | None:
    """Move this process into a group below its own, and return that; None if that is not needed.

    Raises OSError if the kernel makes the group but does not accept the process.
    """
    view = view or View.of_this_process()
    own = v2_place(view)
    if own is None or not _is_ours_alone(own, view):
        return None
    aside = own / NAME
    aside.mkdir(exist_ok=True)
    (aside / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    return aside


def _is_ours_alone(own: Path, view: View) -> bool:
    files = [own / name for name in ("cgroup.procs", "cgroup.subtree_control")]
    if not all(view.writable(path) for path in (own, *files)):
        return False
    is_real_root = not (own / "cgroup.type").exists()
    controllers = (own / "cgroup.controllers").read_text(encoding="ascii").split()
    members = files[0].read_text(encoding="ascii").split()
    return not is_real_root and bool(controllers) and members == [str(os.getpid())]
