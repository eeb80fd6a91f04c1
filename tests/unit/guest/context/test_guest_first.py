"""The short way of a sandbox's first program, and the points at which it gives way."""

from __future__ import annotations

import atexit
import os
import select
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.channel.init_link import Link
from cellwall.guest.context import main as context
from cellwall.jail.inspect import posture
from kit.guest.guest_host import Host, descriptors_of
from kit.waiting import is_alive, state_of, wait_until


def _real_context(link: Link, config: dict[str, Any]) -> None:
    atexit._clear()  # what the test run registered is not the program's
    context.main(link, config)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    wait_to_go_on = Link.wait_to_go_on

    def hold(link: Link) -> None:
        (tmp_path / "holds").touch()
        wait_to_go_on(link)

    monkeypatch.setattr(Link, "wait_to_go_on", hold)
    made = Host(tmp_path, ("main",), _real_context, purpose="program")
    yield made
    made.close()


def _begin(host: Host, source: str, **fields: Any) -> int:
    usual = {"stdin": "none", "output_bytes": 100_000, "display": False, "filename": "main.py"}
    request = {**usual, **fields, "context": "main", "mode": "program"}
    return host.send("execute", f"import os\n{source}".encode(), **request)


def _wait_held(host: Host) -> None:
    """Until the context waits to go on, or has gone on without a word."""
    wait_until((host.home / "holds").exists, "the context has come to where it is held")
    held = (*posture.children(host.pid), host.pid)
    wait_until(lambda: {*map(state_of, held)} <= {"S", "Z", ""}, "context and init wait")


def _output(host: Host, number: int) -> tuple[dict[str, bytes], dict[str, Any]]:
    streams = {"stdout": b"", "stderr": b""}
    *events, (done, _) = host.events(number)
    for header, body in events:
        if header["ev"] != "cut":
            streams[header["ev"]] += body
    return streams, done


def _open_polls(pid: int) -> int:
    """Event loops of a process, not counting what it inherited from the test run."""

    def count(owner: int) -> int:
        names = [Path(f"/proc/{owner}/fd", fd) for fd in descriptors_of(owner)]
        return sum("eventpoll" in os.readlink(name) for name in names if name.is_symlink())

    return count(pid) - count(os.getpid())


@pytest.mark.parametrize("is_gone", [True, False])
def test_host_that_is_gone_is_nothing_to_complain_about(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_gone: bool
) -> None:
    host = Host(tmp_path, ("main",), _real_context, is_gone=is_gone, purpose="program")
    if not is_gone:  # the control: this is worth a word
        host.socket.sendall(b"\xff" * 64)
    assert os.WEXITSTATUS(host.hang_up()) == (0 if is_gone else 70)
    assert bool(capfd.readouterr().err) != is_gone


def test_the_usual_program_needs_no_event_loop(host: Host) -> None:
    streams, done = _output(host, _begin(host, "os.write(1, b'out'); os.write(2, b'err')"))
    assert streams == {"stdout": b"out", "stderr": b"err"}
    assert (done["exit_code"], done["signal"], done["alive"]) == (0, None, False)
    assert done["cut"] == {"stdout": 0, "stderr": 0, "display": 0, "stdin": 0}
    assert done["rusage"]["maxrss_kib"] > 0
    assert _open_polls(host.pid) == 0


def test_afterwards_everything_else_still_works(host: Host) -> None:
    _output(host, _begin(host, "pass"))
    host.send("context_create", context="second")
    assert host.next()[0]["name"] == "second"
    assert _open_polls(host.pid) == 1


_GO = struct.pack(">II", len(b'{"op":"go"}'), 0) + b'{"op":"go"}'
_TOUCH = "open('ran', 'w').close(); os.write(1, b'out')"


@pytest.mark.parametrize("is_held", [True, False])
def test_what_is_held_begins_with_the_hosts_word(host: Host, tmp_path: Path, is_held: bool) -> None:
    number = _begin(host, _TOUCH, held=is_held)
    if is_held:
        _wait_held(host)
        assert not list(tmp_path.rglob("ran"))
        host.socket.sendall(_GO)
    streams, done = _output(host, number)
    assert (streams["stdout"], done["exit_code"]) == (b"out", 0)
    assert next(tmp_path.rglob("ran"), None)


def test_word_that_is_there_already_is_enough(host: Host) -> None:
    """Init was slow: it finds both in its socket."""
    os.kill(host.pid, signal.SIGSTOP)
    number = _begin(host, _TOUCH, held=True)
    host.socket.sendall(_GO)
    os.kill(host.pid, signal.SIGCONT)
    streams, done = _output(host, number)
    assert (streams["stdout"], done["exit_code"]) == (b"out", 0)


@pytest.mark.parametrize("word", [b"", b'\0\0\0\x0b\0\0\0\0{"op":"no"}', _GO[:-1]])
def test_any_other_word_is_the_end(host: Host, tmp_path: Path, word: bytes) -> None:
    """Nothing has run then. An empty one: the host is gone."""
    _begin(host, _TOUCH, held=True)
    host.socket.sendall(word)
    assert os.WEXITSTATUS(host.hang_up()) == 1
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.parametrize("is_dead_before", [True, False])
def test_program_whose_process_died_while_it_was_held_has_not_begun(
    host: Host, is_dead_before: bool
) -> None:
    """`is_dead_before`: it never got the request."""
    number = 0 if is_dead_before else _begin(host, _TOUCH, held=True)
    (pid,) = posture.children(host.pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "it is dead")
    number = number or _begin(host, _TOUCH, held=True)
    host.socket.sendall(_GO)
    header, _ = host.wait_for("fail", number)
    assert header["code"] == "no_context"


@pytest.mark.parametrize(
    ("source", "said"),
    [("'a' is 1", '"is" with '), ("def", "SyntaxError: invalid syntax")],
)
def test_what_its_compiler_says_of_a_held_program_comes_with_its_output(
    host: Host, source: str, said: str
) -> None:
    """It is compiled while it is held; the host hears of it what it hears without that."""
    number = _begin(host, source, held=True)
    _wait_held(host)
    assert select.select([host.socket], [], [], 0)[0] == []
    host.socket.sendall(_GO)
    *events, _done = host.events(number)
    printed = b"".join(body for header, body in events if header["ev"] == "stderr").decode()
    assert said in printed


def test_only_the_first_program_can_be_held(host: Host, tmp_path: Path) -> None:
    number = _begin(host, f"{_TOUCH}; {'#' * 200_000}", held=True)  # too large for the short way
    assert host.wait_for("fail", number)[0]["code"] == "unsupported"
    _output(host, _begin(host, "pass"))
    number = _begin(host, _TOUCH, held=True)
    assert host.wait_for("fail", number)[0]["code"] == "no_context"
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_is_told(host: Host, number: int) -> None:
    _, done = _output(host, _begin(host, f"os.kill(os.getpid(), {number})"))
    assert (done["exit_code"], done["signal"]) == (None, number)


@pytest.mark.parametrize("size", [65_535, 65_536, 99_999, 100_000, 100_001, 300_000])
def test_output_of_any_size_is_cut_at_the_limit(host: Host, size: int) -> None:
    source = f"for i in range(0, {size}, 1000): os.write(1, b'x' * min(1000, {size} - i))"
    streams, done = _output(host, _begin(host, source))
    assert len(streams["stdout"]) == min(size, 100_000)
    assert done["cut"]["stdout"] == max(0, size - 100_000)


def test_output_that_nobody_takes_waits(host: Host) -> None:
    """The host's socket fills up in the middle of the short way."""
    number = _begin(host, "for _ in range(3000): os.write(1, b'y' * 1000)", output_bytes=10**7)
    streams, done = _output(host, number)
    assert len(streams["stdout"]) == 3_000_000
    assert done["exit_code"] == 0


def test_a_request_in_the_middle_is_served(host: Host) -> None:
    number = _begin(host, "os.write(1, b'up'); import signal; signal.pause()")
    assert host.wait_for("stdout", number)[1] == b"up"
    host.send("signal", number=number, signal=int(signal.SIGTERM))
    *_, (done, _body) = host.events(number)
    assert done["signal"] == signal.SIGTERM


def test_what_comes_before_the_program_is_served_first(host: Host) -> None:
    written = host.send("file_write", b"data", path="f", append=False, parents=False, mode=None)
    assert host.next()[0]["id"] == written
    streams, _ = _output(host, _begin(host, "os.write(1, open('f', 'rb').read())"))
    assert streams["stdout"] == b"data"


def test_a_program_that_closes_its_output_is_followed_to_its_end(host: Host) -> None:
    streams, done = _output(host, _begin(host, "os.write(2, b'e'); os.close(1); os.close(2)"))
    assert (streams["stderr"], done["exit_code"]) == (b"e", 0)


def test_a_child_that_holds_the_output_delays_nothing(host: Host) -> None:
    source = "os.write(1, b'a')\nif os.fork() == 0:\n import signal; signal.pause()"
    streams, done = _output(host, _begin(host, source))
    assert (streams["stdout"], done["exit_code"]) == (b"a", 0)


def test_orphans_are_reaped_while_the_program_runs(host: Host) -> None:
    source = (
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        os.write(1, b'%d' % os.getpid())\n"
        "    os._exit(0)\n"
        "os.wait()\nimport signal\nsignal.pause()"
    )
    number = _begin(host, source)
    orphan = int(host.wait_for("stdout", number)[1])
    wait_until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan is reaped")


def test_the_host_s_end_is_everybody_s_end(host: Host) -> None:
    number = _begin(host, "os.write(1, b'%d' % os.getpid()); import signal; signal.pause()")
    pid = int(host.wait_for("stdout", number)[1])
    host.socket.close()
    wait_until(lambda: not is_alive(pid), "the program is gone")
