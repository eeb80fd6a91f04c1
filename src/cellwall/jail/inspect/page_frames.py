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

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

PAGE = 4096
_WORD_BYTES = 8
_PRESENT = 1 << 63
_FRAME = (1 << 55) - 1
_FRAME_BYTES = 7
_FRAMES_TOP = bytes(byte & 0x7F for byte in range(256))
_STATE = bytes(byte & 0xE0 for byte in range(256))
"""What is left of the two highest bytes of a word: bits that say where a page is. Others say how
many processes have it, and whether it was written to, which may change."""
_IS_ZERO = bytes([1]) + bytes(255)
_IS_ANY = bytes([0]) + bytes([1]) * 255
_EXISTS = bytes(2 * int(top >= 0x40) for top in range(256))
"""By the highest byte of a word: 2 if the page is present or swapped out."""
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
    words: bytes
    """A word of proc_pid_pagemap(5) for each page of all ranges."""
    planes: list[bytes]
    """What matters of the words: the lowest byte of each of them, then the next, and so on."""
    numbers: list[int]
    """The same as numbers, the first page lowest."""
    in_frames: int
    """A byte for each page: whether it is in memory, in a frame that is shown."""

    @classmethod
    def of(cls, moves: tuple[bytes, ...], words: bytes) -> Reading:
        """Return what words say."""
        planes = _planes(words)
        numbers = [int.from_bytes(each, "little") for each in planes]
        return cls(moves, words, planes, numbers, _in_frames(planes, numbers))

    def differences(self, words: bytes) -> int:
        """Return a byte for each page: not 0 if other words say that it lies elsewhere."""
        found = 0
        for own, number, other in zip(self.planes, self.numbers, _planes(words)):
            if own != other:  # the high bytes of frames are all alike
                found |= number ^ int.from_bytes(other, "little")
        return found


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
        self._latest = Reading.of((), b"")
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
            self._latest = Reading.of(moves, words)
        return self._latest

    def equal(self, first: Reading, others: Sequence[Process]) -> list[bytes]:
        """Return of each of several processes a byte for each page, none at all if in any doubt.

        1 if the page lies where this one's does; 2 if the process has one. All stand still. This
        one is read before all of them, and once more after them. Raises OSError.
        """
        for before in (first, None):
            reading = before or self.read()  # once more: the kernel moves pages at times
            found = [self._words_of(each) for each in others]
            after = self._process.words(self._ranges)
            if len(after) != self._size:
                break
            if reading.moves == _moves():
                return [self._same(reading, words, after) if words else b"" for words in found]
        return [b""] * len(others)

    def _words_of(self, other: Process) -> bytes:
        """Return the words of another process; none if it has ended."""
        with contextlib.suppress(OSError):
            words = other.words(self._ranges)
            if len(words) == self._size:
                return words
        return b""

    def _same(self, before: Reading, theirs: bytes, after: bytes) -> bytes:
        """Return a byte for each page: 1 if all three have it in one frame; 2 if `theirs` has it.

        By sums over all pages at once, which take a tenth of the time of a look at each.
        """
        exist = theirs[_WORD_BYTES - 1 :: _WORD_BYTES].translate(_EXISTS)
        found = before.differences(theirs)
        if after != before.words:  # mostly nothing of the standing one has changed
            found |= before.differences(after)
        flags = found.to_bytes(self._size // _WORD_BYTES, "little").translate(_IS_ZERO)
        same = int.from_bytes(flags, "little") & before.in_frames
        same |= int.from_bytes(exist, "little")
        return same.to_bytes(len(flags), "little")


def _planes(words: bytes) -> list[bytes]:
    """Return what matters of words, their lowest bytes first."""
    *low, top, state = (words[place::_WORD_BYTES] for place in range(_WORD_BYTES))
    return [*low, top.translate(_FRAMES_TOP), state.translate(_STATE)]


def _in_frames(planes: Sequence[bytes], numbers: Sequence[int]) -> int:
    """Return a byte for each page: whether it is in memory, in a frame that is shown."""
    frames = 0
    for number in numbers[:_FRAME_BYTES]:
        frames |= number
    state = planes[-1]
    shown = frames.to_bytes(len(state), "little").translate(_IS_ANY)
    present = state.translate(_IS_PRESENT)
    return int.from_bytes(shown, "little") & int.from_bytes(present, "little")


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
    text, part = b"", b"\n"
    file = os.open("/proc/vmstat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part:  # one read gives a page of it
            part = os.read(file, _MOST_STAT_BYTES)
            text += part
    finally:
        os.close(file)
    places = [text.find(name) for name in _MOVES]
    return tuple(text[at : text.index(b"\n", at + 1)] for at in places if at >= 0)
