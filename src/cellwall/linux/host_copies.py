"""Copies small trees of the host into a root under construction: the parts that all users may read.

Called by `steps` in boot and by runtimes that make a root on disk. Not for files that a program
could have written. The invariant: links stay links, and nothing is read that others may not read.
"""

from __future__ import annotations

import os
import stat

_PART = 1 << 20


def copy(source: str, target: str) -> None:
    """Copy a file, or a directory with its contents; sockets, FIFOs and devices are left out."""
    _copy(source, target, os.stat(source))


def _copy(source: str, target: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(status.st_mode):
        _copy_directory(source, target, status)
    elif stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
        _copy_file(source, target, 0o555 if status.st_mode & stat.S_IXOTH else 0o444)


def _copy_directory(source: str, target: str, status: os.stat_result) -> None:
    everybody = stat.S_IROTH | stat.S_IXOTH
    if status.st_mode & everybody != everybody:
        return
    os.makedirs(target, exist_ok=True)
    os.chmod(target, 0o755)  # noqa: S103 - every sandbox's user has to enter it
    with os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            _copy(entry.path, f"{target}/{entry.name}", entry.stat(follow_symlinks=False))


def _copy_file(source: str, target: str, mode: int) -> None:
    """Copy a file without `shutil`, whose imports would remain in a fork-server's memory."""
    with open(source, "rb", buffering=0) as read, open(target, "xb", buffering=0) as written:
        while part := read.read(_PART):
            written.write(part)
        os.fchmod(written.fileno(), mode)
