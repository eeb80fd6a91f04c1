"""Whole trees through the real init and its workers."""

from __future__ import annotations

import io
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.guest.channel.frames import encode
from kit.guest.guest_host import Frame, Host, descriptors_of
from kit.waiting import wait_until

_DEPTH = 1200


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def _put(host: Host, data: bytes, path: str = "in", piece: int = 300_000) -> Frame:
    number = host.send("tree_put", path=path)
    for start in range(0, len(data), piece):
        host.send("chunk", data[start : start + piece], number=number)
    host.send("chunk_end", number=number)
    return host.events(number)[-1]


def _get(host: Host, path: str) -> tuple[Frame, bytes]:
    events = host.events(host.send("tree_get", path=path))
    return events[-1], b"".join(body for header, body in events if header["ev"] == "chunk")


def _archive(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            if isinstance(member, tuple):
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
            else:
                tar.addfile(member)
    return buffer.getvalue()


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def _special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


def _dig(top: Path, depth: int) -> None:
    """A tree deeper than any path may be long."""
    here = os.getcwd()
    try:
        top.mkdir()
        os.chdir(top)
        for _ in range(depth):
            os.mkdir("folder")
            os.chdir("folder")
        Path("leaf").write_bytes(b"leaf")
    finally:
        os.chdir(here)


def test_tree_makes_the_round_trip(host: Host) -> None:
    source = host.home / "out"
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/data").write_bytes(os.urandom(3_000_000))
    (source / "run").write_bytes(b"#!")
    (source / "run").chmod(0o4755)
    (source / "link").symlink_to("a/b/data")
    (source / "python").symlink_to("/usr/bin/python3")
    (source / "a/up").symlink_to("../../elsewhere")
    os.symlink(b"odd \xff\n", source / "dangling")
    (source / "empty").mkdir()
    os.mkfifo(source / "fifo")
    (reply, _), data = _get(host, "out")
    assert (reply["files"], reply["bytes"]) == (2, 3_000_002)
    (reply, _) = _put(host, data)
    assert (reply["ev"], reply["files"], reply["bytes"]) == ("reply", 2, 3_000_002)
    made = host.home / "in"
    assert sorted(os.listdir(made)) == ["a", "dangling", "empty", "link", "python", "run"]
    assert (made / "a/b/data").read_bytes() == (source / "a/b/data").read_bytes()
    assert (made / "run").stat().st_mode & 0o7777 == 0o755
    for name in ("link", "python", "a/up", "dangling"):  # as they were, wherever they lead
        assert os.readlink(made / name) == os.readlink(source / name)


def test_single_file_travels_as_a_tree(host: Host) -> None:
    (host.home / "one").write_bytes(b"1")
    _, data = _get(host, "one")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["one"]


def test_tree_of_any_depth_is_packed_and_removed(host: Host) -> None:
    _dig(host.home / "deep", _DEPTH)
    (reply, _), data = _get(host, "deep")
    assert reply["files"] == 1
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.getnames()) == _DEPTH + 1
    assert _put(host, data)[0]["files"] == 1
    for path in ("deep", "in"):
        reply, _ = host.ask("file_remove", path=path, recursive=True)
        assert (reply["ev"], reply["removed"]) == ("reply", _DEPTH + 2)
    assert os.listdir(host.home) == []


def test_removal_does_not_follow_links(host: Host) -> None:
    (host.home / "keep").mkdir()
    (host.home / "keep/file").touch()
    (host.home / "go").mkdir()
    (host.home / "go/link").symlink_to("../keep")
    (host.home / "go/locked").mkdir()
    (host.home / "go/locked/file").touch()
    (host.home / "go/locked").chmod(0)
    assert host.ask("file_remove", path="go", recursive=True)[0]["ev"] == "reply"
    assert (host.home / "keep/file").exists()
    assert not (host.home / "go").exists()


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/evil", b"x")],
        [("../evil", b"x")],
        [("a/../../evil", b"x")],
        [_link("l", "/etc"), ("l/evil", b"x")],
        [_link("l", ".."), ("l/evil", b"x")],
        [_link("l", ".."), _link("h", "l/secret", tarfile.LNKTYPE)],
        [("in/f", b"x"), _link("in/f/below", "f")],
        [_link("h", "../secret", tarfile.LNKTYPE)],
        [_link("h", "/etc/passwd", tarfile.LNKTYPE)],
        [_special("n", tarfile.CHRTYPE)],
        [_special("n", tarfile.BLKTYPE)],
        [_special("n", tarfile.FIFOTYPE)],
    ],
)
def test_hostile_member_is_refused(
    host: Host, members: list[tarfile.TarInfo | tuple[str, bytes]]
) -> None:
    (host.home / "secret").write_bytes(b"s")
    header, _ = _put(host, _archive(*members))
    assert header["ev"] == "fail"
    assert header["code"] in {"invalid", "not_directory"}
    assert header["message"].endswith("; nothing of it is left")
    assert os.listdir(host.home) == ["secret"]
    assert (host.home / "secret").read_bytes() == b"s"


def test_what_came_before_a_hostile_member_is_said(host: Host) -> None:
    (host.home / "in").mkdir()
    (host.home / "in/own").write_bytes(b"own")
    header, _ = _put(host, _archive(("a", b"1"), ("b", b"2"), ("../evil", b"x"), ("c", b"3")))
    assert header["message"].endswith("; what came before it is there, 2 files")
    assert sorted(os.listdir(host.home / "in")) == ["a", "b", "own"]


def test_member_is_not_written_through_a_link(host: Host) -> None:
    (host.home / "outside").mkdir()
    (host.home / "in").mkdir()
    (host.home / "in/planted").symlink_to(host.home / "outside")
    header, _ = _put(host, _archive(("planted/x", b"x")))
    assert header["code"] in ("not_directory", "invalid")
    assert os.listdir(host.home / "outside") == []


def test_file_replaces_a_link_instead_of_following_it(host: Host) -> None:
    (host.home / "outside").write_bytes(b"safe")
    (host.home / "in").mkdir()
    (host.home / "in/f").symlink_to("../outside")
    assert _put(host, _archive(("f", b"new")))[0]["ev"] == "reply"
    assert ((host.home / "in/f").read_bytes(), (host.home / "outside").read_bytes()) == (
        b"new",
        b"safe",
    )


def test_hard_link_within_the_archive(host: Host) -> None:
    archive = _archive(("d/f", b"1"), _link("d/g", "d/f", tarfile.LNKTYPE))
    assert _put(host, archive)[0]["ev"] == "reply"
    assert (host.home / "in/d/g").samefile(host.home / "in/d/f")


@pytest.mark.parametrize("data", [b"", b"garbage" * 1000, _archive(("f", b"x" * 9000))[:2000]])
def test_what_is_no_archive_is_refused(host: Host, data: bytes) -> None:
    header, _ = _put(host, data)
    assert (header["ev"], header["code"]) == ("fail", "invalid")


def test_get_of_nothing_is_refused(host: Host) -> None:
    (header, _), data = _get(host, "none")
    assert (header["code"], data) == ("not_found", b"")


def test_init_answers_while_a_tree_travels(host: Host) -> None:
    (host.home / "big").write_bytes(bytes(30_000_000))
    number = host.send("tree_get", path="big")
    question = host.send("context_list")
    order: list[int] = []
    while len(order) < 2:
        header, _ = host.next()
        if header["ev"] == "reply":
            order.append(header["id"])
    assert order == [question, number]


def test_stopped_worker_slows_the_channel_and_can_go_on(host: Host) -> None:
    archive = _archive(("f", bytes(20_000_000)))
    number = host.send("tree_put", path="in")
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    wait_until(lambda: bool(children.read_text()), "the worker exists")
    worker = int(children.read_text())
    os.kill(worker, signal.SIGSTOP)
    host.socket.setblocking(False)
    data = b"".join(
        encode({"op": "chunk", "id": number}, archive[start : start + 1_000_000])
        for start in range(0, len(archive), 1_000_000)
    )
    sent = 0
    stalls = 0
    while stalls < 20 and sent < len(data):
        try:
            sent += host.socket.send(data[sent : sent + 500_000])
            stalls = 0
        except BlockingIOError:
            stalls += 1
            signal.sigtimedwait([], 0.02)
    assert sent < 10_000_000  # init took no more than its bound and what sockets hold
    os.kill(worker, signal.SIGCONT)
    host.socket.settimeout(20)
    host.socket.sendall(data[sent:])
    host.send("chunk_end", number=number)
    assert host.events(number)[-1][0]["bytes"] == 20_000_000


def test_worker_killed_from_inside_is_a_failure_not_a_success(host: Host) -> None:
    number = host.send("tree_put", path="in")
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    wait_until(lambda: bool(children.read_text()), "the worker exists")
    os.kill(int(children.read_text()), signal.SIGKILL)
    header = host.events(number)[-1][0]
    assert (header["ev"], header["code"]) == ("fail", "internal")


def test_transfer_ended_by_the_host_is_cancelled(host: Host) -> None:
    number = host.send("tree_put", path="in")
    host.send("signal", number=number, signal=int(signal.SIGKILL))
    header = host.events(number)[-1][0]
    assert (header["ev"], header["code"]) == ("fail", "cancelled")


def test_worker_does_not_hold_the_channel(host: Host) -> None:
    host.send("tree_put", path="in")
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    wait_until(lambda: bool(children.read_text()), "the worker exists")
    worker = int(children.read_text())
    wait_until(lambda: descriptors_of(worker)[:4] == ["0", "1", "2", "3"], "fds")
    wait_until(lambda: all(int(fd) <= 4 for fd in descriptors_of(worker)), "few")
    links = [os.readlink(f"/proc/{worker}/fd/{fd}") for fd in ("0", "1", "3")]
    assert all(link.startswith("pipe:") for link in links)
