"""Heap: the memory layout of a server process, where big blocks are mapped separately.

Called once by `serve`. The invariant: only memory depends on it; where the C library lacks the
feature, nothing is done.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
"""Option number of mallopt(3)."""
BIG_BYTES = 64 * 1024
"""Size in bytes of the pieces in which output comes. glibc allocates smaller blocks from one heap,
which never shrinks under a small block that lives longer: a hundred 6 MiB outputs left 700 MiB of
holes."""


def keep_big_blocks_apart() -> bool:
    """Map each block from `BIG_BYTES` on separately; return whether the C library can do that.

    It also stops glibc from raising the bound to the largest block it has seen freed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BIG_BYTES))
