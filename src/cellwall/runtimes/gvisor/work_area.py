"""Work area of one gVisor sandbox: a host tmpfs that holds the root to which its user adds files.

Runs out of a bundle in the keeper's own mount namespace before `runsc` does: standard library only.
The area has the size and the number of files of the limits; home, /tmp, /dev/shm and every
directory that a program makes are in it. The system's own directories are made here, by root, or
mounted read-only by `runsc`. The invariant: the area is in that one mount namespace, charged to the
sandbox's own cgroups, and gone with its last process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from cellwall.linux.syscalls import mapped_overlay, mounts
from cellwall.linux.syscalls.libc import do_all

_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STICKY = 0o1777
_FOR_ALL = 0o755


def place_of(place: str) -> str:
    """Return the area's path in the keeper's mount namespace; `place` is the keeper's directory."""
    return f"{place}/area"


def root_of(place: str) -> str:
    """Return the path of the sandbox's root in the area."""
    return f"{place}/area/root"


def shared_memory_of(place: str) -> str:
    """Return the path of the sandbox's /dev/shm in the area."""
    return f"{place}/area/shm"


def open_area(keeper: int, place: str) -> int:
    """Return a descriptor of the area of a keeper's sandbox, for reading how full it is.

    SECURITY: it is opened before caller code exists, and at the mount's top, which no code inside
    can reach.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(f"/proc/{keeper}/root{place_of(place)}", flags)


def view_of(place: str, number: int) -> str:
    """Return the path of a volume's view in the keeper's mount namespace."""
    return f"{place}/volumes/{number}"


def attach_views(place: str, count: int) -> None:
    """Attach views of volumes, which are in the channel ahead of all else."""
    if not count:
        return
    with socket.socket(fileno=os.dup(0)) as channel:
        _, views, _, _ = socket.recv_fds(channel, 1, count)
    for number, view in enumerate(views):
        os.makedirs(view_of(place, number), mode=0o700)
        do_all((mounts.prepare_move(view, view_of(place, number)),))
        os.close(view)


def make(place: str, order: dict[str, Any]) -> None:
    """Mount the area that `order` describes and make the parts in it that its user cannot move."""
    area, root = place_of(place), root_of(place)
    os.mkdir(area, 0o700)
    mounts.mount("tmpfs", area, "tmpfs", _FLAGS, order["options"])
    _directory(shared_memory_of(place), _STICKY)
    if order["image"] is not None:
        _show_image(area, order["image"])
        return
    _directory(root, _STICKY)
    for path in order["directories"]:
        _directory(root + path, _FOR_ALL)
    for path, target in order["links"]:
        os.symlink(target, root + path)
    uid = order["uid"]
    os.chmod(root + order["temporary"], _STICKY)
    _directory(root + order["home"], _FOR_ALL)
    os.chown(root + order["home"], uid, uid)
    for path in order["mount_points"]:
        _directory(root + path, _FOR_ALL)
        if path.startswith(order["home"] + "/"):
            os.chown(root + path, uid, uid)
    # gVisor mounts a tmpfs without a size where it finds an empty /tmp.
    os.mkdir(root + order["placeholder"])
    os.chown(root + order["placeholder"], uid, uid)


def _show_image(area: str, image: dict[str, Any]) -> None:
    """Show an image's tree as the root.

    SECURITY: the one directory in which `placeholder` is made is one that `jail.unpack` made.
    """
    root = mapped_overlay.mount(image["tree"], image["ids"], area, 0)
    os.mkdir(root + image["placeholder"])
    os.chown(root + image["placeholder"], image["uid"], image["gid"])
    for path in image["mount_points"]:
        _mount_point(root, path)


def _mount_point(root: str, path: str) -> None:
    """Make the directory that a volume needs in an image's root, and those above it.

    SECURITY: root of the host makes them in a tree whose links an image chose, so none is followed:
    a link on the way is an error. So is it for `runsc`, which looks for the same path.
    """
    at = os.open(root, _LOOK)
    for name in path.split("/")[1:]:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, _FOR_ALL, dir_fd=at)
        above, at = at, -1
        try:
            at = os.open(name, _LOOK, dir_fd=above)
        except NotADirectoryError as error:
            raise NotADirectoryError(f"{path} leads through {name}, no directory") from error
        finally:
            os.close(above)
    os.close(at)


def _directory(path: str, mode: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)
