"""Files that have no name, for what sandboxes get to read and map.

SECURITY: /proc/PID/maps and /proc/PID/fd name a file from the top of the mount that it was opened
through. An ordinary user can make no mount of its own: there the directory's path on the host is
told.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cellwall.linux.syscalls import mounts


def in_memory() -> int:
    """Make a file that no disk has; return its descriptor. Raises OSError."""
    made = os.memfd_create("session", os.MFD_CLOEXEC)
    os.fchmod(made, 0o600)
    return made


def made_in(folder: Path) -> int:
    """Make a file on the file system of a directory; return its descriptor. Raises OSError."""
    flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    tree = -1
    with contextlib.suppress(OSError):
        tree = mounts.cloned(str(folder))
    if tree < 0:
        return os.open(folder, flags, 0o600)
    try:
        return os.open(f"/proc/self/fd/{tree}/.", flags, 0o600)
    finally:
        os.close(tree)  # the mount goes with the last file that was opened through it
