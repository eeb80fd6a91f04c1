"""Files of sessions that are written down, which sandboxes read and the engine alone writes to."""

from __future__ import annotations

import fcntl
import os
import struct

from cellwall.linux import nameless

_F_OFD_SETLK = 37
_WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def new_file(folder: nameless.Folder | None) -> int:
    """Make a file that sandboxes may read, locked from its beginning."""
    made = nameless.in_memory() if folder is None else folder.made()
    try:
        _lock(made)
    except BaseException:
        os.close(made)
        raise
    return made


def for_reading(fd: int) -> int:
    """Open a file of this process once more, for reading from its beginning.

    SECURITY: never a duplicate: sandboxes with duplicates share one position. A read leaves no
    time of access.
    """
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)


def _lock(fd: int) -> None:
    """Take both kinds of lock on a file, so that the sandboxes that read it can take none.

    SECURITY: a lock of one sandbox would be a message to another.
    """
    fcntl.flock(fd, fcntl.LOCK_EX)
    fcntl.fcntl(fd, _F_OFD_SETLK, _WHOLE_FILE)
