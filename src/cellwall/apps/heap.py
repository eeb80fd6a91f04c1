"""Heap: the memory of a server's process, or a gateway's: its layout, and its collector.

Called once by `serve`; a gateway has the collector spared alone. The invariant: only memory and
time depend on it; where the C library lacks a feature, nothing is done.
"""

from __future__ import annotations

import ctypes
import gc

_M_MMAP_THRESHOLD = -3
"""Option number of mallopt(3)."""
BIG_BYTES = 64 * 1024
"""Size in bytes of the pieces in which output comes. glibc allocates smaller blocks from one heap,
which never shrinks under a small block that lives longer: a hundred 6 MiB outputs left 700 MiB of
holes."""
_COLLECT_AFTER = 20_000
"""Number of objects made and not freed since the last collection; the older two generations stay at
10 collections each."""


def keep_big_blocks_apart() -> bool:
    """Map each block from `BIG_BYTES` on separately; return whether the C library can do that.

    It also stops glibc from raising the bound to the largest block it has seen freed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BIG_BYTES))


def spare_the_collector() -> None:
    """Exclude long-lived objects from garbage collection, and collect less often.

    Young objects were scanned once in six requests, 0.15 ms of each; a scan of the old ones,
    modules and tables among them, delayed all requests by 0.18 s on a busy machine.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
