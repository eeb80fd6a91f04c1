"""The floor: bare `python3 -c`, without isolation, from spawn to output.

What everything else is compared with. Not a way to run such code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from cellwall.apps.timings import FLOOR, once

__all__ = ["FLOOR", "once", "per_second"]


def per_second(argv: Sequence[str], callers: int, duration_s: float) -> float:
    """Run `argv` in a closed loop from `callers` threads; return completed runs per second."""
    counts = [0] * callers
    begun = time.perf_counter()
    end = begun + duration_s

    def call(slot: int) -> None:
        while time.perf_counter() < end:
            once(argv)
            counts[slot] += 1

    threads = [threading.Thread(target=call, args=(slot,)) for slot in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)
