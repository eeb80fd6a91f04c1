"""A map becomes another by what `change` says: both as sets of pages, for any two layouts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.guest.transplant import memory_map
from cellwall.guest.transplant.memory_map import HEAP, STACK, Base, Change, Region, Unlike
from cellwall.guest.transplant.walker import PAGE, SCRATCH, SCRATCH_END

FIRST = 0x7F00_0000_0000
_KINDS = [
    ("rw-p", ""),
    ("r--p", ""),
    ("---p", ""),
    ("rw-p", "/lib/a.so"),
    ("r-xp", "/lib/a.so"),
    ("r--p", "/lib/b c (deleted).so"),
]
Page = tuple[str, str, int]
"""Rights, path, and the page of the file."""


def _line(region: Region) -> str:
    place = f"{region.start:x}-{region.end:x} {region.rights} {region.offset:08x} 00:1f 0"
    return f"{place}      {region.path}".rstrip()


def _text(regions: list[Region]) -> str:
    return "".join(f"{_line(each)}\n" for each in regions)


def _lines(regions: list[Region]) -> list[str]:
    return memory_map.lines_of(_text(regions))


@st.composite
def _layouts(draw: st.DrawFn) -> list[Region]:
    """Regions behind one another, with gaps, then a heap and a stack."""
    found, page = [], FIRST // PAGE
    for _ in range(draw(st.integers(0, 8))):
        page += draw(st.integers(0, 3))
        pages = draw(st.integers(1, 6))
        rights, path = draw(st.sampled_from(_KINDS))
        offset = draw(st.integers(0, 3)) * PAGE if path else 0
        found.append(Region(page * PAGE, (page + pages) * PAGE, rights, offset, path))
        page += pages
    heap = 0x5555_0000_0000
    if pages := draw(st.integers(0, 4)):
        found.insert(0, Region(heap, heap + pages * PAGE, "rw-p", 0, HEAP))
    top = 0x7FFF_0000_0000
    found.append(Region(top - draw(st.integers(1, 4)) * PAGE, top, "rw-p", 0, STACK))
    return found


def _pages(regions: list[Region], *, grown: bool = False) -> dict[int, Page]:
    """Each page that is mapped; heap and stack, which grow by themselves, with `grown` only."""
    found = {}
    for each in regions:
        if each.path in (HEAP, STACK) and not grown:
            continue
        for address in range(each.start, each.end, PAGE):
            offset = (each.offset + address - each.start) // PAGE if each.path else 0
            found[address] = (each.rights, each.path, offset)
    return found


def _changed(base: list[Region], change: Change) -> dict[int, Page]:
    """What becomes of the pages of `base`."""
    found = _pages(base)
    for start, end in change.gone:
        for address in range(start, end, PAGE):
            del found[address]  # an error if it was not mapped
    return found | _pages(change.new)


@given(_layouts(), _layouts())
def test_change_makes_one_map_of_the_other(base: list[Region], target: list[Region]) -> None:
    change = memory_map.change(_lines(base), _lines(target))
    assert _changed(base, change) == _pages(target)
    ends = [max((e.end for e in r if e.path == HEAP), default=0) for r in (base, target)]
    assert change.heap_end == (0 if ends[0] == ends[1] else ends[1])


@given(_layouts(), _layouts())
def test_pieces_are_all_pages_that_can_differ_once(
    base: list[Region], target: list[Region]
) -> None:
    change = memory_map.change(_lines(base), _lines(target))
    seen = [a for each in change.pieces for a in range(each.start, each.end, PAGE)]
    assert len(seen) == len(set(seen))
    own, theirs = _pages(target, grown=True), _pages(base, grown=True)
    for address, (rights, path, offset) in own.items():
        is_same = _text_has(base, target, address)
        if rights == "rw-p" or (rights[0] == "r" and not is_same):
            assert address in seen, (hex(address), rights, path, offset)
        else:
            assert address not in seen
    for piece in change.pieces:
        if piece.kept is not None:
            assert piece.kept.start <= piece.start < piece.end <= piece.kept.end
            assert theirs[piece.start][:2] == own[piece.start][:2]


def _text_has(base: list[Region], target: list[Region], address: int) -> bool:
    """Whether the page's line is in both maps."""
    return any(each in base and each.start <= address < each.end for each in target)


@given(_layouts())
def test_change_to_itself_is_none(layout: list[Region]) -> None:
    change = memory_map.change(_lines(layout), _lines(layout))
    assert (change.gone, change.new, change.heap_end) == ([], [], 0)
    assert [(p.start, p.end) for p in change.pieces] == [
        (r.start, r.end) for r in layout if r.rights == "rw-p"
    ]


@given(_layouts(), st.sampled_from(["/dev/shm/x", ""]))
def test_shared_mapping_is_refused(layout: list[Region], path: str) -> None:
    shared = Region(0x7A00_0000_0000, 0x7A00_0000_1000, "rw-s", 0, path)
    with pytest.raises(Unlike, match="shares memory"):
        memory_map.change(_lines(layout), _lines([*layout, shared]))


@given(_layouts(), st.sampled_from(["[vdso]", "[vvar]", "[vsyscall]"]))
def test_other_place_of_the_kernels_pages_is_refused(layout: list[Region], name: str) -> None:
    at, elsewhere = (
        Region(place, place + PAGE, "r-xp", 0, name) for place in (0x7A00_0000_0000, 0x7B00 << 32)
    )
    with pytest.raises(Unlike, match="another fork-server"):
        memory_map.change(_lines([*layout, at]), _lines([*layout, elsewhere]))


@given(_layouts())
def test_scratch_is_no_part_of_a_map(layout: list[Region]) -> None:
    inside = [
        Region(SCRATCH, SCRATCH + PAGE, "r-xp", 0, ""),
        Region(SCRATCH_END - PAGE, SCRATCH_END, "rw-p", 0, ""),
    ]
    assert memory_map.lines_of(_text([*inside, *layout])) == memory_map.lines_of(_text(layout))
    assert len(memory_map.lines_of(_text(layout))) == len(layout)


@given(_layouts())
def test_number_of_a_device_is_no_difference(layout: list[Region]) -> None:
    """An overlay has another one after each mount, and a longer one leaves the path less room."""
    other = _text(layout).replace(" 00:1f ", " fe:103 ").replace(" 0      ", " 0     ")
    assert memory_map.lines_of(other) == _lines(layout)


@given(st.text(alphabet="0123456789abcdef-rwxps \t/[]\n", max_size=80))
def test_text_that_is_no_map_is_refused_or_read(text: str) -> None:
    """Never another error: a base comes from another sandbox."""
    for line in text.splitlines():
        try:
            memory_map.read_line(line)
        except Unlike as error:
            assert "cannot be read" in str(error)  # noqa: PT017  either is right


_FLAGS = st.lists(st.booleans(), max_size=200).map(bytes)


@given(_FLAGS, st.integers(0, 2**40))
def test_runs_are_the_flags_again(flags: bytes, first: int) -> None:
    start = first * PAGE
    found = memory_map.runs(flags, start)
    named = [n for a, b in found for n in range((a - start) // PAGE, (b - start) // PAGE)]
    assert named == [n for n, flag in enumerate(flags) if flag]
    assert all(end < later for (_, end), (later, _) in itertools.pairwise(found))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200))
def test_without_is_the_difference(pairs: list[tuple[bool, bool]]) -> None:
    ours, theirs = bytes(a for a, _ in pairs), bytes(b for _, b in pairs)
    assert memory_map.without(ours, theirs) == bytes(a and not b for a, b in pairs)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=100))
def test_page_exists_if_it_is_present_or_swapped_out(words: list[int]) -> None:
    data = b"".join(word.to_bytes(8, "little") for word in words)
    assert memory_map.existing(data) == bytes(bool(word >> 62 & 3) for word in words)


@given(_layouts(), st.data())
def test_base_says_where_its_file_has_each_page(layout: list[Region], data: st.DataObject) -> None:
    kept = [each for each in layout if each.rights == "rw-p"]
    flags = {
        each: bytes(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        for each in kept
        for n in [(each.end - each.start) // PAGE]
    }
    base = Base(_text(layout).encode() + b"\0" + b"".join(flags.values()))
    place = 0
    for each in kept:
        assert base.flags(each, each.start, each.end) == flags[each]
        for n, flag in enumerate(flags[each]):
            if flag:
                assert base.place_of(each, each.start + n * PAGE) == place
                place += PAGE
    assert base.size == place


@given(_layouts(), st.booleans(), st.data())
def test_only_pages_of_which_nothing_was_told_are_read(
    layout: list[Region], says: bool, data: st.DataObject
) -> None:
    """An earlier host says only which are the base's, and all others have to be read."""
    kept = [each for each in layout if each.rights == "rw-p"]
    sizes = {each: (each.end - each.start) // PAGE for each in kept}
    bits = {each: st.lists(st.booleans(), min_size=n, max_size=n) for each, n in sizes.items()}
    theirs, ours, alike = ({each: bytes(data.draw(bits[each])) for each in kept} for _ in range(3))
    base = Base(_text(layout).encode() + b"\0" + b"".join(theirs.values()))
    told, said = set[int](), bytearray()
    for each in kept:
        if 1 in theirs[each]:
            for page in range(theirs[each].index(1), theirs[each].rindex(1) + 1):
                is_equal = theirs[each][page] & ours[each][page] & alike[each][page]
                said.append(is_equal | (2 * ours[each][page] if says else 0))
                told.add(each.start + page * PAGE)
    base.take_equal(bytes(said))
    for each in kept:
        first = data.draw(st.integers(0, sizes[each] - 1))
        last = data.draw(st.integers(first + 1, sizes[each]))
        read = set[int]()

        def reader(start: int, end: int, region: Region = each, read: set[int] = read) -> bytes:
            read.update(range(start, end, PAGE))
            return ours[region][(start - region.start) // PAGE : (end - region.start) // PAGE]

        start, end = each.start + first * PAGE, each.start + last * PAGE
        assert base.existing(each, start, end, reader) == ours[each][first:last]
        wanted = set(range(start, end, PAGE))
        assert read == (wanted - told if 3 in said else wanted)
