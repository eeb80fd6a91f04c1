"""Work area: the fill level of a sandbox's files, read through a descriptor opened beforehand."""

from __future__ import annotations

import os


def used(work_fd: int) -> tuple[bool, int]:
    """Return whether a work area is full, and its used bytes; -1 stands for no work area.

    SECURITY: no path is resolved here, because caller code can change everything below it.
    """
    if work_fd < 0:
        return False, 0
    status = os.fstatvfs(work_fd)
    is_full = status.f_bavail == 0 or status.f_favail == 0
    return is_full, (status.f_blocks - status.f_bfree) * status.f_frsize
