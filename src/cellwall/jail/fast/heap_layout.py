"""A compact warm heap: what forks write to lies together, and the rest may have huge pages.

A huge page falls apart into 512 small ones when a fork writes one byte into it, and the process
that it was forked from does the same when it goes on. No policy; called by the fork-server.
"""

from __future__ import annotations

import ctypes
import gc
from functools import partial
from typing import Callable, List

from cellwall.jail.fast import huge_pages
from cellwall.linux.syscalls.libc import LIBC

SESSION_ARENAS = 24
"""More than what only sessions need fills."""


class Arenas:
    """CPython's arenas, mapped in one go so that they lie side by side.

    They are 1 MiB each and are mapped one by one between the libraries that an import maps;
    alone, none of them holds an aligned 2 MiB to collapse.
    """

    def __init__(self, count: int) -> None:
        """Map `count` of them; one small object in each keeps it from being given back."""
        _keep_large_blocks_in_the_heap()
        # As long as it will be: a list that grows is mapped again and again in between.
        blocks: List[bytes] = [b""] * (count * _BLOCKS_PER_ARENA)
        _align_next_mapping()
        for number in range(len(blocks)):
            blocks[number] = bytes(_BLOCK_PAYLOAD)
        # The same in each: CPython fills the fullest first, and what it leaves lies together.
        last = id(blocks[-1])
        start = next(each.start for each in huge_pages.mappings() if each.start <= last < each.end)
        self._kept = list({(id(block) - start) // _ARENA: block for block in blocks}.values())
        # Rehearsals fork, too, and most of this is empty then.
        del blocks
        huge_pages.collapse_anonymous()

    def give_back(self) -> None:
        """Unmap those that nobody came to use, and what malloc holds without using it."""
        self._kept.clear()
        LIBC.malloc_trim(ctypes.c_size_t(0))


_ARENA = 1024 * 1024
_MOST_PLACES = 8
_BLOCK_PAYLOAD = 512 - 33
"""The largest `bytes` that CPython's own allocator takes: 512 bytes with its header."""
_BLOCKS_PER_ARENA = _ARENA // 512
_LARGE = ctypes.c_size_t(4 * 1024 * 1024)
_CHUNKS = tuple(2**exponent for exponent in range(20, 3, -1))


def _keep_large_blocks_in_the_heap() -> None:
    """Have malloc map none of its own that is smaller than this.

    Alone, a table of 2 MiB has no huge page. The least size that is mapped becomes that of a mapped
    block which is given back, in whatever program that does: M_MMAP_THRESHOLD in mallopt(3).
    """
    LIBC.free(ctypes.c_void_p(LIBC.malloc(_LARGE)))


def _align_next_mapping() -> None:
    """Have the next mappings end where a huge page may; what it takes is addresses, not memory.

    Exactly those: the kernel would put what is small into a hole between two libraries. Where the
    place for the next one is too short to be cut off, it is taken, and another one comes.
    """
    for _ in range(_MOST_PLACES):
        probe = huge_pages.map_anonymous(_ARENA)
        if probe is None:
            return
        huge_pages.unmap(probe, _ARENA)
        end = probe + _ARENA
        excess = min(end % huge_pages.BYTES, _ARENA)
        if not excess:
            return
        huge_pages.map_anonymous(excess, near=end - excess)


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
    other. They live as long as the process, and so does whatever was needed to make them: freed,
    it was a hole again.
    """

    def __init__(self) -> None:
        """Fill CPython's pools first: its arenas are not malloc's, but what holds fillers is."""
        self._objects: List[object] = []
        self._known = [
            (each.start, each.end)
            for each in huge_pages.mappings()
            if each.permissions == "rw-p" and not each.path
        ]
        self._makers = _one_of_each_size()
        # What CPython keeps for its next tuples, lists, dicts and floats is holes, too. A full
        # collection lets go of it, but for the one slice that it keeps.
        gc.collect()
        self._slice = slice(None)
        # The largest first: whole pools, until a new arena is mapped. Then the others, which get
        # their next pool from there.
        for make in reversed(self._makers):
            self._fill(make)
        if _MALLINFO is not None:
            self._fill_malloc(_MALLINFO())
        _fillers.append(self)

    def _fill(self, make: Callable[[], object]) -> None:
        while True:
            thing = make()
            self._objects.append(thing)
            if not any(first <= id(thing) < end for first, end in self._known):
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
