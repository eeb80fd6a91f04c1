"""Which ids an ordinary user may map: what lists and maps say, and how it is shared out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.linux import subordinate_ids, uid_ranges
from cellwall.linux.subordinate_ids import SLICE, Asked, Outer, listed, mapped
from cellwall.linux.syscalls import id_maps
from cellwall.model.errors import CapacityError, HostUnsupported


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("ada:100000:65536\n", (100000, 65536)),
        ("1234:100000:65536\n", (100000, 65536)),
        ("bob:1:9\nada:100000:10\nada:300000:65536\n", (300000, 65536)),
        ("ada2:100000:65536\n# ada:1:2\nada:x:3\nada:7\n", None),
    ],
)
def test_a_list_gives_a_user_the_largest_extent(
    text: str, expected: tuple[int, int] | None
) -> None:
    assert listed(text, "ada", 1234) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("0 1000 1\n1 100000 65536\n", (32769, 32765)),
        ("0 100000 65536\n", (32768, 32766)),
        ("0 0 4294967295\n", (2147483647, 2147483648)),
        ("0 1000 1\n", (0, 1)),
    ],
)
def test_a_containers_root_takes_the_upper_half(
    text: str, expected: tuple[int, int] | None
) -> None:
    assert mapped(text) == expected


def test_slices_come_from_the_end_and_do_not_meet() -> None:
    outer = Outer(100_000, 200_000, 65_536, (("uid", "/u"), ("gid", "/g")))
    parts = [outer.part(number) for number in range(outer.count // SLICE)]
    assert parts[0].uid + SLICE == 165_536
    assert parts[-1].uid == 100_000
    assert {part.gid - part.uid for part in parts} == {100_000}
    assert len({part.uid for part in parts}) == len(parts) == 65_536 // SLICE
    assert parts[0].as_json()["tools"] == {"uid": "/u", "gid": "/g"}


@pytest.mark.parametrize(
    ("count", "of_images", "slices"),
    [
        (4096, None, 2),
        (49_152, None, 24),
        (49_153, 32_768, 8),
        (65_536, 49_151, 8),
        (81_919, 65_534, 8),
        (1 << 20, 65_534, 480),
    ],
)
def test_images_have_the_first_ids_and_fork_servers_the_rest(
    count: int, of_images: int | None, slices: int
) -> None:
    outer = Outer(100_000, 200_000, count)
    images = outer.of_images
    assert outer.slices == slices
    assert (None if images is None else images.count) == of_images
    if images is not None:
        assert (images.uid, images.gid) == (100_000, 200_000)
        behind = images.uid + images.total
        assert all(outer.part(number).uid >= behind for number in range(slices))


def test_ids_of_an_image_are_those_below_a_bound_and_nobody() -> None:
    images = Outer(100_000, 200_000, 65_536).of_images
    assert images is not None
    numbers = (0, 49_150, 49_151, 65_534, 65_535, -1)
    at = [id_maps.distance(images.lines, number) for number in numbers]
    assert at == [0, 49_150, -1, 49_151, -1, -1]
    assert id_maps.text(images.lines, 7) == "0 7 49151\n65534 49158 1"
    assert id_maps.text(id_maps.WHOLE, 7) == "0 7 65536"
    assert id_maps.distance(id_maps.WHOLE, 65_535) == 65_535


def test_sandboxes_on_images_share_ids_behind_those_of_their_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uid_ranges, "_own_folder", lambda: tmp_path)
    ids = uid_ranges.Ids(True, Outer(100_000, 200_000, 65_536), "for a test")
    first, second = ids.hold_for_images(), ids.hold_for_images()
    assert first.base == 100_000 + 65_536 - SLICE
    assert second.base == first.base - SLICE
    assert {first.take(), first.take(), second.take()} == {SLICE}
    assert (first.host_uid(SLICE), first.host_gid(SLICE)) == (100_000, 200_000)
    assert first.host_uid(first.root_index) == first.base + SLICE - 1  # of no sandbox
    assert not first.is_full
    assert first.outer is not None
    told = first.outer.as_json()
    assert told["uid"] == [first.base, SLICE]
    assert told["images"]["gid"] == [200_000, 49_152]
    first.release()
    assert ids.hold_for_images().base == first.base


@pytest.mark.parametrize("outer", [None, Outer(1, 1, 4096)])
def test_user_with_too_few_ids_has_no_images(outer: Outer | None) -> None:
    ids = uid_ranges.Ids(True, outer, "none are listed", "have some" if outer is None else "")
    with pytest.raises(HostUnsupported, match="needs 65536 ids") as refused:
        ids.hold_for_images()
    assert refused.value.remedy


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> uid_ranges.Ids:
    monkeypatch.setattr(uid_ranges, "_own_folder", lambda: tmp_path)
    return uid_ranges.Ids(True, Outer(100_000, 100_000, 2 * SLICE), "for a test")


def test_a_fork_server_holds_a_slice_until_it_ends(ids: uid_ranges.Ids) -> None:
    first, second = ids.hold(), ids.hold()
    assert {first.base, second.base} == {100_000, 100_000 + SLICE}
    assert first.inner_base == second.inner_base == 1
    with pytest.raises(CapacityError, match="in use by fork-servers"):
        ids.hold()
    first.release()
    assert ids.hold().base == first.base


def test_without_any_all_share_one_and_say_so() -> None:
    ids = uid_ranges.Ids(True, None, "for a test", "have some")
    assert ids.are_shared
    assert ids.hold().base == os.geteuid()
    assert not uid_ranges.Ids(False, None, "root").are_shared


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_locks_of_a_folder_that_others_may_write_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setattr(uid_ranges, "Path", lambda _name: folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(HostUnsupported, match="not this user's alone"):
        uid_ranges._own_folder()


def test_ids_that_are_refused_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = Outer(1, 1, SLICE, (("uid", "/bin/false"), ("gid", "/bin/false")))
    monkeypatch.setattr(subordinate_ids, "_of_the_lists", lambda: Asked(outer, "listed"))
    monkeypatch.setattr(subordinate_ids, "_of_our_own", lambda: Asked(outer, "listed"))
    asked = subordinate_ids.ask()
    assert asked.outer is None
    assert "/bin/false has refused it" in asked.detail


def test_a_map_that_is_not_written_whole_is_an_error() -> None:
    """In a child: it would leave our user namespace."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            id_maps.enter({"uid": [1, 9], "gid": [1, 9], "tools": {"uid": "/bin/false"}})
        except OSError as error:
            code = 42 if "map ids of the host" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
