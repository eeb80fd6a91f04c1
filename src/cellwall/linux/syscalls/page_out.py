"""Page-out: what a process keeps in memory is written to swap, by process_madvise(2).

Called from worker threads of the engine for processes that stand still. It needs CAP_SYS_NICE, and
works whatever the swappiness of their cgroup. Nothing changes for the process: what it touches
later comes back.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Iterator, List, Tuple

from cellwall.linux.syscalls.libc import SLOW, SyscallError

_SYS_PROCESS_MADVISE = 440
_MADV_PAGEOUT = 21
_MOST_RANGES = 1024
"""Most ranges of one call: IOV_MAX."""
_MOST_BYTES = 16 << 20
"""Most bytes of one call, which is not interrupted."""


class _Range(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def swap_areas() -> Tuple[str, ...]:
    """Return the areas that this machine swaps to, such as `/dev/zram0`."""
    try:
        lines = Path("/proc/swaps").read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return ()
    return tuple(line.split()[0] for line in lines if line.strip())


def page_out(pid: int) -> int:
    """Write a process's memory to swap; return the bytes looked at. Raises OSError.

    The kernel leaves alone what other processes have mapped, too.
    """
    pidfd = os.pidfd_open(pid)
    try:
        return sum(_advise(pidfd, part) for part in _parts(_writable(pid)))
    finally:
        os.close(pidfd)


def _writable(pid: int) -> Iterator[Tuple[int, int]]:
    """Yield start and length of what is writable, in steps of `_MOST_BYTES`."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, rights = line.split(" ", 2)[:2]
            start, end = (int(word, 16) for word in span.split("-"))
            if rights.startswith("rw"):
                for at in range(start, end, _MOST_BYTES):
                    yield at, min(_MOST_BYTES, end - at)


def _parts(ranges: Iterator[Tuple[int, int]]) -> Iterator[List[Tuple[int, int]]]:
    part: List[Tuple[int, int]] = []
    for each in ranges:
        full = sum(length for _, length in part) + each[1] > _MOST_BYTES
        if part and (full or len(part) == _MOST_RANGES):
            yield part
            part = []
        part.append(each)
    if part:
        yield part


def _advise(pidfd: int, part: List[Tuple[int, int]]) -> int:
    vector = (_Range * len(part))(*(_Range(*each) for each in part))
    done = SLOW.syscall(
        ctypes.c_long(_SYS_PROCESS_MADVISE),
        ctypes.c_long(pidfd),
        vector,
        ctypes.c_long(len(part)),
        ctypes.c_long(_MADV_PAGEOUT),
        ctypes.c_long(0),
    )
    if done == -1 and ctypes.get_errno() not in {errno.ENOMEM, errno.EINVAL}:  # a gap, or locked
        raise SyscallError(ctypes.get_errno(), "process_madvise")
    return max(0, int(done))
