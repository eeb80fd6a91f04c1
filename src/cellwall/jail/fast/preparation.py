"""What a fork-server does to itself before its forks, so that they copy little of it.

Called by `forkserver` with everything imported, and not at all where `switch` is off.
"""

from __future__ import annotations

import gc
from typing import Callable

from cellwall.jail.fast import heap_layout, huge_pages


def prepare(recall: Callable[[], None]) -> None:
    """Lay out this process's memory; `recall` repeats what forks do first, for CPython's caches."""
    huge_pages.collapse_anonymous()
    recall()
    # After everything that frees memory: freed memory is a hole, and most holes lie in huge pages.
    heap_layout.HoleFiller()
    gc.freeze()
