"""A work area described and restored by the real init, with what hostile code leaves there."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.engine.history import plan as plans
from cellwall.engine.history.manifest import Manifest, changes, differing
from cellwall.engine.history.pack import Pack
from cellwall.engine.history.receiving import Receiver
from cellwall.guest.files import tree_records as records
from kit.guest.guest_host import Header, Host
from kit.waiting import wait_until

_DEPTH = 1000


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "home").mkdir()
    made = Host(tmp_path / "home")
    yield made
    made.close()


@pytest.fixture
def pack(tmp_path: Path) -> Iterator[Pack]:
    made = Pack(tmp_path / "packs")
    yield made
    made.close()


def _answer(host: Host, pack: Pack | None, most: int) -> tuple[Header, Receiver]:
    number = host.send("tree_scan", path=".", files=most, content=pack is not None)
    if pack is not None:
        host.send("chunk", pack.digests(), number=number)
    host.send("chunk_end", number=number)
    receiver = Receiver(pack, most)
    *chunks, last = host.events(number)
    for _, body in chunks:
        receiver.feed(body)
    return last[0], receiver


def _scan(host: Host, pack: Pack | None = None) -> Manifest:
    header, receiver = _answer(host, pack, 10_000)
    assert header["ev"] == "reply", header
    return receiver.finish()


def _refused(host: Host, most: int = 10_000) -> str:
    header, _ = _answer(host, None, most)
    assert header["ev"] == "fail", header
    return f"{header['code']}: {header['message']}"


def _restore(host: Host, pack: Pack, wanted: Manifest) -> Header:
    made = plans.plan(_scan(host), wanted)
    first, last = plans.before_and_after(made)
    number = host.send("tree_restore", path=".")
    for step in first:
        host.send("chunk", step, number=number)
    for each in made.made:
        kind = plans.of_made(each)
        data = plans.record(kind, each)
        if kind == records.CONTENT:
            for offset, piece in pack.pieces(each.digest):
                data += records.PIECE.pack(b"D-", offset, len(piece)) + piece
            data += records.END.pack(b"Z-")
        host.send("chunk", data, number=number)
    for step in last:
        host.send("chunk", step, number=number)
    host.send("chunk_end", number=number)
    return host.events(number)[-1][0]


def test_tree_a_thousand_levels_deep_comes_back(host: Host, pack: Pack) -> None:
    os.chdir(host.home)
    try:
        for _ in range(_DEPTH):
            os.mkdir("d")
            os.chdir("d")
        Path("bottom").write_text("deep")
    finally:
        os.chdir("/")
    wanted = _scan(host, pack)
    assert max(path.count(b"/") for path in wanted.entries) == _DEPTH
    host.ask("file_remove", path="d", recursive=True)
    assert list(host.home.iterdir()) == []
    try:
        assert _restore(host, pack, wanted)["failed"] == 0
        assert differing(wanted, _scan(host)) == []
    finally:
        host.ask("file_remove", path="d", recursive=True)  # pytest could not


def test_sparse_file_of_a_terabyte_takes_what_it_holds(host: Host, pack: Pack) -> None:
    with (host.home / "sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"here")
    wanted = _scan(host, pack)
    assert pack.end < 100_000
    (host.home / "sparse").write_bytes(b"")
    _restore(host, pack, wanted)
    found = (host.home / "sparse").stat()
    assert found.st_size == 1 << 40
    assert found.st_blocks * 512 < 1 << 20
    with (host.home / "sparse").open("rb") as file:
        assert os.pread(file.fileno(), 6, (1 << 39) - 1) == b"\0here\0"


def test_write_by_a_mapping_that_changes_no_time_is_seen(host: Host, pack: Pack) -> None:
    import mmap

    path = host.home / "mapped"
    path.write_bytes(b"a" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        mapped[0] = ord("b")
        before = path.stat()
        wanted = _scan(host, pack)
        mapped[1] = ord("c")
        after = path.stat()
        times = [(s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for s in (before, after)]
        assert times[0] == times[1]  # the control: metadata does not tell
        (change,) = changes(wanted, _scan(host))
    assert (change.path, change.kind) == ("mapped", "modified")
    _restore(host, pack, wanted)
    assert path.read_bytes()[:2] == b"ba"


def test_nothing_is_opened_that_never_answers(host: Host, pack: Pack) -> None:
    os.mkfifo(host.home / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host.home / "socket"))
    if os.geteuid() == 0:
        os.mknod(host.home / "device", 0o600 | 0o020000, os.makedev(1, 3))
    wanted = _scan(host, pack)
    kinds = {path: each.kind for path, each in wanted.entries.items()}
    assert (kinds[b"fifo"], kinds[b"socket"]) == (b"p", b"s")
    for each in host.home.iterdir():
        each.unlink()
    _restore(host, pack, wanted)
    assert [each.name for each in host.home.iterdir()] == ["fifo"]
    assert differing(wanted, _scan(host)) == []


def test_links_out_are_kept_as_links_and_never_followed(host: Host, pack: Pack) -> None:
    outside = host.home.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (host.home / "in").mkdir()
    (host.home / "in" / "file").write_text("file")
    (host.home / "out").symlink_to(outside)
    wanted = _scan(host, pack)
    assert b"out/secret" not in wanted.entries
    (host.home / "in" / "file").unlink()
    (host.home / "in").rmdir()
    (host.home / "in").symlink_to(outside)  # the restored file would land there
    assert _restore(host, pack, wanted)["failed"] == 0
    assert (host.home / "in" / "file").read_text() == "file"
    assert [each.name for each in outside.iterdir()] == ["secret"]


def test_step_through_a_link_that_appears_late_is_refused(host: Host, pack: Pack) -> None:
    outside = host.home.parent / "outside"
    outside.mkdir()
    (host.home / "in").mkdir()
    (host.home / "in" / "file").write_text("file")
    wanted = _scan(host, pack)
    (host.home / "in" / "file").unlink()
    made = plans.plan(_scan(host), wanted)
    (host.home / "in").rmdir()
    (host.home / "in").symlink_to(outside)
    (entry,) = made.made
    number = host.send("tree_restore", path=".")
    (piece,) = pack.pieces(entry.digest)
    data = records.PIECE.pack(b"D-", piece[0], len(piece[1])) + piece[1] + b"Z-"
    host.send("chunk", plans.record(b"F", entry) + data, number=number)
    host.send("chunk_end", number=number)
    answer = host.events(number)[-1][0]
    assert answer["failed"] == 1
    assert list(outside.iterdir()) == []


def test_more_files_than_the_bound_are_refused_before_they_take_memory(host: Host) -> None:
    for number in range(300):
        (host.home / str(number)).touch()
    assert "has more than 100 files in one directory" in _refused(host, 100)
    for folder in range(3):
        (host.home / f"d{folder}").mkdir()
        for number in range(100):
            (host.home / str(folder * 100 + number)).rename(host.home / f"d{folder}" / str(number))
    assert "has more than 150 files" in _refused(host, 150)
    assert len(_scan(host).entries) == 304


def test_file_that_changes_while_it_is_read_is_named(host: Host, pack: Pack) -> None:
    path = host.home / "busy"
    path.write_bytes(b"x" * (8 << 20))
    writer = os.fork()
    if writer == 0:
        while True:
            with path.open("r+b") as file:
                file.write(os.urandom(64))
    try:
        header, receiver = _answer(host, pack, 100)
        assert header["ev"] == "reply"
        assert receiver.unsteady == ["busy"]
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def test_a_killed_child_is_a_refusal(host: Host) -> None:
    (host.home / "slow").write_bytes(b"x" * 100)
    number = host.send("tree_scan", path=".", files=10, content=False)  # it waits for digests
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    wait_until(lambda: bool(children.read_text().split()), "the child")
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    header = host.events(number)[-1][0]
    assert (header["ev"], header["code"]) == ("fail", "internal")


def test_hold_signals_nothing_where_init_is_not_the_first_process(host: Host) -> None:
    sleeper = os.fork()
    if sleeper == 0:
        signal.pause()
    try:
        assert host.ask("hold")[0]["held"] is False
        state = Path(f"/proc/{sleeper}/stat").read_text().rpartition(")")[2].split()[0]
        assert state != "T"
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)
