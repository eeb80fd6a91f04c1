"""Files through the real init: nothing a caller puts there may make init wait."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.guest.guest_host import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def _code(host: Host, op: str, body: bytes = b"", **fields: Any) -> str | None:
    header, _ = host.ask(op, body, **fields)
    return header.get("code")


def test_write_then_read_in_pieces(host: Host) -> None:
    assert host.ask("file_write", b"abcdef", path="a/b.txt", parents=True)[0]["size"] == 6
    header, body = host.ask("file_read", path="a/b.txt", offset=1, length=3)
    assert (header["size"], header["eof"], body) == (6, False, b"bcd")
    header, body = host.ask("file_read", path=f"{host.home}/a/b.txt", offset=4)
    assert (header["eof"], body) == (True, b"ef")


def test_file_of_thirty_two_megabytes_is_written(host: Host) -> None:
    data = os.urandom(1024) * (32 * 1024)
    assert host.ask("file_write", data, path="big")[0]["size"] == len(data)
    assert (host.home / "big").read_bytes() == data


def test_write_replaces_and_readers_keep_the_old_file(host: Host) -> None:
    path = host.home / "f"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with path.open("rb") as reader:
        host.ask("file_write", b"new", path="f")
        assert (reader.read(), path.read_bytes()) == (b"old", b"new")
    assert path.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(host.home) == ["f"]


def test_write_goes_through_a_link(host: Host) -> None:
    (host.home / "target").write_bytes(b"")
    (host.home / "link").symlink_to("target")
    host.ask("file_write", b"x", path="link")
    assert (host.home / "link").is_symlink()
    assert (host.home / "target").read_bytes() == b"x"


def test_append_and_mode(host: Host) -> None:
    host.ask("file_write", b"a", path="f", append=True, mode=0o600)
    assert host.ask("file_write", b"b", path="f", append=True)[0]["size"] == 2
    host.ask("file_write", b"#!", path="run", mode=0o755)
    modes = [(host.home / name).stat().st_mode & 0o777 for name in ("f", "run")]
    assert modes == [0o600, 0o755]


def _plant(home: Path, kind: str) -> None:
    path = home / "trap"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as planted:
            planted.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/tty0" if Path("/dev/tty0").exists() else "/dev/zero")
    else:
        path.symlink_to("trap")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop"])
def test_traps_are_refused_without_waiting(host: Host, kind: str) -> None:
    _plant(host.home, kind)
    refused = {"invalid", "not_found", "permission"}
    assert _code(host, "file_read", path="trap") in refused
    assert _code(host, "file_write", b"x", path="trap", append=True) in refused
    if kind != "loop":
        assert _code(host, "file_write", b"x", path="trap") in refused
    assert host.ask("file_stat", path="trap")[0]["ev"] == "reply"


@pytest.mark.parametrize(
    ("op", "fields", "code"),
    [
        ("file_read", {"path": ""}, "invalid"),
        ("file_read", {"path": "a\0b"}, "invalid"),
        ("file_read", {"path": None}, "invalid"),
        ("file_read", {"path": "file", "length": 2**21}, "invalid"),
        ("file_read", {"path": "file", "offset": -1}, "invalid"),
        ("file_read", {"path": "none"}, "not_found"),
        ("file_read", {"path": "folder"}, "is_directory"),
        ("file_read", {"path": "file/x"}, "not_directory"),
        ("file_read", {"path": "x" * 300}, "invalid"),
        ("file_write", {"path": "folder"}, "is_directory"),
        ("file_write", {"path": "no/parent"}, "not_found"),
        ("file_write", {"path": "f", "mode": 0o4755}, "invalid"),
        ("file_write", {"path": "file/x", "parents": True}, "not_directory"),
        ("file_mkdir", {"path": "folder"}, "exists"),
        ("file_mkdir", {"path": "a/b"}, "not_found"),
        ("file_move", {"path": "none", "target": "x"}, "not_found"),
        ("file_move", {"path": "file"}, "invalid"),
        ("file_remove", {"path": "folder"}, "invalid"),
        ("file_remove", {"path": "none", "recursive": True}, "not_found"),
        ("file_list", {"path": "none"}, "not_found"),
        ("file_list", {"path": "file"}, "not_directory"),
        ("file_list", {"path": ".", "depth": 0}, "invalid"),
        ("file_write", {"path": "/dev/full", "append": True}, "invalid"),
    ],
)
def test_refusals_have_their_code(host: Host, op: str, fields: dict[str, Any], code: str) -> None:
    (host.home / "file").write_bytes(b"x")
    (host.home / "folder/inner").mkdir(parents=True)
    assert _code(host, op, **fields) == code


def test_full_disk_is_named_and_leaves_no_draft(host: Host, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    small = tmp_path / "small"
    small.mkdir()
    assert os.system(f"mount -t tmpfs -o size=64k none {small}") == 0
    try:
        (small / "log").write_bytes(b"1")
        assert _code(host, "file_write", bytes(200_000), path="small/f") == "no_space"
        assert (
            _code(host, "file_write", bytes(200_000), path="small/log", append=True) == "no_space"
        )
        assert os.listdir(small) == ["log"]
        assert (small / "log").read_bytes() == b"1"
        assert host.ask("file_move", path="small/log", target="log")[0]["ev"] == "reply"
        assert (host.home / "log").read_bytes() == b"1"
    finally:
        assert os.system(f"umount {small}") == 0


def test_listing_has_types_targets_and_depth(host: Host) -> None:
    (host.home / "d/e").mkdir(parents=True)
    (host.home / "d/f").write_bytes(b"123")
    (host.home / "link").symlink_to("d")
    os.mkfifo(host.home / "pipe")
    entries = json.loads(host.ask("file_list", path=".", depth=2)[1])
    found = [(e["path"].removeprefix(f"{host.home}/"), e["type"]) for e in entries]
    assert found == [
        ("d", "directory"),
        ("d/e", "directory"),
        ("d/f", "file"),
        ("link", "symlink"),
        ("pipe", "other"),
    ]
    assert (entries[2]["size"], entries[3]["target"]) == (3, "d")


def test_listing_is_bounded_in_entries_and_in_bytes(host: Host) -> None:
    folder = host.home / "many"
    folder.mkdir()
    for number in range(3000):
        (folder / f"{number:05}{'ä' * 100}").touch()
    header, body = host.ask("file_list", path="many", limit=10)
    assert (header["truncated"], len(json.loads(body))) == (True, 10)
    header, body = host.ask("file_list", path="many", limit=10_000)
    assert header["truncated"] is True
    assert 100 < len(json.loads(body)) < 3000
    assert len(body) <= 1024 * 1024


def test_names_that_are_not_text_make_the_round_trip(host: Host) -> None:
    (host.home / os.fsdecode(b"bad\xff")).write_bytes(b"1")
    entry = json.loads(host.ask("file_list", path=".")[1])[0]
    assert host.ask("file_read", path=entry["path"])[1] == b"1"


def test_move_renames_and_replaces(host: Host) -> None:
    (host.home / "a").write_bytes(b"a")
    (host.home / "b").write_bytes(b"b")
    assert host.ask("file_move", path="a", target="b")[0]["ev"] == "reply"
    assert (host.home / "b").read_bytes() == b"a"


def test_proc_files_are_read_though_they_claim_to_be_empty(host: Host) -> None:
    header, body = host.ask("file_read", path="/proc/uptime")
    assert (header["eof"], len(body) > 3) == (True, True)
