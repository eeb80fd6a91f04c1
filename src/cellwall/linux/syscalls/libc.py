"""The one place that opens libc.

Called by the other modules of this package only. Every call here holds the GIL (`PyDLL`): a
fork-server has one thread, and a raw clone between two bytecodes must not race.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Callable, NamedTuple, Tuple

LIBC = ctypes.PyDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
SLOW = ctypes.CDLL(None, use_errno=True)
"""For calls of a process with threads that may take long: the others go on meanwhile."""
SLOW.syscall.restype = ctypes.c_long


class SyscallError(OSError):
    """An OSError with the failed step; `step` names the call and its object."""

    def __init__(self, number: int, step: str) -> None:
        super().__init__(number, f"{step}: {os.strerror(number)}")
        self.step = step


class Prepared(NamedTuple):
    """A libc call with its arguments already converted.

    Made in the fork-server, done in each fork: what a fork does not build it does not copy.
    """

    function: Callable[..., int]
    arguments: Tuple[object, ...]
    step: str
    tolerated: int = 0
    """An errno that is no failure; 0: none."""
    expected: int = -1
    """The only good result, where a later call was prepared with it; -1 takes any."""


def do_all(calls: Tuple[Prepared, ...]) -> None:
    """Do prepared calls in order; the first failure raises `SyscallError`."""
    for function, arguments, step, tolerated, expected in calls:
        result = function(*arguments)
        if result == -1 and ctypes.get_errno() != tolerated:
            raise SyscallError(ctypes.get_errno(), step)
        if result != expected != -1:
            raise SyscallError(errno.EBADFD, f"{step}: {result} instead of {expected}")


def check(result: int, step: str) -> int:
    """Return `result`, or raise `SyscallError` with the thread's errno when it is -1."""
    if result == -1:
        raise SyscallError(ctypes.get_errno(), step)
    return result


def syscall(number: int, *args: object, step: str) -> int:
    """Call `syscall(2)`; integers are passed as 64-bit values."""
    words = [ctypes.c_ulong(a & 0xFFFFFFFFFFFFFFFF) if isinstance(a, int) else a for a in args]
    return check(int(LIBC.syscall(ctypes.c_long(number), *words)), step)
