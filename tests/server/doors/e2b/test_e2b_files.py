"""Files and watches of a sandbox by the unmodified E2B client."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import FileType, InvalidArgumentException, NotFoundException, Sandbox, WatchHandle
from e2b.exceptions import FileNotFoundException, RateLimitException, SandboxException
from e2b.sandbox.filesystem.watch_handle import FilesystemEvent, FilesystemEventType

from kit.server.e2b_doors import E2BServer
from kit.waiting import wait_until

BIG = os.urandom(3_000_000)


@pytest.fixture(scope="module")
def box(e2b: E2BServer) -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=600, **e2b.sdk())
    yield made
    made.kill()


@pytest.mark.parametrize("content", ["text ü", "", b"\x00\xff", BIG])
def test_what_is_written_is_read(box: Sandbox, content: str | bytes) -> None:
    info = box.files.write("new/written", content)
    assert info.path == "/home/user/new/written"
    if isinstance(content, str):
        assert box.files.read("new/written") == content
    else:
        assert bytes(box.files.read("new/written", format="bytes")) == content


def test_a_file_is_read_and_written_as_a_stream(box: Sandbox) -> None:
    box.files.write("stream", io.BytesIO(BIG))
    assert b"".join(box.files.read("stream", format="stream")) == BIG


@pytest.mark.parametrize("options", [{"use_octet_stream": True}, {"gzip": True}])
def test_a_body_of_bytes_is_taken(box: Sandbox, options: dict[str, Any]) -> None:
    box.files.write("octets", BIG, **options)
    assert bytes(box.files.read("octets", format="bytes")) == BIG


def test_several_files_are_written_at_once(box: Sandbox) -> None:
    made = box.files.write_files(
        [{"path": "many/a", "data": "1"}, {"path": "/tmp/b", "data": b"2"}]
    )
    assert [each.path for each in made] == ["/home/user/many/a", "/tmp/b"]
    assert box.files.read("/tmp/b") == "2"


def test_a_file_is_described(box: Sandbox) -> None:
    box.files.write("described", "12345")
    info = box.files.get_info("~/described")
    assert (info.name, info.path, info.size) == ("described", "/home/user/described", 5)
    assert (info.type, info.permissions, info.mode) == (FileType.FILE, "-rw-r--r--", 0o644)
    assert (info.owner, info.group) == ("user", "user")


def test_a_link_is_described_by_what_it_leads_to(box: Sandbox) -> None:
    box.commands.run("mkdir -p links && cd links && echo 1 > to && ln -s to a && ln -s a b")
    box.commands.run("cd links && ln -s nowhere broken && ln -s circle circle")
    info = box.files.get_info("links/b")
    assert (info.type, info.symlink_target) == (FileType.FILE, "/home/user/links/to")
    assert info.permissions.startswith("L")
    assert {each.name for each in box.files.list("links")} == {"to", "a", "b"}


def test_a_directory_is_listed_to_a_depth(box: Sandbox) -> None:
    box.files.write("tree/one/two/three", "x")
    names = [each.path.removeprefix("/home/user/tree") for each in box.files.list("tree", depth=2)]
    assert names == ["/one", "/one/two"]
    kinds = [each.type for each in box.files.list("tree")]
    assert kinds == [FileType.DIR]


def test_what_cannot_be_listed_is_refused(box: Sandbox) -> None:
    box.files.write("leaf", "x")
    with pytest.raises(InvalidArgumentException, match="not a directory"):
        box.files.list("leaf")
    with pytest.raises(FileNotFoundException):
        box.files.list("none")
    with pytest.raises(InvalidArgumentException):
        box.files.list(".", depth=65)


def test_a_directory_is_made_once(box: Sandbox) -> None:
    assert box.files.make_dir("made/deeply") is True
    assert box.files.make_dir("made/deeply") is False
    box.files.write("made/file", "x")
    with pytest.raises(InvalidArgumentException):
        box.files.make_dir("made/file")


def test_a_file_is_moved_into_a_directory_that_is_made(box: Sandbox) -> None:
    box.files.write("moved", "x")
    assert box.files.rename("moved", "to/here").path == "/home/user/to/here"
    assert not box.files.exists("moved")
    with pytest.raises(NotFoundException):
        box.files.rename("moved", "again")


def test_a_tree_is_removed_and_nothing_is_no_error(box: Sandbox) -> None:
    box.files.write("gone/a/b", "x")
    box.files.remove("gone")
    assert not box.files.exists("gone")
    box.files.remove("gone")


def test_reading_says_what_is_wrong(box: Sandbox) -> None:
    with pytest.raises(FileNotFoundException, match="path '/home/user/none' does not exist"):
        box.files.read("none")
    with pytest.raises(InvalidArgumentException, match="is a directory"):
        box.files.read("/tmp")
    with pytest.raises(InvalidArgumentException, match="is a directory"):
        box.files.write("/tmp", "x")


# -- watches -----------------------------------------------------------------------------------


def _changes(handle: object, wanted: int) -> list[FilesystemEvent]:
    found: list[FilesystemEvent] = []

    def enough() -> bool:
        found.extend(handle.get_new_events())  # type: ignore[attr-defined]
        return len(found) >= wanted

    wait_until(enough, f"{wanted} changes")
    return found


def test_changes_of_a_directory_are_fetched(box: Sandbox) -> None:
    box.files.write("seen/old", "1")
    handle = box.files.watch_dir("seen")
    box.files.write("seen/new", "1")
    box.files.write("seen/old", "2")
    box.files.rename("seen/old", "seen/renamed")
    box.files.remove("seen/new")
    found = [(each.name, each.type) for each in _changes(handle, 5)]
    assert ("new", FilesystemEventType.CREATE) in found
    assert ("old", FilesystemEventType.WRITE) in found
    assert ("old", FilesystemEventType.RENAME) in found
    assert ("renamed", FilesystemEventType.CREATE) in found
    assert ("new", FilesystemEventType.REMOVE) in found
    handle.stop()
    with pytest.raises(Exception, match=r"already stopped|not found"):
        handle.get_new_events()


def test_what_has_just_changed_is_there_when_the_client_asks(box: Sandbox) -> None:
    box.files.make_dir("at-once")
    handle = box.files.watch_dir("at-once")
    box.files.write("at-once/file", "1")
    assert "file" in [each.name for each in handle.get_new_events()]
    assert handle.get_new_events() == []


def test_a_watch_looks_below_if_it_is_asked_to(box: Sandbox) -> None:
    box.files.make_dir("deep/below")
    flat, deep = box.files.watch_dir("deep"), box.files.watch_dir("deep", recursive=True)
    box.files.write("deep/below/file", "x")
    assert "below/file" in [each.name for each in _changes(deep, 1)]
    assert flat.get_new_events() == []


def test_a_change_comes_with_its_file_if_it_is_asked_to(box: Sandbox) -> None:
    box.files.make_dir("entries")
    handle = box.files.watch_dir("entries", include_entry=True)
    box.files.write("entries/file", "12")
    found = next(each for each in _changes(handle, 1) if each.name == "file")
    assert found.entry is not None
    assert found.entry.path == "/home/user/entries/file"


def test_only_directories_are_watched(box: Sandbox) -> None:
    box.files.write("lone", "x")
    with pytest.raises(InvalidArgumentException):
        box.files.watch_dir("lone")
    with pytest.raises(FileNotFoundException):
        box.files.watch_dir("none")


def _is_refused(handle: WatchHandle) -> bool:
    try:
        handle.get_new_events()
    except SandboxException as error:
        return "hibernated; watch again" in str(error)
    return False


def test_a_watch_outlasts_a_pause_and_tells_that_a_hibernation_ended_it(e2b: E2BServer) -> None:
    made = Sandbox.create(**e2b.sdk())
    try:
        handle = made.files.watch_dir("/tmp")
        made.pause()
        Sandbox.connect(made.sandbox_id, **e2b.sdk())
        made.files.write("/tmp/after", "x")
        assert _changes(handle, 1)[0].name == "after"
        place = f"/sandboxes/{made.sandbox_id}/hibernate"
        answer = e2b.server.client().post(place, json={"drop": True})
        assert answer.status_code == 200, answer.text
        Sandbox.connect(made.sandbox_id, **e2b.sdk())
        wait_until(lambda: _is_refused(handle), "the watch's end")
        assert _is_refused(handle)
    finally:
        made.kill()


def test_one_sandbox_has_a_bounded_number_of_watchers(e2b: E2BServer) -> None:
    made = Sandbox.create(**e2b.sdk())
    try:
        for _ in range(8):
            made.files.watch_dir("/tmp")
        with pytest.raises(RateLimitException, match="8 watches"):
            made.files.watch_dir("/tmp")
    finally:
        made.kill()


# -- by address --------------------------------------------------------------------------------


def test_a_signed_address_reads_and_writes_one_file(box: Sandbox) -> None:
    box.files.write("signed", "here")
    url = box.download_url("signed", use_signature_expiration=60)
    assert httpx.get(url).text == "here"
    assert httpx.get(url.replace("signed", "lone", 1)).status_code == 401
    upload = box.upload_url("signed2")
    answer = httpx.post(upload, files={"file": ("signed2", b"up")})
    assert answer.status_code == 200, answer.text
    assert box.files.read("signed2") == "up"
    text_field = httpx.post(upload, files={"file": (None, "text"), "other": (None, "ignored")})
    assert text_field.status_code == 200, text_field.text
    assert box.files.read("signed2") == "text"


def test_a_part_of_a_file_is_read(box: Sandbox) -> None:
    box.files.write("range", "0123456789")
    answer = httpx.get(box.download_url("range"), headers={"Range": "bytes=2-4"})
    assert (answer.status_code, answer.text) == (206, "234")
    assert answer.headers["content-range"] == "bytes 2-4/10"
