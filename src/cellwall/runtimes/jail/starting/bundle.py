"""The guest of a jail as one file: what boot, fork-servers and sandboxes run.

Not how such a file is made (`shared.guest_bundle`). It is the first thing that a start needs, so
little is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.runtimes.shared.guest_bundle import build_bundle

if TYPE_CHECKING:
    from pathlib import Path

BUNDLE = (
    "cellwall.guest",
    "cellwall.jail.fast",
    "cellwall.jail.plan",
    "cellwall.jail.processes",
    "cellwall.jail.protocol",
    "cellwall.jail.unpack",
    "cellwall.linux.host_copies",
    "cellwall.linux.removal",
    "cellwall.linux.seccomp",
    "cellwall.linux.syscalls",
)


def bundle_in(state_dir: Path) -> Path:
    """Return the path of the guest with all stages of a start; it is made if necessary."""
    return build_bundle(state_dir, BUNDLE, "cellwall.jail.processes.entry:main")
