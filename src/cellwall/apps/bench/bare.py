"""The floor: bare `python3 -c`, without isolation, from spawn to output.

What everything else is compared with. Not a way to run such code. Invariant: the
cheapest way to spawn (`posix_spawn`, no shell, no threads), so that a good ratio is not owed to a
slow floor.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

FLOOR = ("/usr/bin/python3", "-c", "print(1)")


def once(argv: Sequence[str]) -> float:
    """Run `argv` and return the seconds from the spawn to its output; reaps it afterwards."""
    read_fd, write_fd = os.pipe()
    begun = time.perf_counter()
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
        file_actions=[(os.POSIX_SPAWN_DUP2, write_fd, 1)],
    )
    os.close(write_fd)
    output = os.read(read_fd, 64)
    took = time.perf_counter() - begun
    os.close(read_fd)
    _, status = os.waitpid(pid, 0)
    if status or output != b"1\n":
        raise RuntimeError(f"bench: bare {argv[0]} printed {output!r}, wait status {status}")
    return took


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
