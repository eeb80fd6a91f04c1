"""What the kernel means when it has no more of something: our error for it, with the remedy.

Called where a start touches the host. Not a guess about the cause of any other error: what is not
in the table is no shortage. A shortage passes, so the caller is told when to try again.
"""

from __future__ import annotations

import errno

from cellwall.model.errors import CapacityError

_RETRY_S = 1.0
_SHORT_OF = {
    errno.EMFILE: ("this process has no free descriptor", "raise `ulimit -n` (LimitNOFILE=)"),
    errno.ENFILE: ("the host has no free descriptor", "raise fs.file-max"),
    errno.EAGAIN: (
        "no further process may be made",
        "raise the limit on processes of this process's cgroup or user (TasksMax=, `ulimit -u`)",
    ),
    errno.ENOMEM: ("there is no memory left", "give the host or this process's cgroup more"),
}


def shortage(number: int | None, step: str, said: object = "") -> CapacityError | None:
    """Return the error for a failed `step` if `number` is an errno of a shortage.

    `said` are the kernel's or our own words for it.
    """
    if number not in _SHORT_OF:
        return None
    what, remedy = _SHORT_OF[number]
    words = f" ({said})" if said else ""
    return CapacityError(f"{step}: {what}{words}", retry_after_s=_RETRY_S, remedy=remedy)
