"""Where a server process's memory lies: big blocks apart, and what stays on huge pages.

Called once each by `serve`. The invariant: nothing but memory and time depend on it; where the C
library or the kernel has no such thing, nothing is done.
"""

from __future__ import annotations

import ctypes

from cellwall.jail.fast import huge_pages

_M_MMAP_THRESHOLD = -3
"""mallopt(3)"""
BIG_BYTES = 64 * 1024
"""Output comes in pieces of this size. Below it glibc cuts from one heap, which never shrinks under
a small block that lives longer: a hundred 6 MiB outputs left 700 MiB of holes."""


def keep_big_blocks_apart() -> bool:
    """Give each block from `BIG_BYTES` on a mapping of its own; whether the C library does that.

    It also ends glibc's habit of raising the bound to the largest block it has seen freed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BIG_BYTES))


def lie_on_huge_pages() -> int:
    """Gather what the process has until now; how many huge pages that makes.

    Between two requests other processes have the CPU: what a request does then takes five to ten
    times as long as in a loop, and a part of that is looking up where its pages are. Not for code:
    constants beside it would become executable (`huge_pages.collapse_interpreter`).
    """
    return huge_pages.collapse_anonymous()
