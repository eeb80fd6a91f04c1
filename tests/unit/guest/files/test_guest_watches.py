"""Watches through the real init: real directories, the kernel's own events."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.files import inotify
from cellwall.guest.files.child_tasks import MOST_WATCHES
from kit.guest.guest_host import Host
from kit.waiting import wait_until

_WINDOW = 1 << 20


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


class Seen:
    """The lines of one watch."""

    def __init__(self, host: Host, path: str = ".", recursive: bool = True, **more: int) -> None:
        fields: dict[str, Any] = {"path": path, "recursive": recursive, "window": _WINDOW, **more}
        self.host = host
        self.number = host.send("watch", **fields)
        self._rest = b""
        self._lines: list[dict[str, Any]] = []
        if fields["window"]:
            assert self.next()["change"] == "watching"

    def next(self) -> dict[str, Any]:
        while not self._lines:
            self._rest += self.host.wait_for("data", self.number)[1]
            *lines, self._rest = self._rest.split(b"\n")
            self._lines += [json.loads(line) for line in lines]
        return self._lines.pop(0)

    def until(self, path: str) -> list[tuple[str, ...]]:
        """Every change before the one that makes `path`, shortly."""
        found = []
        while (line := self.next())["path"] != path:
            words = (line["change"], line["path"], line.get("to", ""))
            found.append(tuple(word for word in words if word))
        return found


def test_every_kind_of_change_is_told(host: Host) -> None:
    (host.home / "old").write_text("")
    seen = Seen(host)
    (host.home / "new").write_text("")
    with (host.home / "old").open("a") as file:  # one write; emptying it first would be another
        file.write("x")
    (host.home / "new").rename(host.home / "moved")
    (host.home / "old").unlink()
    (host.home / "end").touch()
    assert seen.until("end") == [
        ("created", "new"),
        ("modified", "old"),
        ("moved", "new", "moved"),
        ("removed", "old"),
    ]


def test_files_written_by_init_are_one_change_each(host: Host) -> None:
    seen = Seen(host)
    for path in ("a", "a", "sub/b"):
        host.send("file_write", b"x", path=path, parents=True)
    host.send("file_write", path="end")
    told = seen.until("end")
    assert told[:4] == [
        ("created", "a"),
        ("modified", "a"),
        ("created", "sub"),
        ("created", "sub/b"),
    ]
    # If it was moved into place while the new directory was listed, it may be another's work.
    assert told[4:] in ([], [("modified", "sub/b")])


def test_tree_made_at_once_is_told_once(host: Host) -> None:
    seen = Seen(host)
    paths = [f"d{n}/e/f/g" for n in range(50)]
    for path in paths:
        (host.home / path).mkdir(parents=True)
        (host.home / path / "file").touch()
    (host.home / "end").touch()
    told = seen.until("end")
    # The end may come before all of it is listed; what is late comes as well.
    (host.home / "late").touch()
    told += seen.until("late")
    created = [words[1] for words in told if words[0] == "created"]
    assert len(created) == len(set(created)) == 50 * 5
    assert {f"{path}/file" for path in paths} <= set(created)


def test_directory_is_followed_where_it_moves(host: Host) -> None:
    (host.home / "a/b").mkdir(parents=True)
    (host.home / "other").mkdir()
    seen = Seen(host)
    (host.home / "a").rename(host.home / "other/c")
    (host.home / "other/c/b/file").touch()
    (host.home / "end").touch()
    assert seen.until("end") == [("moved", "a", "other/c"), ("created", "other/c/b/file")]


def test_directory_that_left_is_watched_no_more(host: Host) -> None:
    (host.home / "in/a").mkdir(parents=True)
    seen = Seen(host, "in")
    (host.home / "in/a").rename(host.home / "a")
    (host.home / "a/unseen").touch()
    (host.home / "a").rename(host.home / "in/back")
    (host.home / "in/back/file").touch()
    (host.home / "in/end").touch()
    told = seen.until("end")
    assert told[:2] == [("removed", "a"), ("created", "back")]
    assert sorted(told[2:]) == [("created", "back/file"), ("created", "back/unseen")]


def test_without_recursion_only_the_directory_itself_is_told(host: Host) -> None:
    (host.home / "sub").mkdir()
    seen = Seen(host, recursive=False)
    (host.home / "sub/unseen").touch()
    (host.home / "made").mkdir()
    (host.home / "made/unseen").touch()
    (host.home / "end").touch()
    assert seen.until("end") == [("created", "made")]


def test_links_are_not_followed(host: Host) -> None:
    (host.home / "real").mkdir()
    (host.home / "in").mkdir()
    (host.home / "in/link").symlink_to("../real")
    seen = Seen(host, "in")
    (host.home / "real/unseen").touch()
    (host.home / "in/late").symlink_to("../real")
    (host.home / "in/end").touch()
    assert seen.until("end") == [("created", "late")]


def test_end_of_the_directory_is_the_end_of_the_watch(host: Host) -> None:
    (host.home / "in").mkdir()
    seen = Seen(host, "in")
    (host.home / "in").rmdir()
    assert seen.until(".") == []
    assert host.events(seen.number)[-1][0]["ev"] == "reply"


@pytest.mark.parametrize(
    ("path", "code"), [("missing", "not_found"), ("file", "not_directory"), ("", "invalid")]
)
def test_what_cannot_be_watched_is_refused(host: Host, path: str, code: str) -> None:
    (host.home / "file").touch()
    header, _ = host.ask("watch", path=path, recursive=True, window=_WINDOW)
    assert header["code"] == code


def test_names_that_are_not_text_do_no_harm(host: Host) -> None:
    seen = Seen(host)
    os.close(os.open(os.fsencode(host.home) + b'/\xff\n"', os.O_CREAT))
    assert seen.next()["path"] == '\udcff\n"'


def test_slow_reader_is_told_that_it_missed_something(host: Host) -> None:
    seen = Seen(host, window=0)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    path = host.home / "busy"
    for _ in range(most):  # two events each; the pipe and one read hold some more
        path.touch()
        path.unlink()
    (host.home / "unnoticed").mkdir()
    host.send("credit", number=seen.number, bytes=64 << 20)
    while seen.next()["change"] != "overflow":
        pass
    (host.home / "unnoticed/file").touch()
    assert seen.next()["path"] == "unnoticed/file"


def test_too_many_directories_are_told_as_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inotify, "MOST_FOLDERS", 3)
    host = Host(tmp_path)
    try:
        seen = Seen(host)
        for name in ("a", "b", "c"):
            (host.home / name).mkdir()
        (host.home / "c/unseen").touch()
        (host.home / "b/file").touch()
        told = [seen.next() for _ in range(5)]
        assert [line["path"] for line in told if line["change"] == "overflow"] == ["c"]
        assert "b/file" in [line["path"] for line in told]
    finally:
        host.close()


def test_too_many_names_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "MOST_NAMES", 10)
    host = Host(tmp_path)
    try:
        for n in range(20):
            (host.home / f"old{n}").touch()
        seen = Seen(host)
        host.send("file_write", path="new")  # whether it is new is not known any more
        host.send("file_write", b"x", path="end", append=True)
        assert seen.until("end") == [("modified", "new")]
    finally:
        host.close()


def test_closed_watch_leaves_nothing_whatever_is_under_way(host: Host) -> None:
    before = host.descriptors()
    watches = [Seen(host, window=0) for _ in range(MOST_WATCHES)]
    assert host.ask("watch", path=".", recursive=True, window=0)[0]["code"] == "busy"
    assert host.ask("tree_get", path=".")[0]["ev"] == "reply"  # transfers have places of their own
    for _ in range(2000):
        (host.home / "busy").touch()
        (host.home / "busy").unlink()
    for seen in watches:
        host.send("signal", number=seen.number, signal=9)
    ended = [host.next()[0] for _ in watches]
    assert {header["code"] for header in ended} == {"cancelled"}
    wait_until(lambda: host.descriptors() == before, "descriptors are closed")
