"""Host ids: never an account's, never two sandboxes' at once, never two engines'."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from cellwall.linux import uid_ranges
from cellwall.model.errors import CapacityError, HostUnsupported


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lock files in a directory of the test's own."""
    monkeypatch.setattr(uid_ranges, "_DIRECTORY", tmp_path / "ranges")
    return tmp_path / "ranges"


@pytest.mark.usefixtures("directory")
def test_two_engines_never_share_a_range() -> None:
    first, second = uid_ranges.acquire(), uid_ranges.acquire()
    assert abs(first.base - second.base) >= uid_ranges.COUNT
    first.release()
    second.release()


@pytest.mark.usefixtures("directory")
def test_a_released_range_is_given_out_again() -> None:
    first = uid_ranges.acquire()
    first.release()
    again = uid_ranges.acquire()
    assert again.base == first.base
    again.release()


@pytest.mark.usefixtures("directory")
def test_ranges_hold_no_account_of_this_host() -> None:
    held = uid_ranges.acquire()
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    assert not taken & set(range(held.base, held.base + held.count))
    assert held.base >= 0x70000000
    held.release()


@pytest.mark.usefixtures("directory")
def test_live_sandboxes_have_different_ids_and_none_is_the_forkservers_root() -> None:
    held = uid_ranges.acquire()
    taken = [held.take() for _ in range(100)]
    assert len(set(taken)) == 100
    assert 0 not in taken
    assert {held.host_uid(i) - i for i in taken} == {held.base}
    assert {held.host_gid(i) - i for i in taken} == {held.base}
    held.release()


def test_an_id_comes_back_only_when_given_back() -> None:
    held = uid_ranges.UidRange(1000, 1000, 4, None)  # the fork-server's, two, and root's
    first, second = held.take(), held.take()
    assert {first, second} == {1, 2}
    with pytest.raises(CapacityError, match="every id belongs to a live sandbox"):
        held.take()
    held.give_back(first)
    assert held.take() == first


def test_root_s_id_is_no_sandbox_s() -> None:
    held = uid_ranges.UidRange(1000, 1000, 4, None)
    assert held.root_index == 3
    assert uid_ranges.single().root_index == 0
    assert {held.take(), held.take()} == {1, 2}
    with pytest.raises(CapacityError):
        held.take()


def test_rootless_has_one_id_our_own() -> None:
    held = uid_ranges.single()
    assert (held.take(), held.take()) == (0, 0)
    assert (held.host_uid(0), held.host_gid(0)) == (os.geteuid(), os.getegid())


def test_all_ranges_taken_is_a_matter_of_capacity(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uid_ranges, "_RANGES", 2)
    held = [uid_ranges.acquire(), uid_ranges.acquire()]
    with pytest.raises(CapacityError, match="in use on this host"):
        uid_ranges.acquire()
    assert len(list(directory.iterdir())) == 2
    for each in held:
        each.release()


def test_a_place_that_cannot_be_made_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(uid_ranges, "_DIRECTORY", tmp_path / "file" / "ranges")
    with pytest.raises(HostUnsupported, match=r"make .*/file/ranges: Not a directory; make /run"):
        uid_ranges.acquire()


@pytest.mark.parametrize(
    ("id_map", "covered"),
    [
        pytest.param("         0          0 4294967295\n", True, id="the host itself"),
        pytest.param("0 100000 65536\n", False, id="a container with remapped ids"),
        pytest.param("0 1000 1\n1 100000 65536\n", False, id="rootless podman"),
        pytest.param("0 0 2147483647\n", True, id="half of all ids"),
        pytest.param("", False, id="nothing mapped yet"),
    ],
)
def test_root_is_root_only_where_the_ranges_exist(id_map: str, covered: bool) -> None:
    assert uid_ranges.covers(id_map) is covered
