"""The real init, taken over on its standby line by another host: no half frame is believed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.channel.frames import Decoder, encode
from kit.guest.guest_host import Host, stub_context
from kit.waiting import DEADLINE_S, wait_until

OLD, NEW = 1, 1 << 32


class Line:
    """The host's end of a standby line, before and after it is the channel."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE_S)
        _made.append(self)

    def take_over(self, host: Host, *more: bytes) -> tuple[dict[str, Any], Line]:
        """Make this the channel of `host`; return init's report, and the next line."""
        following = Line()
        frames = [encode({"op": "take_over", "id": OLD}), *more]
        socket.send_fds(self.socket, [b"".join(frames)], [following.theirs.fileno()])
        following.theirs.close()
        before, host.socket = host.socket, self.socket
        host._decoder, host._frames = Decoder(1 << 16, 1 << 20), []
        report, _ = host.next()
        before.close()
        return report, following


_made: list[Line] = []


@pytest.fixture
def line() -> Iterator[Line]:
    yield Line()
    while _made:
        each = _made.pop()
        each.socket.close()
        each.theirs.close()


@pytest.fixture
def host(tmp_path: Path, line: Line) -> Iterator[Host]:
    made = Host(
        tmp_path,
        ("main",),
        stub_context,
        not_inits=(line.socket.fileno(),),
        standby_fd=line.theirs.fileno(),
    )
    line.theirs.close()
    yield made
    made.close()


def cell(host: Host, code: str, number: int = 0) -> int:
    return host.send("execute", code.encode(), number, context="main", mode="cell")


def test_report_says_what_is_there_and_at_work(host: Host, line: Line) -> None:
    assert host.run("execute", b"os.x = 41", context="main", mode="cell")["done"]["alive"]
    running = cell(host, "os.write(1, b'on'); signal.pause()", 77)
    host.wait_for("stdout", running)
    command = host.send("start", argv=["sleep", "60"], number=78)
    host.wait_for("started", command)
    report, _ = line.take_over(host)
    names = [(each["name"], each["state"]) for each in report["contexts"]]
    assert names == [("main", "busy")]
    assert (report["executions"], report["commands"]) == ([77], [78])
    assert report["sent_bytes"] > 0
    assert report["can_again"] is True


def test_state_goes_on_and_the_end_of_the_old_channel_does_not_matter(
    host: Host, line: Line
) -> None:
    host.run("execute", b"os.x = 41", context="main", mode="cell")
    _, following = line.take_over(host)
    assert (
        host.run("execute", b"os.write(1, b'%d' % os.x)", context="main", mode="cell")["stdout"]
        == b"41"
    )
    following.take_over(host)
    assert (
        host.run("execute", b"os.write(1, b'%d' % os.x)", context="main", mode="cell")["stdout"]
        == b"41"
    )


@pytest.mark.parametrize("part", [1, 7, 8, 20, 60, 5000])
def test_half_a_request_is_forgotten(host: Host, line: Line, part: int) -> None:
    """The control: sent whole, it writes the file."""
    whole = encode({"op": "file_write", "id": 5, "path": "half"}, b"x" * 10_000)
    host.socket.sendall(whole[:part])
    line.take_over(host)
    assert host.ask("file_stat", path="half")[0]["code"] == "not_found"
    host.socket.sendall(whole)
    assert host.events(5)[-1][0]["size"] == 10_000


def test_half_an_answer_is_never_sent(host: Host, line: Line) -> None:
    """The old host reads nothing, so that init stands in the middle of a frame.

    The cell waits at its end: its last event would be dropped with the others, if it were queued.
    """
    number = cell(host, "os.write(1, b'z' * 5_000_000); signal.pause()")
    wait_until(lambda: _is_full(host), "init has filled the socket")
    report, _ = line.take_over(host, encode({"op": "context_list", "id": NEW}))
    assert report["unsent_bytes"] > 0
    header, _ = host.wait_for("reply", NEW)
    assert [each["name"] for each in json.loads(json.dumps(header["contexts"]))] == ["main"]
    assert report["executions"] == [number]
    host.send("interrupt", context="main")
    found = host.events(number)
    assert {head["ev"] for head, _ in found} <= {"stdout", "cut", "error", "done"}
    assert all(set(body) <= {ord("z")} for head, body in found if head["ev"] == "stdout")
    assert [body for head, body in found if head["ev"] == "error"] == [
        b'{"name": "KeyboardInterrupt"}'
    ]


def _is_full(host: Host) -> bool:
    """Whether no more arrives: the kernel holds what the old host does not read."""
    before = _waiting(host)
    os.sched_yield()
    return before > 100_000 and before == _waiting(host)


def _waiting(host: Host) -> int:
    host.socket.setblocking(False)
    try:
        return len(host.socket.recv(1 << 22, socket.MSG_PEEK))
    except BlockingIOError:
        return 0
    finally:
        host.socket.settimeout(DEADLINE_S)


def test_transfers_and_connections_of_the_old_host_end(host: Host, line: Line) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        port = server.getsockname()[1]
        host.wait_for("connected", host.send("port_connect", port=port, window=1000))
        accepted, _ = server.accept()
    host.send("tree_put", path="tree")
    line.take_over(host)
    accepted.settimeout(DEADLINE_S)
    with accepted, pytest.raises(ConnectionResetError):
        accepted.recv(1)
    wait_until(lambda: _children(host.pid) == 1, "only the context is left")


def _children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_line_that_ends_unused_changes_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    closed, standby = socket.socketpair()
    closed.close()
    host = Host(tmp_path, standby_fd=standby.fileno())
    standby.close()
    assert host.ask("context_list")[0]["ev"] == "reply"
    host.close()
    ours.close()
    theirs.close()


def test_without_a_next_line_the_report_says_so(host: Host, line: Line) -> None:
    line.socket.sendall(encode({"op": "take_over", "id": OLD}))
    before, host.socket = host.socket, line.socket
    report, _ = host.next()
    before.close()
    assert report["can_again"] is False


def test_end_of_the_channel_still_ends_init(host: Host, line: Line) -> None:
    """A standby line that is open keeps nothing alive."""
    assert os.WIFEXITED(host.hang_up())
    line.socket.close()


def take_on(host: Host, number: int, window: int = 1 << 16) -> dict[str, Any]:
    """Have init go on with a command for this host."""
    host.send("take_on", number=NEW, of=number, window=window)
    header, _ = host.next()
    while header["id"] != NEW:
        header, _ = host.next()
    return header


def test_command_that_is_taken_on_goes_on_with_its_input(host: Host, line: Line) -> None:
    """Its output waits until then: the next frame of it comes after the reply."""
    script = "echo on; while read x; do echo got $x; touch said-$x; done; exit 7"
    number = host.send("start", argv=["sh", "-c", script], number=78, stdin="stream")
    host.wait_for("stdout", number)
    line.take_over(host)
    host.send("stdin", b"early\n", number)
    wait_until((host.home / "said-early").exists, "it has answered")
    for _ in range(3):
        assert host.ask("context_list")[0]["ev"] == "reply"
    header = take_on(host, number)
    assert (header["pid"] > 1, header["has_terminal"]) == (True, False)
    host.send("stdin", b"late\n", number)
    host.send("stdin_close", number=number)
    found = host.events(number)
    assert b"".join(body for head, body in found) == b"got early\ngot late\n"
    assert found[-1][0]["exit_code"] == 7


def test_command_that_ended_meanwhile_says_so_again(host: Host, line: Line) -> None:
    number = host.send("start", argv=["sh", "-c", "exit 3"], number=78)
    host.wait_for("done", number)
    line.take_over(host)
    host.send("take_on", number=NEW, of=number, window=1)
    (done, _), (reply, _) = host.next(), host.next()
    assert (done["ev"], done["id"], done["exit_code"]) == ("done", number, 3)
    assert (reply["id"], reply["pid"]) == (NEW, 0)
    host.send("take_on", number=NEW + 1, of=99, window=1)
    assert host.next()[0]["code"] == "not_found"


def test_terminal_forgets_what_the_host_before_had_granted(host: Host, line: Line) -> None:
    """Nothing comes before it is taken on, then as much as the new host grants."""
    script = "stty raw -echo; echo on; read x; echo early; touch wrote; yes"
    number = host.send(
        "start", argv=["sh", "-c", script], number=78, pty={"rows": 5, "cols": 9}, window=1 << 20
    )
    host.wait_for("stdout", number)
    host.send("stdin", b"q" * 50, number)
    line.take_over(host)
    host.send("stdin", b"x\n", number)
    wait_until((host.home / "wrote").exists, "its output waits on the terminal")
    for _ in range(3):  # in whatever order init's loop comes to what is ready
        asked = host.send("context_list")
        assert host.next()[0]["id"] == asked, "and nothing of it comes before"
    host.send("take_on", number=NEW, of=number, window=1000)
    credit, _ = host.next()
    assert (credit["ev"], credit["id"]) == ("credit", number)
    assert 100_000 < credit["bytes"] <= 128 * 1024
    assert host.next()[0]["has_terminal"] is True
    got = 0
    while got < 1000:
        header, body = host.next()
        assert (header["ev"], header["id"]) == ("stdout", number)
        got += len(body)
    assert got == 1000
    assert host.ask("context_list")[0]["ev"] == "reply"
    host.send("signal", number=number, signal=9)
    found = host.events(number)
    assert sum(len(body) for _, body in found) <= 64 * 1024
