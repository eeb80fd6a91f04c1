"""Which pages of two processes that stand still lie in the same frames of this machine's memory.

Called for copies of sessions (design/0041). It reads /proc/PID/pagemap, whose frame numbers the
kernel shows to those with CAP_SYS_ADMIN only, and never what is in a page.

SECURITY: no frame number leaves this module. One tells where memory lies in the machine, which
attacks on its chips need; what comes out of here is whether two pages are one.

One frame at one time has one content. Both processes stand still, so only the kernel can give their
pages other frames: when it moves pages (compaction, NUMA), makes huge ones of them, merges equal
ones, or swaps. The first process is read before and after the second: a page counts only if it was
in the same frame both times. For that to be wrong, its page would have to leave the frame, another
one to come there, to be read, to leave it, and the first one to come back; and the kernel counts
such moves: if it has counted any since the first reading, no page counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

PAGE = 4096
_WORD_BYTES = 8
_PRESENT, _SWAPPED = 1 << 63, 1 << 62
_FRAME = (1 << 55) - 1
_MATTERS = (_PRESENT | _SWAPPED | 1 << 61 | _FRAME).to_bytes(8, "little")
"""Bits that say where a page is; others say how many processes have it, which may change."""
_FRAME_BITS = _FRAME.to_bytes(8, "little")
_IS_ZERO = bytes([1]) + bytes(255)
_IS_ANY = bytes([0]) + bytes([1]) * 255
_IS_PRESENT = bytes(int(top & 0xC0 == 0x80) for top in range(256))
"""By the highest byte of a word: whether the page is present, and not swapped out."""
_MOVES = (
    b"\npgmigrate_success ",
    b"\nthp_migration_success ",
    b"\nthp_collapse_alloc ",
    b"\npswpin ",
    b"\nzswpin ",
    b"\nswpin_zero ",
    b"\nksm_swpin_copy ",
    b"\ncow_ksm ",
)
"""Counters of /proc/vmstat of what gives pages of a process other frames while it stands still."""
_MOST_STAT_BYTES = 1 << 16


class Range(NamedTuple):
    """Addresses from a first to the one behind the last."""

    start: int
    end: int


class Reading(NamedTuple):
    """What was read of a process."""

    moves: tuple[bytes, ...]
    """The counters before it."""
    words: int
    """A word of proc_pid_pagemap(5) for each page of all ranges, the first one lowest."""
    in_frames: int
    """A byte for each page: whether it is in memory, in a frame that is shown."""


class Process:
    """A process whose pages are compared, for as long as it lives; the pid may be used again."""

    def __init__(self, pid: int) -> None:
        """Open its /proc/PID. Raises OSError."""
        self._proc = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._pagemap = self._open("pagemap")
        except BaseException:
            os.close(self._proc)
            raise

    def _open(self, name: str) -> int:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)

    def close(self) -> None:
        """Close what is open of it."""
        os.close(self._pagemap)
        os.close(self._proc)

    def inner_pid(self) -> int:
        """Return its pid in its own pid namespace. Raises OSError, ValueError."""
        status = self._open("status")
        try:
            lines = os.read(status, _MOST_STAT_BYTES).splitlines()
        finally:
            os.close(status)
        for line in lines:
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
        raise ValueError("its status has no NSpid")

    def words(self, ranges: Sequence[Range]) -> bytes:
        """Return the words of its pages. Raises OSError; what is missing is short."""
        return b"".join(
            [
                os.pread(
                    self._pagemap,
                    (end - start) // PAGE * _WORD_BYTES,
                    start // PAGE * _WORD_BYTES,
                )
                for start, end in ranges
            ]
        )


class Standing:
    """A process whose pages never change, and that nothing wakes up."""

    def __init__(self, process: Process, ranges: Sequence[Range]) -> None:
        """`ranges`: the memory of interest. Raises OSError, or ValueError if frames are hidden."""
        self._process = process
        self._ranges = ranges
        self._size = sum(end - start for start, end in ranges) // PAGE * _WORD_BYTES
        self._mask = int.from_bytes(_MATTERS * (self._size // _WORD_BYTES), "little")
        self._latest = Reading((), 0, 0)
        if not self.read().in_frames:
            raise ValueError("the kernel shows no frames")

    def close(self) -> None:
        """Close what is open of it."""
        self._process.close()

    def read(self) -> Reading:
        """Read it, before the other process is read, unless nothing has moved since.

        Raises OSError.
        """
        moves = _moves()
        if not moves or moves != self._latest.moves:
            words = self._process.words(self._ranges)
            if len(words) != self._size:
                raise OSError(errno.ESRCH, "page frames: the process has ended")
            found = (int.from_bytes(each, "little") for each in (words, _in_frames(words)))
            self._latest = Reading(moves, *found)
        return self._latest

    def equal(self, first: Reading, other: Process) -> bytes:
        """Return a byte for each page: whether it lies where that of `other` does.

        None at all if there is any doubt. Both stand still. Raises OSError.
        """
        for before in (first, None):
            reading = before or self.read()  # once more: the kernel moves pages at times
            theirs = other.words(self._ranges)
            after = self._process.words(self._ranges)
            if {len(theirs), len(after)} != {self._size}:
                return b""
            if reading.moves == _moves():
                return self._same(reading, theirs, after)
        return b""

    def _same(self, before: Reading, theirs: bytes, after: bytes) -> bytes:
        """Return a byte for each page: whether all three have it in one frame.

        By sums over all words at once, which take a fifth of the time of a look at each.
        """
        found = before.words ^ int.from_bytes(theirs, "little")
        found |= before.words ^ int.from_bytes(after, "little")
        flags = _unions(found & self._mask, self._size).translate(_IS_ZERO)
        same = int.from_bytes(flags, "little") & before.in_frames
        return same.to_bytes(len(flags), "little")


def _unions(words: int, size: int) -> bytes:
    """Return a byte for each word: the union of its eight; `size` is that of all words in bytes."""
    for bits in (32, 16, 8):  # the lowest byte of each word becomes it
        words |= words >> bits
    return words.to_bytes(size, "little")[::_WORD_BYTES]


def _in_frames(words: bytes) -> bytes:
    """Return a byte for each word: whether its page is in memory, in a frame that is shown."""
    size = len(words)
    frames = int.from_bytes(_FRAME_BITS * (size // _WORD_BYTES), "little")
    shown = _unions(int.from_bytes(words, "little") & frames, size).translate(_IS_ANY)
    present = words[_WORD_BYTES - 1 :: _WORD_BYTES].translate(_IS_PRESENT)
    both = int.from_bytes(shown, "little") & int.from_bytes(present, "little")
    return both.to_bytes(len(shown), "little")


def are_shown() -> bool:
    """Return whether the kernel shows frame numbers to this process."""
    here = os.urandom(PAGE)  # a page that exists
    start = id(here) // PAGE * PAGE
    try:
        process = Process(os.getpid())
        try:
            word = int.from_bytes(process.words([Range(start, start + PAGE)]), "little")
        finally:
            process.close()
    except OSError:
        return False
    return word & _FRAME > 0 and word & _PRESENT > 0


def _moves() -> tuple[bytes, ...]:
    """Return the kernel's counters of moved pages."""
    with open("/proc/vmstat", "rb", buffering=0) as file:
        text = file.read()  # to its end: one read gives a page of it
    places = [text.find(name) for name in _MOVES]
    return tuple(text[at : text.index(b"\n", at + 1)] for at in places if at >= 0)
