"""Shortage: the kernel's error numbers for an exhausted resource, as an error with the remedy.

Called wherever a start touches the host, in the jail and in the engine. It does not guess the cause
of other errors: a number outside the table is no shortage. A shortage passes, so the caller is told
when to try again.
"""

from __future__ import annotations

import errno

from cellwall.model.errors import CapacityError

_RETRY_S = 5.0
_SHORT_OF = {
    errno.EMFILE: ("this process has no free descriptor", "raise `ulimit -n` (LimitNOFILE=)"),
    errno.ENFILE: ("the host has no free descriptor", "raise fs.file-max"),
    errno.EAGAIN: (
        "no further process or thread may be made",
        "raise the limit on processes of this process's cgroup or user (TasksMax=, `ulimit -u`)",
    ),
    errno.ENOMEM: ("there is no memory left", "give the host or this process's cgroup more"),
    errno.ETOOMANYREFS: (
        "too many descriptors of this user are on their way between processes",
        "raise `ulimit -n` (LimitNOFILE=), and give sandboxes user ids of their own: "
        "`cellwall doctor` says how",
    ),
}
WATCHES = (
    "this user has no free epoll watch, of which all its sandboxes and programs share one count",
    "raise fs.epoll.max_user_watches, and give sandboxes user ids of their own: "
    "`cellwall doctor` says how",
)
"""Meaning of ENOSPC where nothing is written: epoll_ctl(2)."""
_SHORT_OF_DISK = {
    errno.ENOSPC: ("the disk has no free block or inode", "make room below the state directory"),
    errno.EDQUOT: ("the disk quota is used up", "make room below the state directory"),
}


def shortage(
    number: int | None,
    step: str,
    said: object = "",
    *,
    on_disk: bool = False,
    is_watching: bool = False,
) -> CapacityError | None:
    """Return the error for a failed `step` if `number` is an errno of a shortage.

    `said` is the kernel's or cellwall's own text. `on_disk`: the step writes to a disk; elsewhere
    ENOSPC may come from a kernel setting (user.max_user_namespaces), and waiting does not help.
    `is_watching`: the step registers a descriptor with an event loop.
    """
    table = {**_SHORT_OF, **_SHORT_OF_DISK} if on_disk else _SHORT_OF
    if is_watching:
        table = {**_SHORT_OF, errno.ENOSPC: WATCHES}
    if number not in table:
        return None
    what, remedy = table[number]
    words = f" ({said})" if said else ""
    return CapacityError(f"{step}: {what}{words}", retry_after_s=_RETRY_S, remedy=remedy)
