"""The few calls of libc for which Python has no function.

Used by `processes.py`, which says what they are for. Loading this module takes longer than a
sandbox for one program can afford, so it is imported on use, and by fork-servers before their
forks.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

# Made before any fork: a fork pays for every page it writes to, and these touch many.
_PRCTL: Any = ctypes.CDLL(None).prctl
_CLOSE_RANGE: Any = getattr(ctypes.CDLL(None), "close_range", lambda *_: -1)
_CLOSE_RANGE_CLOEXEC = ctypes.c_int(4)
_LAST_FD = ctypes.c_uint(2**32 - 1)
# PyDLL: the GIL stays with the one thread, in the parent and in the child.
_FORK: Any = ctypes.PyDLL(None, use_errno=True).fork
_PRCTL_ARGUMENTS = tuple(
    (ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    for value in (0, 1)
)


def fork() -> int:
    """Call fork(2) without CPython's hooks. Raises OSError."""
    pid = int(_FORK())
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with 0 or 1. Best effort."""
    _PRCTL(option, *_PRCTL_ARGUMENTS[value])


def close_on_exec_from(first_fd: int) -> bool:
    """Mark every descriptor from `first_fd` on; False before Linux 5.11 or glibc 2.34."""
    return int(_CLOSE_RANGE(ctypes.c_uint(first_fd), _LAST_FD, _CLOSE_RANGE_CLOEXEC)) == 0
