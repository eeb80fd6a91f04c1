"""Inside, on an image: make its root, give up the host's ids and capabilities, become init.

Two programs of one process. `build` is started by the container engine as the host's root, in the
template's interpreter, with the mounts of the image's tree and of an interpreter; it becomes root
of a user namespace of its own and executes the second in the image's root. `main` does there what
`inside` does on a template. Standard library only. SECURITY: nothing of a caller's is read before
`main` has locked the process down; the host compares ids and capabilities before it sends anything.
"""

from __future__ import annotations

import os
import stat
from typing import Any, NoReturn

from cellwall.linux.syscalls import id_maps, mapped_overlay, mounts, process
from cellwall.linux.syscalls.libc import do_all

AREA = "/home"
"""Where the work area is mounted while the root is under construction."""
TREE, INTERPRETER = "/opt/image", "/opt/interpreter"
"""Where the container engine mounts an image's tree and the interpreter."""
VIEWS = "/opt/volumes"
"""Where the host attaches views of volumes, by their numbers, before `build` reads its order."""
_ROOT = f"{AREA}/root"
_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV
_READ_ONLY = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV


def build(order: dict[str, Any]) -> NoReturn:
    """Build the root that `order` describes, enter it, and execute `main`. Raises OSError."""
    mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
    mounts.mount("tmpfs", AREA, "tmpfs", _FLAGS, order["options"])
    own = f"0 {order['first']} {order['ids']}"
    os.mkdir(f"{AREA}/shm")
    os.chmod(f"{AREA}/shm", 0o1777)  # noqa: S103 - as everywhere
    ids = f"{order['base']} {order['first']} {order['ids']}"
    mapped_overlay.mount(TREE, ids, AREA, order["first"])
    _show_ours(order)
    for path in ("/proc", "/dev", "/sys"):
        mounts.mount(path, _ROOT + path, None, mounts.MS_BIND | mounts.MS_REC, None)
    mounts.mount_setattr(f"{_ROOT}/proc", _READ_ONLY | mounts.ATTR_NOEXEC, recursive=False)
    os.makedirs(f"{_ROOT}/dev/shm", exist_ok=True)  # noqa: S108 - in the sandbox
    mounts.mount(f"{AREA}/shm", f"{_ROOT}/dev/shm", None, mounts.MS_BIND, None)  # noqa: S108
    namespace = id_maps.namespace(own)
    views = [mounts.cloned(f"{VIEWS}/{number}") for number in range(len(order["volumes"]))]
    mounts.pivot_into(_ROOT)
    _attach(views, order["volumes"], order["first"])
    do_all(
        (
            process.prepare_no_groups(),
            *process.prepare_join(namespace, process.CLONE_NEWUSER),
            *process.prepare_ids(0, 0),
        )
    )
    os.close(namespace)
    words = [*order["python"], "-I", "-S", order["guest"], "locked"]
    os.execve(words[0], words, {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})  # noqa: S606


def _attach(views: list[int], paths: list[str], owner: int) -> None:
    """Attach views of volumes in the new root; a link on the way to one is an error."""
    for view, path in zip(views, paths):  # noqa: B905 - Python 3.8
        _make(path, owner)
        do_all((mounts.prepare_move(view, path),))
        os.close(view)


def _make(path: str, owner: int) -> None:
    """Make a directory, and those above it, where there are none."""
    parts = path.split("/")
    for end in range(2, len(parts) + 1):
        above = "/".join(parts[:end])
        if not os.path.lexists(above):
            os.mkdir(above, 0o755)
            os.chown(above, owner, owner)
        elif not stat.S_ISDIR(os.lstat(above).st_mode):
            raise NotADirectoryError(f"{path} leads through {above}, no directory")


def _show_ours(order: dict[str, Any]) -> None:
    """Mount the guest and the interpreter at their places, which `jail.unpack` made directories."""
    own = _ROOT + order["own"]
    if not stat.S_ISDIR(os.lstat(own).st_mode):
        raise NotADirectoryError(own)
    mounts.mount("tmpfs", own, "tmpfs", _FLAGS, "size=64k,nr_inodes=8,mode=755")
    guest, python = _ROOT + order["guest"], _ROOT + order["own_python"]
    os.mkdir(python, 0o755)
    with open(guest, "xb"):
        pass
    for source, target in ((order["guest"], guest), (INTERPRETER, python), (own, own)):
        mounts.mount(source, target, None, mounts.MS_BIND | mounts.MS_REC, None)
        mounts.mount_setattr(target, _READ_ONLY, recursive=False)


def become_user(lock: dict[str, Any]) -> tuple[Any, ...]:
    """Return the calls that leave the image's user with its capabilities only. capabilities(7).

    The order is that of `jail.plan.lockdown`. No death signal: the parent is the engine's starter.
    """
    uid, gid, kept = int(lock["uid"]), int(lock["gid"]), int(lock["capabilities"])
    bits = () if kept else (process.prepare_securebits(process.SECUREBITS_LOCKED),)
    return (
        process.prepare_no_groups(),
        *bits,
        *process.prepare_drop_bounding(process.last_capability(), kept),
        process.prepare_clear_ambient(),
        *process.prepare_ids(uid, gid),
        process.prepare_capabilities(kept),
        process.prepare_no_dumps(),
    )
