"""A page counts as another process's only while both have it in one frame."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellwall.jail.inspect import page_frames
from cellwall.jail.inspect.page_frames import PAGE, Process, Range, Standing
from kit.places import ROOT

pytestmark = [pytest.mark.root]
PAGES = 64
_MADV_NOHUGEPAGE = 15


class Memory:
    """Pages of this process, of which its children have copies; the last eight do not exist."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(_MADV_NOHUGEPAGE)
        for page in range(PAGES - 8):
            self.write(page, 1)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.ranges = [
            Range(start, start + 40 * PAGE),
            Range(start + 40 * PAGE, start + PAGES * PAGE),
        ]

    def write(self, page: int, value: int) -> None:
        self.map[page * PAGE] = value


class Child:
    """A child that stands still, but for what a test has it do."""

    def __init__(self, does: Callable[[int], None]) -> None:
        asks, self._ask = os.pipe()
        self._answer, answers = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            while order := os.read(asks, 1):
                does(order[0])
                os.write(answers, b"d")
            os._exit(0)
        os.close(asks)
        os.close(answers)
        self.process = Process(self.pid)

    def do(self, order: int) -> None:
        os.write(self._ask, bytes([order]))
        assert os.read(self._answer, 1) == b"d"

    def end(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        self.process.close()
        os.close(self._ask)
        os.close(self._answer)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def children(memory: Memory) -> Iterator[tuple[Child, Child]]:
    """One that stands still, and another; each writes to the page that it is told."""
    made = [Child(lambda page: memory.write(page, 2)) for _ in range(2)]
    yield made[0], made[1]
    for each in made:
        each.close()
        each.end()


def _equal(flags: bytes) -> set[int]:
    assert len(flags) == PAGES
    return {page for page in range(PAGES) if flags[page] & 1}


def _existing(flags: bytes) -> set[int]:
    return {page for page in range(PAGES) if flags[page] & 2}


def test_pages_that_one_has_written_to_are_not_equal(
    memory: Memory, children: tuple[Child, Child]
) -> None:
    """With the same content, too; and pages that do not exist are equal to nothing."""
    first, second = children
    first.do(3)
    standing = Standing(first.process, memory.ranges)
    assert _equal(standing.equal(standing.read(), [second.process])[0]) == {*range(56)} - {3}
    for page in (3, 7, 41, 60):
        second.do(page)
    flags = standing.equal(standing.read(), [second.process])[0]
    assert _equal(flags) == {*range(56)} - {3, 7, 41}
    assert _existing(flags) == {*range(56), 60}


def test_page_that_left_its_frame_after_the_first_reading_is_not_equal(
    memory: Memory, children: tuple[Child, Child]
) -> None:
    """Its frame is still the other's, whose page is no longer what the standing one has."""
    first, second = children
    standing = Standing(first.process, memory.ranges)
    reading = standing.read()
    first.do(5)
    assert 5 not in _equal(standing.equal(reading, [second.process])[0])
    assert 6 in _equal(standing.equal(reading, [second.process])[0])


def test_pages_that_the_kernel_moves_stay_equal(
    memory: Memory, children: tuple[Child, Child]
) -> None:
    """Moved together, or found to have moved; either way none that was written to is equal."""
    first, second = children
    standing = Standing(first.process, memory.ranges)
    second.do(9)
    for _ in range(3):
        reading = standing.read()
        Path("/proc/sys/vm/compact_memory").write_text("1")
        flags = standing.equal(reading, [second.process])[0]
        assert not flags or _equal(flags) <= {*range(56)} - {9}
    assert any(_equal(standing.equal(standing.read(), [second.process])[0]) for _ in range(20))


def test_counters_of_moves_are_found() -> None:
    moves = page_frames._moves()
    assert any(each.strip().startswith(b"pgmigrate_success ") for each in moves)
    assert all(each.split()[1].isdigit() for each in moves)


def test_process_that_has_ended_has_no_pages(memory: Memory, children: tuple[Child, Child]) -> None:
    """And none of the process that gets its pid: what is open here is its own."""
    first, second = children
    standing = Standing(first.process, memory.ranges)
    reading = standing.read()
    third = Child(lambda page: memory.write(page, 2))
    assert standing.equal(reading, [third.process])[0]
    third.end()
    with contextlib.suppress(OSError):
        assert standing.equal(reading, [third.process])[0] == b""
    third.close()
    assert second.process.inner_pid() == second.pid


def test_kernel_that_hides_frames_is_noticed(memory: Memory) -> None:
    """All frames are 0 then, as if all pages were one."""
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "src")!r})
from cellwall.jail.inspect import page_frames as p
print(p.are_shown())
os.setresuid(65534, 65534, 65534)
os.execv(sys.executable, [sys.executable, "-c", '''
import sys
sys.path.insert(0, {str(ROOT / "src")!r})
from cellwall.jail.inspect import page_frames as p
import os
print(p.are_shown())
here = id(os.urandom(9999)) // 4096 * 4096
try: p.Standing(p.Process(os.getpid()), [p.Range(here, here + 4096)])
except ValueError as error: print(error)
'''])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:3] == ["True", "False", "the kernel shows no frames"], done


def test_words_are_judged_as_one_by_one() -> None:
    """All at once is a tenth of the time; the control is what proc_pid_pagemap(5) says of each."""
    present, swapped, file, frame = 1 << 63, 1 << 62, 1 << 61, (1 << 55) - 1
    soft_dirty, exclusive = 1 << 55, 1 << 56
    parts = (0, 1, 1 << 8, 1 << 54, frame)
    words = [
        top | other | part
        for top in (0, present, swapped, present | swapped, present | file)
        for other in (0, soft_dirty, exclusive)
        for part in parts
    ]
    expected = [word & (present | swapped) == present and word & frame > 0 for word in words]
    reading = page_frames.Reading.of((), _packed(words))
    assert reading.in_frames == int.from_bytes(bytes(expected), "little")
    assert 0 < sum(expected) < len(expected)
    matters = present | swapped | file | frame
    for others in (words, words[1:] + words[:1], words[3:] + words[:3], words[::-1]):
        found = reading.differences(_packed(others)).to_bytes(len(words), "little")
        pairs = zip(words, others, strict=True)
        assert [byte > 0 for byte in found] == [(one ^ other) & matters > 0 for one, other in pairs]


def _packed(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


def test_several_are_compared_at_once_each_by_itself(
    memory: Memory, children: tuple[Child, Child]
) -> None:
    """The standing one is read once more after all of them, and one that has ended is not known."""
    first, second = children
    third = Child(lambda page: memory.write(page, 2))
    standing = Standing(first.process, memory.ranges)
    reading = standing.read()
    second.do(3)
    third.do(4)
    first.do(5)
    found = standing.equal(reading, [second.process, third.process])
    assert [_equal(flags) for flags in found] == [{*range(56)} - {3, 5}, {*range(56)} - {4, 5}]
    third.end()
    flags, none = standing.equal(reading, [second.process, third.process])
    assert _equal(flags) == {*range(56)} - {3, 5}
    assert none == b""
    third.close()
