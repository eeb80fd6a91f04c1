"""Limits for what one sandbox may take of the counts that it shares with all others of its user.

Runs in the engine process, only where sandboxes have no ids of their own
(`uid_ranges.Ids.are_shared`). The kernel bounds these counts for a user and not for a namespace, so
a sandbox is bounded by the number of descriptors it may have. What it takes of its own counts is
elsewhere (`plan.OWN_COUNTS`, rlimits).
"""

from __future__ import annotations

from pathlib import Path

from cellwall.jail.inspect.probe_counts import Found
from cellwall.model.errors import HostUnsupported
from cellwall.model.limits import Limits

_WATCHES = Path("/proc/sys/fs/epoll/max_user_watches")
MOST_OPEN_FILES = 768
"""Most open files of a sandbox. It can have as many descriptors in transit as it may open, and one
message more (253): so a program whose limit is the usual 1024 can still send some."""
_SHARE = 3
"""Divisor: one sandbox gets a third of the epoll watches at most, unless it has default limits."""
_ENOUGH = 6
"""Number of sandboxes with default limits that may take all they can before any other lacks
watches."""


def epoll_watches(limits: Limits) -> int:
    """Return the most watches of a sandbox: half of each process's files epolls, half watched."""
    return limits.processes * (limits.open_files // 2) ** 2


def check(limits: Limits) -> None:
    """Raise `HostUnsupported` for limits that would let one sandbox starve the others."""
    usual = Limits()
    remedy = "ask for fewer open_files or processes, or give sandboxes ids of their own: "
    remedy += "`cellwall doctor` says how"
    if limits.open_files > max(MOST_OPEN_FILES, usual.open_files):
        raise HostUnsupported(
            "user ids",
            f"start a sandbox with {limits.open_files} open files: sandboxes share one user id "
            f"here, and {MOST_OPEN_FILES} is the most that leaves others enough",
            remedy=remedy,
        )
    watches, most = epoll_watches(limits), _most_watches()
    if most is not None and watches > max(most // _SHARE, epoll_watches(usual)):
        raise HostUnsupported(
            "user ids",
            f"start a sandbox with {limits.processes} processes of {limits.open_files} open files: "
            f"it could take {watches} epoll watches of {most}, which all sandboxes share here",
            remedy=remedy,
        )


def judge() -> list[Found]:
    """Judge for how many sandboxes the epoll watches of this user suffice."""
    most, each = _most_watches(), epoll_watches(Limits())
    if most is None:
        return []
    name, wanted = "fs.epoll.max_user_watches", _ENOUGH * epoll_watches(Limits())
    if most >= wanted:
        return [Found(name, "PASS", str(most))]
    why = f"{most}: sandboxes of one user share them, a greedy one takes {each}"
    return [Found(name, "CAUTION", why, f"sysctl -w {name}={wanted}")]


def _most_watches() -> int | None:
    try:
        return int(_WATCHES.read_text(encoding="ascii"))
    except OSError:
        return None
