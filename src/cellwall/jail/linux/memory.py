"""A compact warm heap with huge pages under it, so that forking it copies few page-table entries.

Measured on the reference machine: fork and exit of a process with 100 MiB of small pages costs
7.3 ms, with huge pages 0.7 ms. A small page costs every fork 0.2 µs, to copy and to let go, also
when it is empty. No policy; called by the fork-server before its first forks.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Callable, List, Tuple

from cellwall.jail.linux.libc import LIBC

_MADV_COLLAPSE = 25
"""madvise(2), Linux 6.1: gather present pages into huge ones now, whatever sysfs says but never."""
_HUGE = 2 * 1024 * 1024
USUAL_ARENAS = 24
"""More than most templates fill."""


class Arenas:
    """CPython's arenas, mapped in one go so that they lie side by side.

    They are 1 MiB each and are mapped one by one between the libraries that an import maps;
    alone, none of them holds an aligned 2 MiB to collapse.
    """

    def __init__(self, count: int) -> None:
        """Map `count` of them; one small object in each keeps it from being given back."""
        blocks = [bytes(_BLOCK_PAYLOAD) for _ in range(count * _BLOCKS_PER_ARENA)]
        self._kept = blocks[::_BLOCKS_PER_ARENA]

    def give_back(self) -> None:
        """Unmap those that nobody came to use, and what malloc holds without using it."""
        self._kept.clear()
        LIBC.malloc_trim(ctypes.c_size_t(0))


_BLOCK_PAYLOAD = 512 - 33
"""The largest `bytes` that CPython's own allocator takes: 512 bytes with its header."""
_BLOCKS_PER_ARENA = 1024 * 1024 // 512
_CHUNKS = tuple(2**exponent for exponent in range(20, 3, -1))


class _Mallinfo2(ctypes.Structure):
    """What mallinfo2(3) returns: ten counters, the last is the size of the top chunk."""

    _fields_ = (("others", ctypes.c_size_t * 9), ("keepcost", ctypes.c_size_t))


_MALLINFO = getattr(LIBC, "mallinfo2", None)
"""glibc 2.33; with an older one the holes of malloc's heap stay."""
if _MALLINFO is not None:
    _MALLINFO.restype = _Mallinfo2
LIBC.malloc.restype = ctypes.c_void_p
LIBC.sbrk.restype = ctypes.c_ssize_t


class Fillers:
    """Objects and blocks in every hole of the heap, so that forks allocate beside it, not in it.

    What a fork allocates lands in whatever hole is next, all over the heap: a page copied for
    each, and a huge page split for most. Behind the fillers it gets fresh pages next to each
    other. They live as long as the process.
    """

    def __init__(self) -> None:
        """Fill CPython's pools first: its arenas are not malloc's, but what holds fillers is."""
        self._objects: List[object] = []
        known = _anonymous()
        # The largest first: whole pools, until a new arena is mapped. Then the others, which get
        # their next pool from there.
        for make in reversed(_one_of_each_size()):
            self._fill(make, known)
        if _MALLINFO is not None:
            self._fill_malloc(_MALLINFO())
        _fillers.append(self)

    def _fill(self, make: Callable[[], object], known: List[Tuple[int, int]]) -> None:
        while True:
            thing = make()
            self._objects.append(thing)
            if not any(first <= id(thing) < end for first, end in known):
                return

    def _fill_malloc(self, found: _Mallinfo2) -> None:
        """Take every free chunk, large ones whole, up to where the heap would grow."""
        top = LIBC.sbrk(ctypes.c_ssize_t(0)) - found.keepcost
        for size in _CHUNKS:
            while True:
                address = LIBC.malloc(ctypes.c_size_t(size))
                if not address or address >= top:
                    LIBC.free(ctypes.c_void_p(address))
                    break


_fillers: List[Fillers] = []


def _one_of_each_size() -> List[Callable[[], object]]:
    """Makers of objects for each of CPython's size classes: 16, 32, … 512 bytes."""
    small: List[Callable[[], object]] = [object, lambda: float("0.5")]
    return small + [partial(bytes, size - 33) for size in range(48, 513, 16)]


def _anonymous() -> List[Tuple[int, int]]:
    """Where anonymous memory is mapped: every arena there is."""
    found = []
    for fields in _mappings():
        if fields[1] == "rw-p" and len(fields) < 6:
            start, _, end = fields[0].partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _mappings() -> List[List[str]]:
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        return [line.split() for line in file.read().splitlines()]


def collapse_anonymous() -> int:
    """Collapse every whole 2 MiB of private, writable, anonymous memory; returns how many.

    A refusal (older kernel, no memory for it) costs speed only, so it is counted and not raised.
    """
    collapsed = 0
    for fields in _mappings():
        is_anonymous = len(fields) < 6 or fields[5] == "[heap]"
        if fields[1] != "rw-p" or not is_anonymous:
            continue
        start, end = (int(word, 16) for word in fields[0].split("-"))
        low, high = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        for address in range(low, high, _HUGE):
            arguments = (ctypes.c_void_p(address), ctypes.c_size_t(_HUGE))
            if LIBC.madvise(*arguments, ctypes.c_int(_MADV_COLLAPSE)) == 0:
                collapsed += 1
    return collapsed
