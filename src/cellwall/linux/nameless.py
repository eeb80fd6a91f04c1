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

_FLAGS = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC


def in_memory() -> int:
    """Make a file that no disk has; return its descriptor. Raises OSError."""
    made = os.memfd_create("session", os.MFD_CLOEXEC)
    os.fchmod(made, 0o600)
    return made


class Folder:
    """A directory on whose file system such files are made, one after the other."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self._path = path
        self._tree = -1
        """The top of a mount of the directory alone, which no other process sees.

        It is kept: each end of such a mount waits for all processors."""

    def made(self) -> int:
        """Make a file; return its descriptor. Raises OSError."""
        if self._tree >= 0:
            try:
                return self._made_below()
            except OSError:  # the directory was removed meanwhile, and perhaps made anew
                self.close()
        with contextlib.suppress(OSError):
            self._tree = mounts.cloned(str(self._path))
        return os.open(self._path, _FLAGS, 0o600) if self._tree < 0 else self._made_below()

    def _made_below(self) -> int:
        return os.open(f"/proc/self/fd/{self._tree}/.", _FLAGS, 0o600)

    def close(self) -> None:
        """Close what is open of it; files that were made in it stay."""
        if self._tree >= 0:
            os.close(self._tree)
            self._tree = -1


def made_in(path: Path) -> int:
    """Make one file on the file system of a directory; return its descriptor. Raises OSError."""
    folder = Folder(path)
    try:
        return folder.made()
    finally:
        folder.close()
