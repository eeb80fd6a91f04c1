"""Removal of a directory tree that untrusted code has written.

Called on the host, after every process that could write there has ended. It uses descriptors of
directories opened without following links, and no recursion: a subdirectory is first moved up
beside the tree's root, so depth costs neither stack nor descriptors.
"""

from __future__ import annotations

import os
import stat

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Remove the directory `path` and everything below it; an absent one is fine."""
    try:
        root = os.open(path, _FLAGS)
    except FileNotFoundError:
        return
    try:
        os.fchmod(root, 0o700)
        serial = 0
        pending = _empty(root, root, serial)
        while pending:
            name = pending.pop()
            below = os.open(name, _FLAGS, dir_fd=root)
            try:
                serial += 1
                pending += _empty(below, root, serial)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)
    os.rmdir(path)


def _empty(directory: int, root: int, serial: int) -> list[str]:
    """Unlink entries but directories; move directories to `root`; return their names there."""
    moved: list[str] = []
    for name in os.listdir(directory):
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode):
            os.unlink(name, dir_fd=directory)
            continue
        target = name if directory == root else f".removing-{serial}-{len(moved)}"
        os.chmod(name, 0o700, dir_fd=directory)
        if target != name:
            target = _free_name(root, target)
            os.rename(name, target, src_dir_fd=directory, dst_dir_fd=root)
        moved.append(target)
    return moved


def _free_name(root: int, name: str) -> str:
    while True:
        try:
            os.stat(name, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            return name
        name += "-"
