"""The file behind /proc/sys/kernel/random/boot_id, which init alone can write to.

A copy of a session has the boot id of its source, as a copy of a machine's memory has: programs
remember it, and compare what they wrote to files with it. Where the runtime shows another kernel's
there is no such file.
"""

from __future__ import annotations

import os
from typing import Any

_MOST_BYTES = 64


def known(config: dict[str, Any]) -> str:
    """Return this sandbox's boot id; empty if it has none of its own."""
    fd = config.get("boot_id_fd", -1)
    return "" if fd < 0 else os.pread(fd, _MOST_BYTES, 0).decode("ascii", "replace").strip()


def take(config: dict[str, Any], wanted: str) -> None:
    """Make this sandbox's boot id that of the session which it becomes; empty: it keeps its own."""
    fd = config.get("boot_id_fd", -1)
    if wanted and fd >= 0:
        os.pwrite(fd, wanted.encode("ascii") + b"\n", 0)
