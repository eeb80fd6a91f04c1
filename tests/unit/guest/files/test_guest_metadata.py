"""Metadata of files through the real init: it belongs to a file, and is bounded."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.templates.store import state_dir
from cellwall.guest.channel.errors import Refusal
from cellwall.guest.files import metadata as module
from cellwall.guest.files.metadata import FileMetadata, identify, read, written
from conftest import Require
from kit.guest.guest_host import Host

ONE = {"author": "me", "of": "x y"}


@pytest.fixture
def disk_folder() -> Iterator[Path]:
    """A folder on the file system of the state directory, where numbers are used again."""
    state_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state_dir()) as name:
        yield Path(name)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def write(host: Host, path: str, metadata: object = None, **fields: Any) -> dict[str, Any]:
    more = {} if metadata is None else {"metadata": metadata}
    return host.ask("file_write", b"x", path=path, parents=True, **more, **fields)[0]


def seen(host: Host, path: str) -> object:
    header, body = host.ask("file_stat", path=path)
    return (json.loads(body) if body else header).get("metadata")


# -- whose it is -------------------------------------------------------------------------------


def test_it_is_shown_where_a_file_is(host: Host) -> None:
    assert write(host, "a/f", ONE)["kept"] == 2
    assert seen(host, "a/f") == ONE
    _, body = host.ask("file_list", path=".", depth=2)
    assert [each.get("metadata") for each in json.loads(body)] == [None, ONE]


def test_a_file_without_has_none(host: Host) -> None:
    write(host, "other", ONE)
    assert write(host, "f", {})["kept"] == 0
    assert write(host, "g")["kept"] == 0
    assert seen(host, "f") is seen(host, "g") is None


def test_a_file_that_is_written_anew_has_what_it_is_given(host: Host) -> None:
    write(host, "f", ONE)
    write(host, "f", {"b": ""})
    assert seen(host, "f") == {"b": ""}
    write(host, "f")
    assert seen(host, "f") is None


def test_it_follows_a_file_to_another_name(host: Host) -> None:
    write(host, "dir/f", ONE)
    host.ask("file_move", path="dir/f", target="dir/g")
    assert seen(host, "dir/g") == ONE
    host.ask("file_move", path="dir", target="moved")
    assert seen(host, "moved/g") == ONE
    (host.home / "moved/g").rename(host.home / "by a program")
    assert seen(host, "by a program") == ONE


def test_it_follows_a_tree_to_another_file_system(host: Host) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != os.stat(host.home).st_dev
        write(host, "tree/f", ONE)
        write(host, "tree/replaced", ONE)
        (host.home / "new").write_bytes(b"")
        (host.home / "new").rename(host.home / "tree/replaced")
        host.ask("file_move", path="tree", target=f"{elsewhere}/tree")
        assert seen(host, f"{elsewhere}/tree/f") == ONE
        assert seen(host, f"{elsewhere}/tree/replaced") is None


def test_what_a_program_changes_in_place_keeps_it_and_what_it_replaces_does_not(
    host: Host,
) -> None:
    write(host, "f", ONE)
    with (host.home / "f").open("ab") as file:
        file.write(b"more")
    host.ask("file_write", b"more", path="f", append=True)
    assert seen(host, "f") == ONE
    (host.home / "new").write_bytes(b"")
    (host.home / "new").replace(host.home / "f")
    assert seen(host, "f") is None


def test_a_file_that_was_written_through_a_link_has_it_and_the_link_has_none(host: Host) -> None:
    (host.home / "link").symlink_to("f")
    write(host, "link", ONE)
    assert (seen(host, "f"), seen(host, "link")) == (ONE, None)


def test_a_number_that_is_used_again_shows_nothing_of_the_file_before(
    disk_folder: Path, require: Require
) -> None:
    table, path = FileMetadata(), disk_folder / "f"
    path.write_bytes(b"")
    table.keep(str(path), str(path), ONE)
    assert table.of(str(path), path.lstat(), str(path)) == ONE
    before = identify(str(path))[1]
    for _ in range(1000):
        path.unlink()
        path.write_bytes(b"")
        if path.lstat().st_ino == before.inode:
            break
    else:
        require("an inode's number used again", False, "keep the state directory on ext4")
    assert identify(str(path))[1] != before
    assert table.of(str(path), path.lstat(), str(path)) is None


def test_another_birth_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, path = FileMetadata(), tmp_path / "f"
    path.write_bytes(b"")
    table.keep(str(path), str(path), ONE)
    mode, identity = identify(str(path))
    later = identity._replace(born_ns=identity.born_ns + 1)
    monkeypatch.setattr(module, "identify", lambda _: (mode, later))
    assert table.of(str(path), path.lstat(), str(path)) is None
    monkeypatch.undo()
    assert table.of(str(path), path.lstat(), str(path)) is None  # it was forgotten then


def test_a_volume_that_tells_no_birth_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers may be used again; those of the sandbox's own files are not."""
    table, path = FileMetadata(), tmp_path / "f"
    path.write_bytes(b"")
    mode, identity = identify(str(path))
    monkeypatch.setattr(module, "identify", lambda _: (mode, identity._replace(born_ns=0)))
    monkeypatch.setattr(module, "_IN_MEMORY", (str(tmp_path),))
    table.keep(str(path), str(path), ONE)
    monkeypatch.setattr(module, "_IN_MEMORY", ("/proc", "/none"))
    with pytest.raises(Refusal, match="volume"):
        table.keep(str(path), str(path), ONE)


def test_an_identity_is_what_the_kernel_tells_by_other_calls(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    (tmp_path / "link").symlink_to(path)
    found = path.stat()
    with path.open() as file:
        for way in (str(path), file.fileno()):
            mode, identity = identify(way)
            assert (identity.device, identity.inode) == (found.st_dev, found.st_ino)
            assert mode == found.st_mode
    assert identify(str(tmp_path / "link"))[1].inode == (tmp_path / "link").lstat().st_ino
    with pytest.raises(FileNotFoundError):
        identify(str(tmp_path / "none"))


# -- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        {"": "x"},
        {"k" * 247: ""},
        {"k\n": "x"},
        {"ü": "x"},
        {"k": "x\x7f"},
        {"k": "ü"},
        {"k": "x\0"},
        {"k": 1},
        {"k": None},
        {"k": {"l": "m"}},
        {"k": "v" * 4087},
        {str(number): "" for number in range(1000)},
        [["k", "v"]],
        "k",
        7,
    ],
)
def test_what_no_file_may_have_is_refused_before_anything_is_written(
    host: Host, metadata: object
) -> None:
    assert write(host, "new/f", metadata)["code"] == "invalid"
    assert os.listdir(host.home) == []


def test_the_most_that_one_file_may_have_is_kept(host: Host) -> None:
    most = {"k" * 246: "v" * (4096 - 2 * 9 - 247), "l": ""}
    assert write(host, "f", most)["kept"] == 2
    assert seen(host, "f") == most


def test_an_append_changes_none(host: Host) -> None:
    assert write(host, "f", ONE, append=True)["code"] == "invalid"
    assert not (host.home / "f").exists()


def test_a_full_table_refuses_and_leaves_the_file_as_it_is(host: Host) -> None:
    large = {"k": "v" * 4000}
    count = module.MOST_BYTES // (9 + 1 + 4000)
    for number in range(count):
        assert write(host, f"f{number}", large)["kept"] == 1
    (host.home / "old").write_bytes(b"old")
    refused = write(host, "old", large)
    assert refused["code"] == "no_space"
    assert f"the metadata of {count} files" in refused["message"]
    assert (host.home / "old").read_bytes() == b"old"
    assert len(os.listdir(host.home)) == count + 1  # no draft is left
    write(host, "old")  # without there is always room
    (host.home / "f0").unlink()
    assert write(host, "old", large)["kept"] == 1
    assert (seen(host, "old"), seen(host, "f1")) == (large, large)


def test_the_number_of_files_is_bounded_and_those_that_are_gone_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    table, paths = FileMetadata(), [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_bytes(b"")
    for path in paths[:3]:
        table.keep(str(path), str(path), ONE)
    with pytest.raises(Refusal, match="3 files"):
        table.keep(str(paths[3]), str(paths[3]), ONE)
    paths[0].unlink()
    table.keep(str(paths[3]), str(paths[3]), ONE)
    assert all(table.of(str(each), each.lstat(), str(each)) == ONE for each in paths[1:])


def test_a_file_that_was_written_two_thousand_times_counts_once(tmp_path: Path) -> None:
    table, path = FileMetadata(), tmp_path / "f"
    for _ in range(2000):
        (tmp_path / "draft").write_bytes(b"")
        table.keep(str(tmp_path / "draft"), str(path), {"k": "v" * 2000})
        (tmp_path / "draft").rename(path)
    assert table.of(str(path), path.lstat(), str(path)) is not None


# -- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_sandbox_that_goes_on_finds_its_files_by_path_only_if_they_are_copies(
    tmp_path: Path, is_elsewhere: bool
) -> None:
    table, path, replaced = FileMetadata(), tmp_path / "f", tmp_path / "replaced"
    for each in (path, replaced):
        each.write_bytes(b"")
        table.keep(str(each), str(each), ONE)
    (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").rename(replaced)
    table.stand_by()
    path.rename(tmp_path / "away")
    path.write_bytes(b"")  # another inode under the old path, as in a copy
    table.wake(is_elsewhere=is_elsewhere)
    found = [table.of(str(each), each.lstat(), str(each)) for each in (path, replaced)]
    assert found == ([ONE, None] if is_elsewhere else [None, None])


# -- lists -------------------------------------------------------------------------------------


def test_a_list_is_read_as_it_was_written() -> None:
    files = [("0/a b", ONE), ("1/c", {"k": ""})]
    assert read(written(files)) == files


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"7", b'["ab", 1]', b"[[1]]", b'[["p", 1]]', b'[["p", {"k": 1}]]', b"\xff"],
)
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal):
        read(data)


def test_what_arrives_is_kept_only_for_regular_files_that_are_there(tmp_path: Path) -> None:
    table = FileMetadata()
    there, link, none = (tmp_path / name for name in ("there", "link", "none"))
    there.write_bytes(b"")
    link.symlink_to(there)
    table.arrive([(str(each), ONE) for each in (link, none, tmp_path)])
    assert table.of(str(there), there.lstat(), str(there)) is None
    table.arrive([(str(there), ONE)])
    assert table.of(str(there), there.lstat(), str(there)) == ONE
