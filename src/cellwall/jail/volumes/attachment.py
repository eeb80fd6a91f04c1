"""Attach views of volumes in a container: in the mount namespace of its first process.

Called by `keeper` for containers, which a container engine has made that knows nothing of volumes.
SECURITY: the first process is our own code and waits for its first document, so that no path here
is one that hostile code could have made: links are those of a template's image. What is done there
is done by a child, which ends, and the child alone is ever in that of a container.
"""

from __future__ import annotations

import errno
import os
from typing import List, Sequence, Tuple

from cellwall.linux.syscalls import mounts, process
from cellwall.linux.syscalls.libc import do_all

_MOST_WORDS = 2000
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def attach(target: int, views: Sequence[int], paths: Sequence[str], owner: Tuple[int, int]) -> None:
    """Attach each view at its path in the mount namespace of the process behind a pidfd.

    Directories that are missing are made, and belong to `owner`. Raises OSError.
    """
    hear, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.umask(0o022)
            do_all(process.prepare_join(target, process.CLONE_NEWNS))
            for view, path in zip(views, paths):
                _attach(view, path, owner)
        except OSError as error:
            os.write(said, f"{error.errno or errno.EIO} {error}"[:_MOST_WORDS].encode())
        finally:
            os._exit(0)
    os.close(said)
    with os.fdopen(hear, "rb") as words:
        problem = words.read(_MOST_WORDS).decode("utf-8", "replace")
    os.waitpid(pid, 0)
    if problem:
        number, _, text = problem.partition(" ")
        raise OSError(int(number), f"attach {' '.join(paths)}: {text}")


def _attach(view: int, path: str, owner: Tuple[int, int]) -> None:
    for each in _missing(path):
        _make(each, owner)
    do_all((mounts.prepare_move(view, path),))


def _missing(path: str) -> List[str]:
    """Return the directories on the way to `path`, with it, that are not there; parents first."""
    found: List[str] = []
    while not os.path.isdir(path):
        found.insert(0, path)
        path = os.path.dirname(path)
    return found


def _make(path: str, owner: Tuple[int, int]) -> None:
    """Make a directory, also on a mount that is read-only: through a copy of it that is not."""
    above = os.open(os.path.dirname(path), _FLAGS)
    try:
        writable = mounts.cloned_writable(above)
    finally:
        os.close(above)
    name = os.path.basename(path)
    try:
        os.mkdir(name, 0o755, dir_fd=writable)
        os.chown(name, *owner, dir_fd=writable, follow_symlinks=False)
    finally:
        os.close(writable)
