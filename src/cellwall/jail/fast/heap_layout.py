"""A compact warm heap: what forks write to lies together, and the rest may have huge pages.

When a fork writes one byte into a huge page, the page is split into 512 small ones. The same
happens when the process that was forked writes to it afterwards. No policy; called by the
fork-server.
"""

from __future__ import annotations

import ctypes
import gc
from functools import partial
from typing import Callable, List

from cellwall.jail.fast import huge_pages
from cellwall.linux.syscalls.libc import LIBC

SESSION_ARENAS = 24
"""Number of arenas for what only sessions need, which fills fewer."""


class ArenaReservation:
    """CPython's arenas, mapped in one go so that they lie side by side.

    They are 1 MiB each. Mapped one by one, they would lie between the libraries that an import
    maps, and none of them would contain an aligned 2 MiB to collapse.
    """

    def __init__(self, count: int) -> None:
        """Map `count` arenas; one small object in each keeps CPython from giving it back.

        With a count of 0 nothing is done: a fork-server of a few sandboxes is not worth it.
        """
        self._kept: List[bytes] = []
        if not count:
            return
        _keep_large_blocks_in_the_heap()
        # Made in its final length: a growing list would be mapped again and again in between.
        blocks: List[bytes] = [b""] * (count * _BLOCKS_PER_ARENA)
        _align_next_mapping()
        for number in range(len(blocks)):
            blocks[number] = bytes(_BLOCK_PAYLOAD)
        # At the same place in each arena: CPython fills the fullest arena first, and the free space
        # that it leaves lies together.
        last = id(blocks[-1])
        start = next(each.start for each in huge_pages.mappings() if each.start <= last < each.end)
        self._kept = list({(id(block) - start) // _ARENA: block for block in blocks}.values())
        # Rehearsals fork, too, and most of these pages are empty then.
        del blocks
        huge_pages.collapse_anonymous()

    def give_back(self) -> None:
        """Unmap the arenas that stayed unused, and memory that malloc holds without using it."""
        self._kept.clear()
        LIBC.malloc_trim(ctypes.c_size_t(0))


_ARENA = 1024 * 1024
_MOST_PLACES = 8
_BLOCK_PAYLOAD = 512 - 33
"""Bytes in the largest `bytes` object that CPython's own allocator takes: 512 with its header."""
_BLOCKS_PER_ARENA = _ARENA // 512
_LARGE = ctypes.c_size_t(4 * 1024 * 1024)
_CHUNKS = tuple(2**exponent for exponent in range(20, 3, -1))


def _keep_large_blocks_in_the_heap() -> None:
    """Have malloc take blocks below `_LARGE` from its heap instead of mapping each of them.

    A table of 2 MiB in a mapping of its own has no huge page. In every program, freeing a mapped
    block raises the least size that is mapped to the size of that block: M_MMAP_THRESHOLD in
    mallopt(3).
    """
    LIBC.free(ctypes.c_void_p(LIBC.malloc(_LARGE)))


def _align_next_mapping() -> None:
    """Have the next mapping end at a huge-page boundary. This occupies addresses, not memory.

    The addresses are chosen exactly, because the kernel would put a small mapping into a hole
    between two libraries. If the place of the next mapping is too short to be cut off at a
    boundary, all of it is occupied, and the place after it is tried.
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
    """The result of mallinfo2(3): ten counters, the last of which is the size of the top chunk."""

    _fields_ = (("others", ctypes.c_size_t * 9), ("keepcost", ctypes.c_size_t))


_MALLINFO = getattr(LIBC, "mallinfo2", None)
"""mallinfo2 of glibc 2.33 or later; None with an older one, and malloc's holes stay."""
if _MALLINFO is not None:
    _MALLINFO.restype = _Mallinfo2
LIBC.malloc.restype = ctypes.c_void_p
LIBC.sbrk.restype = ctypes.c_ssize_t


class HoleFiller:
    """Objects and blocks in every hole of the heap, so that forks allocate beside it, not in it.

    What a fork allocates lands in the next hole, all over the heap: each hole costs it a copied
    page, and most cost a split huge page. With the holes filled it gets fresh pages next to each
    other. The fillers live as long as the process, and so does everything that was needed to make
    them; freed, it would be a hole again.
    """

    def __init__(self) -> None:
        """Fill CPython's pools first: its arenas are not malloc's, but the list of fillers is."""
        self._objects: List[object] = []
        self._known = [
            (each.start, each.end)
            for each in huge_pages.mappings()
            if each.permissions == "rw-p" and not each.path
        ]
        self._makers = _one_of_each_size()
        # Free objects that CPython keeps for its next tuples, lists, dicts and floats are holes,
        # too. A full collection frees them, except the one slice that it keeps.
        gc.collect()
        self._slice = slice(None)
        # The largest first: they take whole pools, until a new arena is mapped. Then the others,
        # which get their next pool from that arena.
        for make in reversed(self._makers):
            self._fill(make)
        if _MALLINFO is not None:
            self._fill_malloc(_MALLINFO())
        _hole_fillers.append(self)

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


_hole_fillers: List[HoleFiller] = []


def _one_of_each_size() -> List[Callable[[], object]]:
    """Return makers of objects for each of CPython's size classes: 16, 32, … 512 bytes."""
    small: List[Callable[[], object]] = [object, lambda: float("0.5")]
    return small + [partial(bytes, size - 33) for size in range(48, 513, 16)]
