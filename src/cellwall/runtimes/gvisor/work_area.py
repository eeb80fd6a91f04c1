"""The work area of one gVisor sandbox: a tmpfs of the host's, in it the root that its user adds to.

Runs in the keeper's own mount namespace before `runsc` does, out of a bundle: standard library
only. The area has the size and the number of files that the limits say; home, /tmp, /dev/shm and
whatever directory a program invents are all in it. What is the system's is made here, by root, or
mounted read-only by `runsc`. The invariant: the area is in that one mount namespace, charged to the
sandbox's own cgroups, and gone with its last process.
"""

from __future__ import annotations

import os
from typing import Any

from cellwall.linux.syscalls import mounts

_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV
_STICKY = 0o1777
_FOR_ALL = 0o755


def place_of(place: str) -> str:
    """Return where the area lies, in the keeper's mount namespace; `place` is the keeper's own."""
    return f"{place}/area"


def root_of(place: str) -> str:
    """Return what of it is the sandbox's root."""
    return f"{place}/area/root"


def shared_memory_of(place: str) -> str:
    """Return what of it is the sandbox's /dev/shm."""
    return f"{place}/area/shm"


def open_area(keeper: int, place: str) -> int:
    """Return a descriptor of the area of a keeper's sandbox, for what the kernel says of its fill.

    SECURITY: before caller code exists, and of the mount's top, which no code inside can reach.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(f"/proc/{keeper}/root{place_of(place)}", flags)


def make(place: str, order: dict[str, Any]) -> None:
    """Mount the area that `order` describes and make in it what its user cannot move."""
    area, root = place_of(place), root_of(place)
    os.mkdir(area, 0o700)
    mounts.mount("tmpfs", area, "tmpfs", _FLAGS, order["options"])
    _directory(root, _STICKY)
    _directory(shared_memory_of(place), _STICKY)
    for path in order["directories"]:
        _directory(root + path, _FOR_ALL)
    for path, target in order["links"]:
        os.symlink(target, root + path)
    uid = order["uid"]
    os.chmod(root + order["temporary"], _STICKY)
    _directory(root + order["home"], _FOR_ALL)
    os.chown(root + order["home"], uid, uid)
    # Where it finds an empty /tmp, gVisor mounts a tmpfs without a size.
    os.mkdir(root + order["placeholder"])
    os.chown(root + order["placeholder"], uid, uid)


def _directory(path: str, mode: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)
