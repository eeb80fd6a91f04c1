"""The lists that a parked context walks: to write its image, and to become one (design/0041).

Made by init, of what the kernel says about a process that stands still. An image is the pages that
differ from the base of its fork-server, a table of where they lie, and a list of calls: those that
another process of that fork-server, once it is like the base, has to make.
"""

from __future__ import annotations

import os
import stat
import struct
from functools import partial
from typing import NamedTuple

from cellwall.guest.transplant import memory_map, walker
from cellwall.guest.transplant.memory_map import Base, Change, Piece, Region, Unlike

_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 0x10, 0x20
_MAP_NORESERVE, _MAP_POPULATE = 0x4000, 0x8000
_READ, _WRITE = 1, 2
_MSG_WAITALL, _MSG_CMSG_CLOEXEC = 0x100, 0x40000000
_CONTROL_BYTES = 24
"""Room for one descriptor, with its header (cmsg(3))."""
_MADV_DONTNEED = 4
_F_SETFD = 2
_SIGACTION_BYTES, _SIGSET_BYTES = 32, 8
_SIGNALS = [number for number in range(1, 65) if number not in (9, 19)]
_STRINGS = 1 << 20
"""Offset of what records point to, from the first record, in bytes."""
_ACTIONS = walker.BLOB + _STRINGS
"""Address of what signals do, the first of what an image's own list points to."""
_SAVE_ACTIONS, _RESTORE_ACTIONS = (
    [
        walker.record("rt_sigaction", number, *places, _SIGSET_BYTES)
        for number in _SIGNALS
        for place in [_ACTIONS + number * _SIGACTION_BYTES]
        for places in [(0, place) if is_save else (place, 0)]
    ]
    for is_save in (True, False)
)
_MOST_STRINGS = 8 << 20
_EXTENT_BYTES = 16
_MOST_ITSELF = 1024
"""Most pages that a process may have to look at beside those of the base, and write down itself;
else it would stand still for too long, and a clone does it."""
_COUNTS_BYTES = 16


class Sizes(NamedTuple):
    """The lengths of an image's parts, which lie behind one another, in bytes."""

    pages: int
    table: int
    records: int
    strings: int


class OpenFile(NamedTuple):
    """A descriptor of a process that its copy gets, too."""

    number: int
    path: str
    flags: int
    """Flags of open(2), without those that make or empty a file."""
    position: int
    source: int = -1
    """The standard stream that it is a copy of; -1: the file at `path`."""


class Source(NamedTuple):
    """What the kernel says of a process that is to be written down."""

    maps: str
    files: list[OpenFile]
    directory: str
    mask: int
    """umask(2)."""
    tid_address: int
    """Address where libc keeps the id of its thread; 0: not known."""


class Outline(NamedTuple):
    """What is known of an image before it is known which of its pages are the base's."""

    change: Change
    readable: dict[Region, str]
    """The paths of those new regions whose files can be mapped once more."""
    blob: Program
    """The image's own list."""


class Pipes(NamedTuple):
    """Descriptors of a parked process."""

    link: int
    """Its socket to init."""
    file: int
    """The pipe to which it writes its image, or the number that the file of its image gets."""
    base: int
    """The file of the base."""


class ImageMessage(NamedTuple):
    """What makes a process write its image."""

    message: bytes
    records: int
    """Bytes of the image's own list."""
    strings: int
    """Bytes of what that points to."""
    is_for_clone: bool
    """Whether a clone of the process has to walk it, and ends with it."""


class Program:
    """A list of records, and what they point to."""

    def __init__(self, place: int, reserved: int = 0) -> None:
        """It will lie at `place`; its first `reserved` records are filled in by `message`."""
        self._place = place
        self._records = [b""] * reserved
        self.strings = bytearray()

    @property
    def records(self) -> bytes:
        """All records."""
        return b"".join(self._records)

    @property
    def strings_place(self) -> int:
        """Address of what records point to."""
        return self._place + _STRINGS

    def put(self, data: bytes) -> int:
        """Add what a record points to; return its address."""
        address = self.strings_place + len(self.strings)
        self.strings += data + bytes(-len(data) % 8)
        return address

    def path(self, path: str) -> int:
        """Add a path; return its address."""
        return self.put(os.fsencode(path) + b"\0")

    def add(
        self,
        step: str | int,
        *arguments: int,
        expected: int | None = None,
        stores: tuple[int, ...] = (),
    ) -> None:
        """Add a record; its result is put at each address of `stores`, two at most."""
        self._records.append(walker.record(step, *arguments, expected=expected, stores=stores))

    def add_made(self, records: list[bytes]) -> None:
        """Add records that store nothing in others."""
        self._records += records

    def argument(self, records_on: int, number: int) -> int:
        """Return the address of an argument of a record to come; the next one is 0 records on."""
        index = len(self._records) + records_on
        return self._place + index * walker.RECORD_BYTES + 8 + 8 * number

    def map_file(self, path: str, place: int, size: int, rights: int, offset: int) -> None:
        """Map a part of a file privately at `place`."""
        fd_places = (self.argument(1, 4), self.argument(2, 0))
        self.add("open", self.path(path), os.O_RDONLY | os.O_CLOEXEC, stores=fd_places)
        self.add("mmap", place, size, rights, _MAP_PRIVATE | _MAP_FIXED, 0, offset, expected=place)
        self.add("close", 0)

    def map_zeros(self, start: int, end: int) -> None:
        """Map pages of zeros that can be written to."""
        kind = _MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS | _MAP_NORESERVE
        self.add("mmap", start, end - start, _READ | _WRITE, kind, -1, 0, expected=start)

    def walk_pages(self, step: int, piece: Piece, place: int, kinds: bytes) -> None:
        """Scan or mend the pages of a piece; the base has its first one of them at `place`."""
        if kinds.count(walker.NEITHER) == len(kinds):
            return
        longest = walker.LONGEST_READ if piece.is_stack else walker.LONGEST
        known = self.put(kinds)
        at = walker.BASE + place
        self.add(step, piece.start, piece.end, at, known, longest, walker.ZEROS)

    def map_base(self, fd: int, base: Base) -> None:
        """Map the base for reading."""
        ahead = 0 if base.has_equal else _MAP_POPULATE  # most of it is not looked at
        kind = _MAP_SHARED | _MAP_FIXED | ahead
        self.add("mmap", walker.BASE, base.size, _READ, kind, fd, 0, expected=walker.BASE)

    def unmap(self, ranges: list[tuple[int, int]]) -> None:
        """Unmap ranges of addresses."""
        for start, end in ranges:
            self.add("munmap", start, end - start)

    def message(self, link: int, more: dict[int, bytes]) -> bytes:
        """Return what is sent over the socket `link` of the process that walks this list.

        Its reserved records receive the parts: what the records point to, and `more` by place.
        """
        parts = {self.strings_place: bytes(self.strings), **more}
        for index, (place, data) in enumerate(parts.items()):
            size = len(data)
            receive = ("recvfrom", link, place, size, _MSG_WAITALL)
            # To receive nothing would be to wait for something.
            self._records[index] = (
                walker.record(*receive, expected=size) if size else walker.record("gettid")
            )
        records = self.records
        if max(len(records), *map(len, parts.values())) > _MOST_STRINGS or len(records) > _STRINGS:
            raise Unlike("it has too many mappings or open files")
        return len(records).to_bytes(8, "little") + records + b"".join(parts.values())


def base_message(maps: str, pagemap: int, pipes: Pipes) -> tuple[bytes, bytes]:
    """Return what makes a process write its own pages down as the base, and the base's map."""
    made = Program(walker.LIST, 1)
    lines = memory_map.lines_of(maps)
    data = bytearray(os.fsencode("\n".join(lines)) + b"\0")
    for region in memory_map.kept_regions(lines):
        flags = _existing(pagemap, region.start, region.end)
        data += flags
        for start, end in memory_map.runs(flags, region.start):
            made.add(walker.COMPARE, start, end, -1, 0, walker.LONGEST)
    made.add(walker.SEND, pipes.file)
    made.add(walker.RESUME, walker.DONE)
    return made.message(pipes.link, {}), bytes(data)


def clone_message(link: int) -> bytes:
    """Return what makes a process go on, and a clone of it wait for the next list instead."""
    made = Program(walker.LIST, 1)
    made.add(walker.CLONE, walker.CLONE_FLAGS)
    made.add(walker.RECEIVE, link, walker.LIST)
    return made.message(link, {})


def outline(source: Source, base: Base, image_fd: int) -> Outline:
    """Return what an image of a process has beside its pages.

    `image_fd`: the number that the image will have in the process that becomes one. Raises Unlike.
    """
    lines = memory_map.lines_of(source.maps)
    change = memory_map.change(base.lines, lines, base.regions)
    readable = _readable(change.new)
    blob = Program(walker.BLOB)
    blob.put(bytes(_SIGACTION_BYTES * 65))  # at _ACTIONS
    _rebuild(blob, change, readable, image_fd)
    _restore_state(blob, source)
    return Outline(change, readable, blob)


def image_message(
    outline: Outline, base: Base, pipes: Pipes, pagemap: int, *, is_alone: bool = False
) -> ImageMessage:
    """Return what makes a process write its image.

    `pagemap`: a descriptor of its /proc/PID/pagemap. `is_alone`: the process is for that only, and
    ends with it. Raises Unlike.
    """
    change, readable, blob = outline
    made = Program(walker.LIST, 3)
    made.map_base(pipes.base, base)
    made.add_made(_SAVE_ACTIONS)
    most = sum(_compare(made, each, readable, (base, pagemap)) for each in change.pieces)
    parts = {walker.BLOB: blob.records, blob.strings_place: bytes(blob.strings)}
    made.add(walker.SEND, pipes.file)
    made.add(walker.TABLE, pipes.file)
    for place, size in (
        *((place, len(data)) for place, data in parts.items()),
        (walker.STATE, walker.REGISTERS_BYTES),
        (walker.COUNTS, _COUNTS_BYTES),
    ):
        made.add("write", pipes.file, place, size, expected=size)
    is_for_clone = is_alone or most > _MOST_ITSELF
    if is_for_clone:
        made.add("exit", 0)
    else:
        made.add(walker.RESUME, walker.DONE)
    message = made.message(pipes.link, parts)
    return ImageMessage(message, len(blob.records), len(blob.strings), is_for_clone)


def change_to(base: Base, maps: str) -> Change:
    """Return how a process with the map `maps` gets the base's. Raises Unlike."""
    lines = memory_map.lines_of(maps)
    change = memory_map.change(lines, base.lines, base.regions, base.kept)
    if any(not region.is_anonymous for region in change.new):
        raise Unlike("it is of another fork-server")
    return change


def like_message(change: Change, pagemap: int, base: Base, pipes: Pipes, told: bytes) -> bytes:
    """Return what makes a process like the base, which gets its map by `change`.

    It says so by the bytes `told`, and waits for `become_message`. Raises Unlike.
    """
    made = Program(walker.LIST, 1)
    made.map_base(pipes.base, base)
    _rebuild(made, change, {}, -1)
    for region, (flags, place) in base.kept.items():
        if region in base.same:
            continue
        exist = base.existing(region, region.start, region.end, partial(_existing, pagemap))
        if not region.is_anonymous:  # the base has the others as they are in the file
            for start, end in memory_map.runs(memory_map.without(exist, flags), region.start):
                made.add("madvise", start, end - start, _MADV_DONTNEED)
            exist = flags
        piece = Piece(region.start, region.end, is_stack=False, kept=region)
        kinds = base.kinds(region, region.start, region.end, exist)
        made.walk_pages(walker.MEND, piece, place, kinds)
    made.unmap([(walker.BASE, walker.BASE + base.size)] if base.size else [])
    place = made.put(told)
    made.add("write", pipes.link, place, len(told), expected=len(told))
    made.add(walker.RECEIVE, pipes.link, walker.LIST)
    return made.message(pipes.link, {})


def become_message(pipes: Pipes, free: int, sizes: Sizes, *, reseed: bool) -> bytes:
    """Return what makes a process that is like the base like an image.

    The image's file is sent behind it, and gets the number `free`, its lowest that is not in use.
    Raises Unlike.
    """
    made = Program(walker.LIST, 2)
    _receive_file(made, pipes, free)
    offset = sizes.pages
    for place, size, most in (
        (walker.EXTENTS, sizes.table, walker.MOST_EXTENTS * _EXTENT_BYTES),
        (walker.BLOB, sizes.records, _STRINGS),
        (walker.BLOB + _STRINGS, sizes.strings, _MOST_STRINGS),
        (walker.STATE, walker.REGISTERS_BYTES, walker.REGISTERS_BYTES),
        (walker.COUNTS, _COUNTS_BYTES, _COUNTS_BYTES),
    ):
        if not 0 <= size <= most:
            raise Unlike("its image has parts of impossible sizes")
        made.add("pread64", pipes.file, place, size, offset, expected=size)
        offset += size
    made.add(walker.GO_ON, walker.BLOB)
    return made.message(pipes.link, {walker.RESEED: int(reseed).to_bytes(8, "little")})


def _receive_file(made: Program, pipes: Pipes, free: int) -> None:
    """Add what takes a descriptor from the socket, recvmsg(2), and gives it its number."""
    byte, control = made.put(bytes(8)), made.put(bytes(_CONTROL_BYTES))
    vector = made.put(struct.pack("<2Q", byte, 1))
    header = made.put(struct.pack("<7Q", 0, 0, vector, 1, control, _CONTROL_BYTES, 0))
    made.add("recvmsg", pipes.link, header, _MSG_CMSG_CLOEXEC, expected=1)
    made.add("dup2", free, pipes.file, expected=pipes.file)
    made.add("close", free, expected=0)


def _readable(regions: list[Region]) -> dict[Region, str]:
    """Return the paths of those regions whose files can be mapped once more."""
    points = _overlays() if any(each.path.startswith("/") for each in regions) else []
    found = {}
    for region in regions:
        if region.path.startswith("/"):
            for path in (region.path, *(f"{point}{region.path}" for point in points)):
                if _is_file(path, region.inode):
                    found[region] = path
                    break
    return found


def _overlays() -> list[str]:
    """Return where overlays are mounted: a map names their files from the top of the lower tree."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [line.split()[4] for line in file if " - overlay " in line]


def _is_file(path: str, inode: int) -> bool:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_ino == inode


def _rebuild(made: Program, change: Change, readable: dict[Region, str], image_fd: int) -> None:
    """Add what makes one map of the other; with `image_fd`, also what fills it."""
    made.unmap(change.gone)
    if change.heap_end:
        made.add("brk", change.heap_end, expected=change.heap_end)
    for region in change.new:
        if region in readable:
            size = region.end - region.start
            path = readable[region]
            made.map_file(path, region.start, size, _READ | _WRITE, region.offset)
        else:
            made.map_zeros(region.start, region.end)
    if image_fd >= 0:
        made.add(walker.LOAD, image_fd, 0)
    for region in change.new:
        if region.protection != _READ | _WRITE:
            size = region.end - region.start
            made.add("mprotect", region.start, size, region.protection)


def _restore_state(made: Program, source: Source) -> None:
    """Add what a process has besides its memory, and its return from the place where it stood."""
    made.add("chdir", made.path(source.directory))
    made.add("umask", source.mask)
    for file in source.files:
        made.add("dup2", 0, file.number)  # so that no other file gets the number meanwhile
    for file in source.files:
        if file.source >= 0:
            made.add("dup2", file.source, file.number, expected=file.number)
        else:
            _reopen(made, file)
    made.add_made(_RESTORE_ACTIONS)
    if source.tid_address:
        made.add("gettid", stores=(source.tid_address,))
    made.add(walker.RESUME, walker.IS_COPY)


def _reopen(made: Program, file: OpenFile) -> None:
    places = (made.argument(1, 0), made.argument(2, 0))
    made.add("open", made.path(file.path), file.flags, stores=places)
    made.add("dup2", 0, file.number, expected=file.number)
    made.add("close", 0)
    if file.position:
        made.add("lseek", file.number, file.position, os.SEEK_SET, expected=file.position)
    if file.flags & os.O_CLOEXEC:
        made.add("fcntl", file.number, _F_SETFD, 1)


def _existing(pagemap: int, start: int, end: int) -> bytes:
    """Return a byte for each page of a range: whether it exists."""
    if start == end:
        return b""
    count = (end - start) // walker.PAGE
    return memory_map.existing(os.pread(pagemap, count * 8, start // walker.PAGE * 8))


def _compare(
    made: Program, piece: Piece, readable: dict[Region, str], known: tuple[Base, int]
) -> int:
    """Add what finds the pages of a piece that are not the base's, or the file's, or zeros.

    `known`: the base, and the process's /proc/PID/pagemap. Returns how many pages of it the base
    has not.
    """
    longest = walker.LONGEST_READ if piece.is_stack else walker.LONGEST
    count = (piece.end - piece.start) // walker.PAGE
    if piece.file in readable:
        _compare_to_file(made, piece.file, readable[piece.file])
        return count
    if piece.file is not None:  # where there is no such file, what it has not read yet is lost
        made.add(walker.COMPARE, piece.start, piece.end, walker.ZEROS, 0, longest)
        return count
    base, pagemap = known
    if piece.kept in base.same:
        return 0
    read = partial(_existing, pagemap)
    if piece.kept is not None:
        found = base.existing(piece.kept, piece.start, piece.end, read)
        kinds = base.kinds(piece.kept, piece.start, piece.end, found)
        made.walk_pages(walker.SCAN, piece, base.place_of(piece.kept, piece.start), kinds)
        return kinds.count(walker.ZERO)
    found = read(piece.start, piece.end)
    for start, end in memory_map.runs(found, piece.start):
        made.add(walker.COMPARE, start, end, walker.ZEROS, 0, longest)
    return found.count(1)


def _compare_to_file(made: Program, region: Region, path: str) -> None:
    """Compare with a file as far as it reaches: behind its end there is nothing to read."""
    left = os.stat(path).st_size - region.offset
    pages = -(-left // walker.PAGE) * walker.PAGE
    size = min(region.end - region.start, pages)
    if size > 0:
        made.map_file(path, walker.FILES, size, _READ, region.offset)
        end = region.start + size
        base, step = walker.FILES, walker.PAGE
        made.add(walker.COMPARE, region.start, end, base, step, walker.LONGEST)
        made.unmap([(walker.FILES, walker.FILES + size)])
