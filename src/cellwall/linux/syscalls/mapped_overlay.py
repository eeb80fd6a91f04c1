"""An overlay over a tree whose files are shown with other ids: the root of a sandbox on an image.

For processes of one thread that have the host's root (gVisor's keeper, a container's first
process): a jail makes its own in its user namespace. Standard library only. The invariant: the tree
is read-only, and only its top is opened; the overlay's marks are `trusted.` attributes, which no
process of a sandbox can set.
"""

from __future__ import annotations

import os

from cellwall.linux.syscalls import id_maps, mounts
from cellwall.linux.syscalls.libc import do_all

_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV
_READ_ONLY = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV


def mount(tree: str, ids: str, area: str, owner: int) -> str:
    """Mount `tree` with `ids`, a line of an id map, below an overlay; return the overlay's path.

    What is changed lies in `area`, a directory, and the overlay's top belongs to `owner`. Raises
    OSError.
    """
    lower, upper, work, root = (f"{area}/{name}" for name in ("image", "upper", "work", "root"))
    for path in (lower, upper, work, root):
        os.mkdir(path, 0o755)
    os.chown(upper, owner, owner)
    namespace = id_maps.namespace(ids)
    top = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    made = mounts.cloned_mapped(top, namespace, _READ_ONLY)
    do_all((mounts.prepare_move(made, lower),))
    for fd in (namespace, top, made):
        os.close(fd)
    options = mounts.changeable(lower, upper, work, marks="trusted")
    mounts.mount("overlay", root, "overlay", _FLAGS, options)
    return root
