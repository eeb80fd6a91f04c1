"""The C heap of a server process: big blocks live apart from it, so that freeing gives them back.

Not Python's own allocator, whose objects are small. Called once, before anything big is made. The
invariant: nothing but memory depends on it; where the C library has no such setting it does
nothing.
"""

from __future__ import annotations

import ctypes

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
