"""Metadata of files through the E2B door: by the unmodified client, and on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import NotEnoughSpaceException, Sandbox
from e2b.envd.filesystem import filesystem_pb

from kit.server.e2b_doors import E2BServer, created

STAT = "/filesystem.Filesystem/Stat"
GIVEN = {"author": "me", "x.y": "a value, with ~"}
BIG = "x" * 3_000_000


@pytest.fixture(scope="module")
def box(e2b: E2BServer) -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=600, **e2b.sdk())
    yield made
    made.kill()


@pytest.fixture(scope="module")
def wire(e2b: E2BServer) -> Iterator[httpx.Client]:
    """A client of one sandbox's daemon."""
    control = e2b.client()
    made = created(control)
    headers = {
        "E2b-Sandbox-Id": made["sandboxID"],
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": made["envdAccessToken"],
    }
    yield e2b.client(None, **headers)
    control.delete(f"/sandboxes/{made['sandboxID']}")


def upload(wire: httpx.Client, path: str, *headers: tuple[str, str]) -> httpx.Response:
    """Upload a byte with headers as they are; text is sent as UTF-8."""
    given = [("Content-Type", "application/octet-stream"), *headers]
    sent = [(name.encode(), value.encode()) for name, value in given]
    return wire.post("/files", params={"path": path}, content=b"x", headers=sent)


def stat(wire: httpx.Client, path: str) -> dict[str, Any]:
    answer = wire.post(STAT, json={"path": path})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["entry"])


# -- by the client -----------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "x", BIG], ids=["empty", "small", "big"])
@pytest.mark.parametrize("options", [{}, {"use_octet_stream": True}, {"gzip": True}])
def test_a_file_is_written_with_metadata(
    box: Sandbox, content: str, options: dict[str, Any]
) -> None:
    written = box.files.write("meta/f", content, metadata=GIVEN, **options)
    assert written.metadata == box.files.get_info("meta/f").metadata == GIVEN
    assert box.files.read("meta/f") == content
    [listed] = box.files.list("meta")
    assert listed.metadata == GIVEN
    assert box.files.write("meta/f", content, **options).metadata is None
    assert box.files.get_info("meta/f").metadata is None


def test_metadata_outlasts_a_pause_and_one_that_keeps_the_files_alone(e2b: E2BServer) -> None:
    made = Sandbox.create(timeout=600, **e2b.sdk())
    try:
        made.files.write("sub/kept", "x", metadata=GIVEN)
        made.files.write("/tmp/moved", "x", metadata={"k": "of tmp"})
        made.commands.run("mv /tmp/moved /tmp/by-a-program")
        for keeps_memory in (True, False):
            made.pause(keep_memory=keeps_memory)
            made.connect()
            assert made.files.get_info("sub/kept").metadata == GIVEN
            assert made.files.get_info("/tmp/by-a-program").metadata == {"k": "of tmp"}
        made.files.rename("sub", "other")
        assert made.files.get_info("other/kept").metadata == GIVEN
    finally:
        made.kill()


def test_a_fork_and_a_snapshot_have_the_metadata_of_their_source(e2b: E2BServer) -> None:
    made = Sandbox.create(timeout=600, **e2b.sdk())
    try:
        made.files.write("kept", "x", metadata=GIVEN)
        [fork] = made.fork()
        assert isinstance(fork, Sandbox)
        snapshot = made.create_snapshot()
        made.files.write("kept", "x")
        for copy in (fork, Sandbox.create(snapshot.snapshot_id, **e2b.sdk())):
            assert copy.files.get_info("kept").metadata == GIVEN
            copy.kill()
        assert made.files.get_info("kept").metadata is None
        Sandbox.delete_snapshot(snapshot.snapshot_id, **e2b.sdk())
    finally:
        made.kill()


# -- on the wire -------------------------------------------------------------------------------


def test_keys_are_lower_case_and_of_repeated_ones_the_first_counts(wire: httpx.Client) -> None:
    answer = upload(wire, "wired", ("X-Metadata-Some", "first"), ("x-metadata-some", "second"))
    [entry] = answer.json()
    assert entry["metadata"] == {"some": "first"}
    assert stat(wire, "wired")["metadata"] == {"some": "first"}


def test_both_codecs_carry_it(wire: httpx.Client) -> None:
    upload(wire, "codecs", ("X-Metadata-a", "1"), ("X-Metadata-b", ""))
    asked = filesystem_pb.StatRequest(path="codecs").to_binary()
    answer = wire.post(STAT, content=asked, headers={"Content-Type": "application/proto"})
    found = filesystem_pb.StatResponse.from_binary(answer.content).entry
    assert found is not None
    assert dict(found.metadata) == stat(wire, "codecs")["metadata"] == {"a": "1", "b": ""}


def test_an_upload_without_has_no_word_of_it(wire: httpx.Client) -> None:
    assert upload(wire, "plain").json() == [
        {"path": "/home/user/plain", "name": "plain", "type": "file"}
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Metadata-", "no key")],
        [("X-Metadata-k", "ü")],
        [("X-Metadata-k", "a\tb")],
        [("X-Metadata-" + "k" * 247, "")],
        [("X-Metadata-k", "v" * 4087)],
        [(f"X-Metadata-{number:04}", "v" * 90) for number in range(41)],
    ],
)
def test_what_no_file_may_have_is_refused_and_nothing_is_written(
    wire: httpx.Client, headers: list[tuple[str, str]]
) -> None:
    answer = upload(wire, "refused", *headers)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert set(body) == {"code", "message"}
    assert body["code"] == 400
    assert "metadata of a file" in body["message"]
    assert wire.post(STAT, json={"path": "refused"}).status_code == 404


def test_the_most_that_a_file_may_have_is_taken(wire: httpx.Client) -> None:
    key, value = "k" * 246, "v" * (4096 - 9 - 246)
    assert upload(wire, "most", (f"X-Metadata-{key}", value)).status_code == 200
    assert stat(wire, "most")["metadata"] == {key: value}


def test_a_sandbox_that_has_the_most_says_so_and_goes_on(e2b: E2BServer) -> None:
    """4096 bytes of each of 256 files are all there may be; and what is gone makes room."""
    made = Sandbox.create(timeout=600, **e2b.sdk())
    large = {"k": "v" * 4086}
    try:
        for first in range(0, 256, 64):
            names = [f"all/{number}" for number in range(first, first + 64)]
            made.files.write_files([{"path": each, "data": ""} for each in names], metadata=large)
        with pytest.raises(NotEnoughSpaceException, match="metadata of 256 files is kept"):
            made.files.write("late", "x", metadata=large)
        assert not made.files.exists("late")
        assert made.files.write("late", "x").metadata is None
        made.commands.run("rm all/7")
        assert made.files.write("late", "x", metadata=large).metadata == large
    finally:
        made.kill()


def test_metadata_is_data_and_names_no_path(wire: httpx.Client) -> None:
    """Words that mean something elsewhere are shown as they came."""
    words = '{"a": "../../etc"}, %00 &metadata={} <script>'
    assert upload(wire, "words", ("X-Metadata-path", words)).status_code == 200
    entry = stat(wire, "words")
    assert (entry["metadata"], entry["path"]) == ({"path": words}, "/home/user/words")
    assert json.loads(json.dumps(entry["metadata"]))["path"] == words
