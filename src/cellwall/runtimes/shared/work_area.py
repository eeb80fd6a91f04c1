"""What a sandbox's work area holds, seen through a descriptor from before caller code existed."""

from __future__ import annotations

import os


def used(work_fd: int) -> tuple[bool, int]:
    """Return whether a work area is full, and how many bytes are used of it; -1 has none.

    SECURITY: no path is resolved here, for caller code can change what is below.
    """
    if work_fd < 0:
        return False, 0
    status = os.fstatvfs(work_fd)
    is_full = status.f_bavail == 0 or status.f_favail == 0
    return is_full, (status.f_blocks - status.f_bfree) * status.f_frsize
