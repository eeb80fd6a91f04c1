"""A context gets its work whole or not at all: what was never handed over never ended well."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.errors import Refusal
from cellwall.guest.channel.init_link import EXIT_UNSERVED, Link
from cellwall.guest.channel.loop import Loop
from cellwall.guest.channel.pipes import Feed
from cellwall.guest.init import context_connections, handover
from cellwall.guest.init.handover import HandOver, WrongWord
from kit.guest.guest_host import Host, stub_context

_TASK = {"op": "execute", "mode": "program", "stdin": "none"}
_LARGE = b"#" * (4 << 20)
"""More than a socket takes before anybody reads."""


class _Failing:
    """A connection whose sends fail as the kernel would have them fail."""

    def __init__(self, error: int) -> None:
        self._error = error
        self._ours, self._theirs = socket.socketpair()

    def setblocking(self, flag: bool) -> None:
        """As a socket."""
        self._ours.setblocking(flag)

    def fileno(self) -> int:
        """As a socket."""
        return self._ours.fileno()

    def send(self, _data: bytes) -> int:
        """Fail."""
        raise OSError(self._error, os.strerror(self._error))

    def close(self) -> None:
        """As a socket."""
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def loop() -> Loop:
    made = Loop(lambda: None)
    made.open()
    return made


@pytest.mark.parametrize(
    "number", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM, errno.EPIPE, errno.ECONNRESET]
)
def test_work_that_cannot_be_sent_is_refused(loop: Loop, number: int) -> None:
    connection: Any = _Failing(number)
    line = context_connections.ContextConnection(loop, Channel(lambda *_: None), connection)
    work = HandOver("main", os.getpid(), line, None)
    with pytest.raises(Refusal) as refused:
        work.begin(_TASK, b"print(1)")
    assert refused.value.code == "no_context"
    assert os.strerror(number) in refused.value.message
    assert not work.is_complete


def test_work_waits_for_a_context_whose_queue_is_full(loop: Loop) -> None:
    """The control of the one above: this one is no failure."""
    ours, theirs = socket.socketpair()
    line = context_connections.ContextConnection(loop, Channel(lambda *_: None), ours)
    work = HandOver("main", os.getpid(), line, None)
    work.begin(_TASK, _LARGE)
    assert line.is_open
    assert not work.is_complete
    theirs.close()
    line.close()


def _reads_nothing(link: Link, _config: dict[str, Any]) -> None:
    """Idle once, and gone as soon as there is something to do."""
    link.send({"ev": "idle"})
    assert link._socket is not None
    link._socket.recv(1, socket.MSG_PEEK)
    os._exit(0)


def _makes_no_pipe(link: Link, config: dict[str, Any]) -> None:
    real = os.pipe

    def refuse() -> tuple[int, int]:
        os.pipe = real
        raise OSError(errno.EMFILE, "on purpose")

    os.pipe = refuse
    stub_context(link, config)


def _names_a_file(link: Link, _config: dict[str, Any]) -> None:
    link.send({"ev": "idle"})
    link.receive()
    with open("precious", "wb") as file:
        file.write(b"kept")
        file.flush()
        link.send({"ev": "input", "fd": file.fileno()})
        header, _ = link.receive()
    assert header["op"] == "idle"
    link.send({"ev": "idle"})
    link.receive()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(run_context: Callable[[Link, dict[str, Any]], Any], **config: Any) -> Host:
        hosts.append(Host(tmp_path, ("main",), run_context, **config))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def _leaves_before_its_input(link: Link, _config: dict[str, Any]) -> None:
    """Takes the request, and never says where its input goes."""
    link.send({"ev": "idle"})
    link.receive()
    os._exit(0)


def test_context_that_leaves_before_its_input_has_not_begun(made: Callable[..., Host]) -> None:
    host = made(_leaves_before_its_input)
    header, _ = host.ask("execute", b"1", context="main", mode="cell", stdin="stream")
    assert (header["ev"], header["code"]) == ("fail", "no_context")


@pytest.mark.parametrize("purpose", ["session", "program"])
def test_context_that_leaves_without_its_work_has_not_begun(
    made: Callable[..., Host], purpose: str
) -> None:
    host = made(_reads_nothing, purpose=purpose)
    header, _ = host.ask("execute", _LARGE, context="main", mode="program", output_bytes=9)
    assert (header["ev"], header["code"]) == ("fail", "no_context")


def test_context_that_can_make_no_pipe_says_so_and_goes_on(made: Callable[..., Host]) -> None:
    host = made(_makes_no_pipe)
    cell: dict[str, Any] = {"context": "main", "mode": "cell", "stdin": "stream"}
    header, _ = host.ask("execute", b"os.write(1, os.read(0, 9))", **cell)
    assert (header["ev"], header["code"]) == ("fail", "busy")
    number = host.send("execute", b"os.write(1, os.read(0, 9))", **cell)
    host.send("stdin", b"again", number=number)
    assert host.wait_for("stdout", number)[1] == b"again"
    assert host.events(number)[-1][0]["alive"]


def test_input_goes_to_a_pipe_and_to_nothing_else(
    made: Callable[..., Host], tmp_path: Path
) -> None:
    host = made(_names_a_file)
    number = host.send("execute", b"", context="main", mode="cell", stdin="stream")
    host.send("stdin", b"overwritten", number=number)
    header, _ = host.events(number)[-1]
    assert (header["ev"], header["code"]) == ("fail", "invalid")
    assert (tmp_path / "precious").read_bytes() == b"kept"


@pytest.mark.parametrize("said", [{}, {"fd": -1}, {"fd": True}, {"fd": "3"}, {"errno": -3}])
def test_wrong_word_about_an_input_is_no_input(loop: Loop, said: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    line: Any = context_connections.ContextConnection(loop, Channel(lambda *_: None), ours)
    work = handover.HandOver("main", os.getpid(), line, Feed(loop))
    work.begin({**_TASK, "stdin": "stream"}, b"")
    with pytest.raises(WrongWord):
        work.give_input(said)
    line.close()
    theirs.close()


def test_an_input_is_named_once(loop: Loop) -> None:
    """A second pipe would take the place of the first, which somebody may be writing to."""
    ours, theirs = socket.socketpair()
    line: Any = context_connections.ContextConnection(loop, Channel(lambda *_: None), ours)
    work = handover.HandOver("main", os.getpid(), line, Feed(loop))
    work.begin({**_TASK, "stdin": "stream"}, b"")
    states = [work.is_complete]
    reading, writing = os.pipe()
    work.give_input({"fd": writing})
    states.append(work.is_complete)
    assert states == [False, True]
    with pytest.raises(WrongWord):
        work.give_input({"fd": writing})
    for fd in (reading, writing):
        os.close(fd)
    line.close()
    theirs.close()


def test_context_that_init_hangs_up_on_does_not_end_well(tmp_path: Path) -> None:
    from cellwall.guest.context import main as context

    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        context.main(Link("\0nobody", theirs.detach()), {"home": str(tmp_path)})
    theirs.close()
    assert b"idle" in ours.recv(100)
    ours.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_UNSERVED != 0
