"""Guard: the process that ends a node's actor if nothing in the actor does.

Started beside each actor, as a file, by an interpreter without site packages: standard library
only. It hears the end of the lease on its standard input, eight bytes each time, in nanoseconds of
CLOCK_BOOTTIME, and kills the actor when that has passed, also one that is stopped or hangs. The end
of the actor is the end of its sandboxes, by the kernel. The invariant: it kills the process that
it was given, by a descriptor, never one that has got the same number later.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time

_DEADLINE = struct.Struct(">q")
READY = b"ready\n"
_LOOK_S = 0.25
"""Longest wait between two looks at the clock: a wait of `select` does not count suspension."""


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def watch(deadlines_r: int, actor_fd: int, deadline_ns: int) -> None:
    """Return once the actor has ended or its lease has; a lease that has ended kills it."""
    while True:
        left_s = (deadline_ns - _boot_ns()) / 1e9
        if left_s <= 0:
            signal.pidfd_send_signal(actor_fd, signal.SIGKILL)
            return
        ready, _, _ = select.select([deadlines_r, actor_fd], [], [], min(left_s, _LOOK_S))
        if actor_fd in ready:
            return
        if deadlines_r in ready:
            told = os.read(deadlines_r, 4096)
            if not told:
                return
            # Written whole: a pipe does not split eight bytes.
            deadline_ns = _DEADLINE.unpack(told[-_DEADLINE.size :])[0]


if __name__ == "__main__":
    _actor_fd = os.pidfd_open(int(sys.argv[1]))
    os.write(1, READY)
    os.close(1)
    watch(0, _actor_fd, int(sys.argv[2]))
