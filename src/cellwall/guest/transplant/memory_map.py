"""What a process has mapped, as /proc/PID/maps says, and how one map becomes another.

Pure: text in, regions out; `lists.py` makes records of them. A map belongs to a process that stands
still, so it is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from cellwall.guest.transplant.walker import AS_IN_BASE, PAGE, SCRATCH, SCRATCH_END, ZERO

_KERNELS = ("[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]")
_KEPT = " rw-p "
_NO_FILE = " 00:00 0 "
HEAP, STACK = "[heap]", "[stack]"
_EXISTS = bytes(int(flag >= 0x40) for flag in range(256))
_EQUAL = bytes(flag & 1 for flag in range(256))
_TOLD = bytes(flag >> 1 & 1 for flag in range(256))
_IS_BOTH = 3


class Unlike(Exception):
    """Two processes are not laid out alike, or one has what no copy can have."""


class Region(NamedTuple):
    """One line of /proc/PID/maps, proc_pid_maps(5)."""

    start: int
    end: int
    rights: str
    """`rwx` and `p` or `s`."""
    offset: int
    """Offset in the file, in bytes."""
    path: str
    """Path of the file, a name in brackets, or nothing."""
    inode: int = 0
    """Number of the file in its file system."""

    @property
    def is_anonymous(self) -> bool:
        """Whether its pages come from no file."""
        return not self.path or self.path.startswith("[")

    @property
    def is_kept(self) -> bool:
        """Whether the base has its pages: those that a process may write to."""
        return self.rights == "rw-p"

    @property
    def protection(self) -> int:
        """The rights as in mmap(2)."""
        return sum(1 << n for n, letter in enumerate("rwx") if self.rights[n] == letter)


class Piece(NamedTuple):
    """A range of addresses that may have other pages than the base."""

    start: int
    end: int
    is_stack: bool
    kept: Region | None
    """The region of the base that it is a part of."""
    file: Region | None = None
    """The region itself, if its pages come from a file that the base has not there."""


class Change(NamedTuple):
    """How one map becomes another."""

    gone: list[tuple[int, int]]
    """Ranges to unmap."""
    new: list[Region]
    """Regions to map anew; those without a path have pages of zeros."""
    heap_end: int
    """The end of the heap, brk(2); 0: as it is."""
    pieces: list[Piece]
    """What may have other pages than the base: of regions in both, and of new ones."""


class Base:
    """The map of a base, and which pages of the regions that it keeps are in its file.

    As text and one byte for each page of those regions, in their order: whether it exists.
    """

    def __init__(self, data: bytes) -> None:
        """Raises Unlike if `data` is no base's."""
        text, _, flags = data.partition(b"\0")
        self.lines = text.decode("utf-8", "surrogateescape").splitlines()
        """The lines of its map, as `lines_of` returns them."""
        self.kept: dict[Region, tuple[bytes, int]] = {}
        """The flags of each region, and where the file has its first page, in bytes."""
        self._equal: dict[Region, bytes] = {}
        """Which pages of a process are known to be the base's, if that is known."""
        self._told: dict[Region, tuple[int, bytes]] = {}
        """Which pages of a process exist, from an address on, if that is known."""
        self.same: set[Region] = set()
        """Regions that the base has whole, and of which a process has every page as the base."""
        self.regions: dict[str, Region] = {}
        """The kept regions by their lines."""
        position = place = 0
        for line in self.lines:
            if _KEPT in line:
                region = self.regions[line] = read_line(line)
                own = flags[position : position + (region.end - region.start) // PAGE]
                self.kept[region] = (own, place)
                position += len(own)
                place += own.count(1) * PAGE
        self.size = place
        """Size of the file, in bytes."""

    def take_equal(self, flags: bytes) -> None:
        """Take which pages a process has as the base; nothing of them is known if there are none.

        A byte for each page of all kept regions, from the first to the last that the base has: 1 if
        it is the base's; 2 if the process has one, which hosts of earlier versions do not say.
        """
        self._equal.clear()
        self._told.clear()
        self.same.clear()
        kept = [(region, own) for region, (own, _place) in self.kept.items() if 1 in own]
        ends = [(own.index(1), own.rindex(1) + 1) for _region, own in kept]
        if len(flags) != sum(last - first for first, last in ends):
            return
        told = flags.translate(_TOLD) if _IS_BOTH in flags else b""
        flags = flags.translate(_EQUAL)
        position = 0
        for (region, own), (first, last) in zip(kept, ends):
            place = slice(position, position + last - first)
            position = place.stop
            part = flags[place]
            self._equal[region] = bytes(first) + part
            if told:
                self._told[region] = (region.start + first * PAGE, told[place])
            if part.count(1) == len(own) == own.count(1):
                self.same.add(region)

    def existing(
        self, region: Region, start: int, end: int, read: Callable[[int, int], bytes]
    ) -> bytes:
        """Return which pages of a part of a region a process has; `read` does for what is not told.

        That returns a byte for each page of a range of addresses.
        """
        first, told = self._told.get(region, (start, b""))
        low, high = max(start, first), min(end, first + len(told) * PAGE)
        if low >= high:
            return read(start, end)
        known = told[(low - first) // PAGE : (high - first) // PAGE]
        return read(start, low) + known + read(high, end)

    @property
    def has_equal(self) -> bool:
        """Whether it is known which pages a process has as the base."""
        return bool(self._equal)

    def kinds(self, region: Region, start: int, end: int, exist: bytes) -> bytes:
        """Return what SCAN and MEND do with each page of a part of a region.

        `exist`: whether the process has it.
        """
        first, last = (start - region.start) // PAGE, (end - region.start) // PAGE
        ours = int.from_bytes(exist, "little")
        theirs = int.from_bytes(self.flags(region, start, end), "little")
        equal = int.from_bytes(self._equal.get(region, b"")[first:last], "little")
        found = theirs * AS_IN_BASE - (theirs & ours & equal) + (ours & ~theirs) * ZERO
        return found.to_bytes(last - first, "little")

    def place_of(self, region: Region, address: int) -> int:
        """Return where the file has the page at `address` of a region, which must exist."""
        flags, place = self.kept[region]
        return place + flags.count(1, 0, (address - region.start) // PAGE) * PAGE

    def flags(self, region: Region, start: int, end: int) -> bytes:
        """Return which pages of a part of a region exist."""
        flags, _place = self.kept[region]
        return flags[(start - region.start) // PAGE : (end - region.start) // PAGE]


def read_line(line: str) -> Region:
    """Return the region of a line. Raises Unlike if it is none."""
    try:
        place, rights, offset, _device, inode, *path = line.split(None, 5)
        start, _, end = place.partition("-")
        places = int(start, 16), int(end, 16)
        return Region(*places, rights, int(offset, 16), "".join(path), int(inode))
    except ValueError:
        raise Unlike("its memory map cannot be read") from None


def lines_of(text: str) -> list[str]:
    """Return the lines of a map without those of the scratch, and without devices.

    The device of a file's file system differs with each mount of an overlay, and so does the number
    of spaces before its path.
    """
    first, last = f"{SCRATCH:x}", f"{SCRATCH_END:x}"
    size = len(first)
    found = []
    for line in text.splitlines():
        if first <= line[:size] < last and line[size] == "-":
            continue
        if not line.endswith(_NO_FILE):
            fields = line.split(None, 5)
            fields[3:4] = ["00:00"]
            line = " ".join(fields if len(fields) > 5 else [*fields, ""])  # noqa: PLW2901
        found.append(line)
    return found


def kept_regions(lines: Sequence[str]) -> list[Region]:
    """Return the regions of a map whose pages a base has."""
    return [read_line(line) for line in lines if _KEPT in line]


def change(
    ours: Sequence[str],
    theirs: Sequence[str],
    known: dict[str, Region] | None = None,
    same: Container[Region] = (),
) -> Change:
    """Return how a process with the map `ours` becomes one with the map `theirs`, as `lines_of`.

    `known`: regions of lines of either that were read before; `same`: those of both that have no
    page that differs. Raises Unlike.
    """
    known = known or {}
    in_both = set(ours) & set(theirs)
    left = [read_line(line) for line in ours if line not in in_both]
    others = [read_line(line) for line in theirs if line not in in_both]
    if any(each.path in _KERNELS for each in (*left, *others)):
        raise Unlike("it is of another fork-server")
    made = Change([], [], _heap_end(left, others), [])
    for line in theirs:
        if line in in_both and _KEPT in line:
            region = known.get(line) or read_line(line)
            if region in same:
                continue
            made.pieces.append(_piece(region, region.start, region.end, region))
    for region in others:
        if region.rights[3] == "s":
            raise Unlike(f"it shares memory: {region.path or 'a shared mapping'}")
        _add(made, region, _alike(region, left))
    _unmap(made, left, sorted(others))
    return made


def _heap_end(left: list[Region], others: list[Region]) -> int:
    """Return where the heap of the target ends, if it is not that of the base."""
    ends = [max((e.end for e in r if e.path == HEAP), default=0) for r in (left, others)]
    return 0 if ends[0] == ends[1] else ends[1]


def _piece(region: Region, start: int, end: int, kept: Region | None) -> Piece:
    return Piece(start, end, region.path == STACK, kept)


def _alike(region: Region, left: list[Region]) -> list[Region]:
    """Return the base's regions that are partly the same memory as an anonymous one."""
    if not (region.is_anonymous and region.is_kept):
        return []
    return [
        each
        for each in left
        if (each.path, each.rights) == (region.path, region.rights)
        and each.start < region.end
        and region.start < each.end
    ]


def _add(made: Change, region: Region, alike: list[Region]) -> None:
    """Note what is the base's of a region, and what has to be mapped."""
    position = region.start
    for each in alike:
        start, end = max(each.start, region.start), min(each.end, region.end)
        _fill(made, region, position, start)
        made.pieces.append(_piece(region, start, end, each))
        position = end
    _fill(made, region, position, region.end)


def _fill(made: Change, region: Region, start: int, end: int) -> None:
    """Note a part of a region of which the base has nothing."""
    if start >= end:
        return
    if region.path not in (HEAP, STACK):
        offset = region.offset + start - region.start
        made.new.append(region._replace(start=start, end=end, offset=offset))
    if region.rights[0] == "r":
        piece = _piece(region, start, end, None)
        made.pieces.append(piece if region.is_anonymous else piece._replace(file=made.new[-1]))


def _unmap(made: Change, left: list[Region], others: list[Region]) -> None:
    """Note which parts of the base's regions are nothing of the target's."""
    for region in left:
        if region.path in (HEAP, STACK):
            continue
        position = region.start
        for other in others:
            if other.end <= position or other.start >= region.end:
                continue
            if other.start > position:
                made.gone.append((position, other.start))
            position = max(position, other.end)
        if position < region.end:
            made.gone.append((position, region.end))


def existing(pagemap: bytes) -> bytes:
    """Return a byte for each page of a part of /proc/PID/pagemap: whether it exists.

    It does if it is in memory (bit 63) or swapped out (bit 62), proc_pid_pagemap(5).
    """
    return pagemap[7::8].translate(_EXISTS)


def without(flags: bytes, others: bytes) -> bytes:
    """Return the flags of the pages that `flags` has and `others` has not."""
    ours, theirs = int.from_bytes(flags, "little"), int.from_bytes(others, "little")
    return (ours & ~theirs).to_bytes(len(flags), "little")


def runs(flags: bytes, start: int) -> list[tuple[int, int]]:
    """Return the ranges of pages that flags name; the first flag is of the page at `start`."""
    found, position = [], 0
    while (position := flags.find(1, position)) >= 0:
        end = flags.find(0, position)
        end = len(flags) if end < 0 else end
        found.append((start + position * PAGE, start + end * PAGE))
        position = end
    return found
