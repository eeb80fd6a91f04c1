"""The fork-server's heap and huge pages, each in an interpreter of its own: they stay for ever."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from conftest import Require
from kit.jail.own_interpreter import printed

_HAS_COLLAPSE = tuple(int(word) for word in platform.release().split(".")[:2]) >= (6, 1)
_SHARED = """
    import gc, json, sys
    from cellwall.jail.fast import huge_pages, heap_layout as memory

    def huge(start, end):
        "Bytes of huge pages in the mappings that begin there."
        found, is_ours = 0, False
        for line in open("/proc/self/smaps"):
            first = line.split()[0]
            if "-" in first:
                is_ours = start <= int(first.split("-")[0], 16) < end
            elif is_ours and first == "AnonHugePages:":
                found += int(line.split()[1]) * 1024
        return found

    def anonymous():
        return [each for each in huge_pages.mappings()
                if each.permissions == "rw-p" and not each.path]

    def mapped(address):
        return next(each for each in huge_pages.mappings() if each.start <= address < each.end)

"""


def _run(code: str) -> str:
    return printed(_SHARED, code)


@pytest.fixture
def _collapse(require: Require) -> None:
    """The functions do nothing where the kernel has no MADV_COLLAPSE."""
    require("MADV_COLLAPSE", _HAS_COLLAPSE, "use Linux 6.1 or newer")


def test_arenas_lie_side_by_side() -> None:
    """Forty of them are one mapping: nothing was mapped in between."""
    out = _run("""
        arenas = memory.ArenaReservation(40)
        where = mapped(id(arenas._kept[-1]))
        print(where.end - where.start >= 40 * 2**20, len(arenas._kept) >= 40)
    """)
    assert out == "True True\n"


def test_the_next_mapping_ends_where_a_huge_page_may() -> None:
    """Its own end: what lies above it may be one mapping with it in the kernel's list.

    The control: without being told, the second of two does not.
    """
    out = _run("""
        def end():
            return huge_pages.map_anonymous(2**20, huge_pages._READ_WRITE) + 2**20
        for _ in range(3):
            memory._align_next_mapping()
            print(end() % huge_pages.BYTES, end() % huge_pages.BYTES > 0)
            huge_pages.map_anonymous(12288)
    """)
    assert out == "0 True\n" * 3


@pytest.mark.parametrize("pages", [1, 13, 255])
def test_the_next_mapping_is_aligned_beside_a_hole_that_would_take_the_excess(pages: int) -> None:
    """The control: the same excess, mapped wherever the kernel likes, is not what it is for."""
    out = _run(f"""
        PAGE = 4096
        memory._align_next_mapping()
        above = huge_pages.map_anonymous(PAGE)
        hole = huge_pages.map_anonymous({pages} * PAGE, huge_pages._READ_WRITE)
        huge_pages.map_anonymous(PAGE)
        memory._align_next_mapping()
        huge_pages.map_anonymous(huge_pages.BYTES - {pages} * PAGE)
        huge_pages.unmap(hole, {pages} * PAGE)
        place = huge_pages.map_anonymous(2**20)
        huge_pages.unmap(place, 2**20)
        control = huge_pages.map_anonymous({pages} * PAGE)
        huge_pages.unmap(control, {pages} * PAGE)
        memory._align_next_mapping()
        end = huge_pages.map_anonymous(2**20, huge_pages._READ_WRITE) + 2**20
        print((place + 2**20) % huge_pages.BYTES == {pages} * PAGE, control > place, end % 2**21)
    """)
    assert out == "True True 0\n"


def test_arenas_that_nobody_used_are_given_back() -> None:
    """And those that were used lie together, but for the one that was begun when they were made."""
    out = _run("""
        arenas = memory.ArenaReservation(40)
        used = [str(number) for number in range(150_000)]
        arenas.give_back()
        places = [each for each in anonymous() if each.end - each.start > 2**20]
        print(sum(each.end - each.start for each in places) < 25 * 2**20)
        print(max(sum(each.start <= id(one) < each.end for one in used) for each in places))
    """)
    has_given_back, together = out.split()
    assert has_given_back == "True"
    assert int(together) > 110_000


_KINDS = {
    "dict": "{}",
    "list": "[number]",
    "tuple": "(number, number)",
    "float": "number * 1.5",
    "str": "'a%d' % number",
    "bytes": "bytes(number)",
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("is_filled", [True, False])
def test_what_is_made_behind_fillers_is_not_where_the_holes_were(
    kind: str, *, is_filled: bool
) -> None:
    """The control: without them it is, in part at least."""
    out = _run(f"""
        def make():
            return [{_KINDS[kind]} for number in range(1, 300)]
        arenas = memory.ArenaReservation(8)
        holes = [make() for _ in range(40)]
        del holes[::2]
        arenas.give_back()
        known = anonymous()
        if {is_filled}:
            memory.HoleFiller()
        made = make()
        print(sum(any(each.start <= id(one) < each.end for each in known) for one in made))
    """)
    # The list of them all, or an int that a comprehension needs, may have taken one of a size.
    assert (int(out) <= 3) == is_filled


def test_what_malloc_gives_behind_fillers_is_at_the_top_of_its_heap() -> None:
    """A block that is too large for CPython's allocator and too small for a mapping of its own."""
    out = _run("""
        blocks = [bytes(2000) for _ in range(1000)]
        del blocks[::2]
        top = max(id(block) for block in blocks)
        control = [bytes(2000) for _ in range(50)]
        memory.HoleFiller()
        made = [bytes(2000) for _ in range(50)]
        print(sum(id(block) < top for block in control), sum(id(block) < top for block in made))
    """)
    assert out == "50 0\n"


@pytest.mark.usefixtures("_collapse")
def test_anonymous_memory_is_collapsed() -> None:
    """Whole stretches of 2 MiB, whatever the host's default for huge pages is."""
    out = _run("""
        real, huge_pages._collapse = huge_pages._collapse, lambda address: False
        arenas = memory.ArenaReservation(16)
        where = mapped(id(arenas._kept[-1]))
        print(huge(where.start, where.end))
        huge_pages._collapse = real
        print(huge_pages.collapse_anonymous() >= 7, huge(where.start, where.end) >= 14 * 2**20)
    """)
    before, *after = out.split()
    assert after == ["True", "True"]
    usual = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    assert before == "0" or "[always]" in usual


def test_where_nothing_can_be_collapsed_all_stays_as_it_is() -> None:
    """An older kernel: no error, no page moved, no mapping left over."""
    out = _run("""
        import ctypes
        huge_pages._MADV_COLLAPSE = ctypes.c_int(1000)
        arenas = memory.ArenaReservation(4)
        before = huge_pages.mappings()
        print(huge_pages.collapse_anonymous())
        print(len(huge_pages.mappings()) == len(before))
    """)
    assert out == "0\nTrue\n"
