"""Executions and contexts through the real init, with a context that obeys or attacks on demand."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.guest.channel import loop
from cellwall.jail.inspect.posture import children
from kit.guest.guest_host import Host, stub_context, summary
from kit.waiting import Gate, is_alive, state_of, wait_until

# Speaks for itself over a connection of its own, as hostile caller code would.
_RAW = """
import socket, struct, json, time
def say(data):
    line = socket.socket(socket.AF_UNIX)
    line.connect(link._address)
    line.sendall(data)
    return line
def frame(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", len(text), len(body)) + text + body
"""


@pytest.fixture(params=["session", "program"])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    """Every test twice: the first program of a sandbox goes a shorter way, if it can."""
    made = Host(tmp_path, ("main",), stub_context, display_bytes=1000, purpose=request.param)
    yield made
    made.close()


def _cell(host: Host, source: str, **fields: Any) -> dict[str, Any]:
    return host.run("execute", source.encode(), context="main", mode="cell", **fields)


def test_ready_names_the_contexts(host: Host) -> None:
    assert host.ready["contexts"] == ["main"]
    assert host.ready["protocol"] == 1


def test_cell_state_lives_on(host: Host) -> None:
    _cell(host, "os.environ['mark'] = 'kept'")
    found = _cell(host, "os.write(1, os.environ['mark'].encode()); os.write(2, b'err')")
    assert (found["stdout"], found["stderr"]) == (b"kept", b"err")
    done = found["done"]
    assert (done["alive"], done["exit_code"], done["signal"]) == (True, None, None)


def test_living_context_reports_the_time_of_this_cell_only(host: Host) -> None:
    busy = _cell(
        host, "import time\nend=time.process_time()+0.15\nwhile time.process_time()<end: 0"
    )
    idle = _cell(host, "pass")
    used = [sum(r["done"]["rusage"][k] for k in ("user_us", "system_us")) for r in (busy, idle)]
    assert used[0] > 140_000 > used[1]


@pytest.mark.parametrize(
    ("source", "code", "number"),
    [
        ("pass", 0, None),
        ("1 / 0", 1, None),
        ("os._exit(7)", 7, None),
        ("os.kill(os.getpid(), 9)", None, 9),
    ],
)
def test_program_end_is_the_kernels_word(
    host: Host, source: str, code: int | None, number: int | None
) -> None:
    done = host.run("execute", source.encode(), context="main", mode="program")["done"]
    assert (done["exit_code"], done["signal"], done["alive"]) == (code, number, False)
    assert done["raised"] == (source == "1 / 0")
    assert host.ask("context_list")[0]["contexts"] == []


def test_program_that_claims_success_and_fails_has_failed(host: Host) -> None:
    source = "link.send({'ev':'end','raised':False,'exit_code':0}); os._exit(5)"
    done = host.run("execute", source.encode(), context="main", mode="program")["done"]
    assert done["exit_code"] == 5


def test_all_output_before_the_exit_arrives(host: Host) -> None:
    source = "os.write(1, b'x' * 65536); os.write(2, b'y' * 65536); os._exit(0)"
    found = host.run("execute", source.encode(), context="main", mode="program")
    assert (len(found["stdout"]), len(found["stderr"])) == (65536, 65536)


def test_program_is_over_while_its_child_holds_the_pipe(host: Host) -> None:
    source = "if os.fork() == 0:\n    signal.pause()\nos.write(1, b'out'); os._exit(0)"
    found = host.run("execute", source.encode(), context="main", mode="program")
    assert (found["stdout"], found["done"]["exit_code"]) == (b"out", 0)


def test_output_over_the_limit_is_cut_counted_and_keeps_draining(host: Host) -> None:
    found = _cell(host, "for _ in range(64): os.write(1, b'x' * 65536)", output_bytes=1000)
    assert found["stdout"] == b"x" * 1000
    assert found["done"]["cut"]["stdout"] == 64 * 65536 - 1000


def _resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def test_slow_host_slows_the_producer_and_loses_nothing(host: Host) -> None:
    total = 24 * 1024 * 1024
    source = f"for _ in range({total // 65536}): os.write(1, b'x' * 65536)"
    before_kib = _resident_kib(host.pid)
    number = host.send("execute", source.encode(), context="main", mode="cell", output_bytes=2**30)
    cpu = Path(f"/proc/{host.pid}/schedstat")

    def is_stalled() -> bool:
        before = cpu.read_text()
        signal.sigtimedwait([], 0.1)
        return _resident_kib(host.pid) > before_kib and before == cpu.read_text()

    wait_until(is_stalled, "init waits for the host")
    assert _resident_kib(host.pid) - before_kib < 8_000
    assert len(summary(host.events(number))["stdout"]) == total


def test_stdin_is_fed_and_ended(host: Host) -> None:
    source = b"while True:\n d = os.read(0, 99)\n os.write(1, d.upper())\n if not d: break"
    number = host.send("execute", source, context="main", mode="cell", stdin="stream")
    host.send("stdin", b"abc", number=number)
    assert host.wait_for("stdout", number)[1] == b"ABC"
    host.send("stdin_close", number=number)
    assert host.events(number)[-1][0]["ev"] == "done"


def test_stdin_of_none_is_empty(host: Host) -> None:
    assert _cell(host, "os.write(1, b'%d' % len(os.read(0, 9)))")["stdout"] == b"0"


def test_caller_code_sees_three_descriptors(host: Host) -> None:
    source = "os.write(1, ' '.join(os.listdir('/proc/self/fd')).encode())"
    assert _cell(host, source)["stdout"].split() == [b"0", b"1", b"2", b"3"]  # 3: the listing


def test_caller_code_starts_at_home_with_the_given_environment(host: Host) -> None:
    source = "os.write(1, (os.getcwd() + ' ' + ' '.join(sorted(os.environ))).encode())"
    assert _cell(host, source)["stdout"].decode().split() == [
        str(host.home),
        "HOME",
        "LANG",
        "PATH",
    ]


def test_interrupt_stops_a_cell_and_keeps_the_context(host: Host) -> None:
    source = b"os.write(1, b'on')\nwhile True: signal.pause()"
    number = host.send("execute", source, context="main", mode="cell")
    host.wait_for("stdout", number)
    host.send("interrupt", context="main")
    events = host.events(number)
    assert [header["ev"] for header, _ in events] == ["error", "done"]
    assert events[-1][0]["raised"] is True
    assert _cell(host, "os.write(1, b'alive')")["stdout"] == b"alive"


def test_interrupt_of_an_idle_context_does_nothing(host: Host) -> None:
    host.send("interrupt", context="main")
    host.send("interrupt", context="nobody")
    assert _cell(host, "os.write(1, b'alive')")["stdout"] == b"alive"


def test_signal_reaches_an_execution(host: Host) -> None:
    source = b"os.write(1, b'on')\nsignal.pause()"
    number = host.send("execute", source, context="main", mode="cell")
    host.wait_for("stdout", number)
    host.send("signal", number=number, signal=int(signal.SIGKILL))
    done = host.events(number)[-1][0]
    assert (done["signal"], done["alive"]) == (9, False)


def test_contexts_are_created_listed_and_closed(host: Host) -> None:
    assert host.ask("context_create", context="two")[0]["ev"] == "reply"
    assert host.ask("context_create", context="two")[0]["code"] == "exists"
    listed = host.ask("context_list")[0]["contexts"]
    idle = {"language": "python", "state": "idle"}
    assert listed == [{"name": "main", **idle}, {"name": "two", **idle}]
    assert host.ask("context_close", context="two")[0]["ev"] == "reply"
    assert host.ask("context_close", context="two")[0]["code"] == "no_context"


def test_closing_a_busy_context_ends_its_execution(host: Host) -> None:
    source = b"os.write(1, b'on')\nsignal.pause()"
    number = host.send("execute", source, context="main", mode="cell")
    host.wait_for("stdout", number)
    closing = host.send("context_close", context="main")
    found = {header["id"]: header for header, _ in (host.next(), host.next())}
    assert found[number]["signal"] == 9
    assert found[closing]["ev"] == "reply"


def test_busy_context_refuses_a_second_execution(host: Host) -> None:
    source = b"os.write(1, b'on')\nsignal.pause()"
    number = host.send("execute", source, context="main", mode="cell")
    host.wait_for("stdout", number)
    assert host.ask("execute", b"", context="main")[0]["code"] == "busy"


class _ListenerFirst:
    """Epoll as it may be: init had to wait for its turn, and the listener is told of first.

    The context connects with nothing to say and goes on when that has been accepted; what it says
    then is all there when init hears of any of it.
    """

    home: Path

    def __init__(self) -> None:
        self._real = select.epoll()
        self.unregister, self.modify = self._real.unregister, self._real.modify
        self._is_accepted = False

    def register(self, fd: int, events: int) -> None:
        self._real.register(fd, events)
        self._is_accepted = self._is_accepted or (self.home / "connects").exists()

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        if self._is_accepted:
            (self.home / "accepted").touch()
        found = dict(self._real.poll(timeout))
        if self._is_accepted:
            states = {"S", "Z", ""}  # it waits for work, or it has ended with its init
            wait_until(lambda: {*map(state_of, children(os.getpid()))} <= states, "all is said")
        return sorted({**found, **dict(self._real.poll(0))}.items())


_SHOW_LATE = """
open("connects", "w").close()
link.connect()
while not os.path.exists("accepted"): os.sched_yield()
link.send({"ev": "display"}, b"{}")
link.close()
"""


def test_what_was_said_before_the_end_is_heard_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_select = SimpleNamespace(epoll=_ListenerFirst, EPOLLIN=select.EPOLLIN)
    monkeypatch.setattr(loop, "select", loop_select)
    monkeypatch.setattr(_ListenerFirst, "home", tmp_path, raising=False)
    host = Host(tmp_path, ("main",), stub_context, display_bytes=1000)
    try:
        assert _cell(host, _SHOW_LATE)["events"] == ["display", "done"]
    finally:
        host.close()


def test_display_passes_within_its_budget(host: Host) -> None:
    source = (
        "link.send({'ev':'display','kind':'result','metadata':{'a':1}}, b'{}')\n"
        "link.send({'ev':'display','kind':'bogus','metadata':9}, b'x' * 990)\n"
        "link.send({'ev':'display'}, b'y' * 9)\n"
        "link.send({'ev':'value'}, b'1'); link.send({'ev':'value'}, b'2')"
    )
    events = host.events(host.send("execute", source.encode(), context="main", mode="cell"))
    shown = [(h.get("kind"), h.get("metadata"), len(b)) for h, b in events if h["ev"] == "display"]
    assert shown == [("result", {"a": 1}, 2), ("display", {}, 990)]
    assert [body for header, body in events if header["ev"] == "value"] == [b"1"]
    assert events[-1][0]["cut"]["display"] == 9


@pytest.mark.parametrize(
    "attack",
    [
        "struct.pack('>II', 2**32 - 1, 0)",
        "struct.pack('>II', 2, 2**32 - 1) + b'{}'",
        "frame(b'not json')",
        "frame(b'[' * 60000)",
        "frame({'ev': 'ready'})",
        "frame({'ev': 'idle'})",
        "frame({})",
    ],
)
def test_context_that_breaks_the_protocol_dies_alone(host: Host, attack: str) -> None:
    source = f"{_RAW}\nline = say({attack})\nsignal.pause()"
    done = host.run("execute", source.encode(), context="main", mode="cell")["done"]
    assert (done["signal"], done["alive"]) == (9, False)
    assert host.ask("context_create", context="main")[0]["ev"] == "reply"


def test_unspeakable_metadata_is_left_out(host: Host) -> None:
    source = f'{_RAW}\nsay(frame(b\'{{"ev":"display","metadata":{{"a":1e999}}}}\', b\'1\'))'
    events = host.events(host.send("execute", source.encode(), context="main", mode="cell"))
    assert [h["metadata"] for h, _ in events if h["ev"] == "display"] == [{}]


@pytest.mark.parametrize(("count", "is_passed"), [(600, True), (800, False)])
def test_metadata_is_passed_on_within_two_kib(host: Host, count: int, is_passed: bool) -> None:
    source = f"link.send({{'ev': 'display', 'metadata': {{'x': [[]] * {count}}}}}, b'{{}}')"
    events = host.events(host.send("execute", source.encode(), context="main", mode="cell"))
    shown = [header["metadata"] for header, _ in events if header["ev"] == "display"]
    assert shown == [{"x": [[]] * count} if is_passed else {}]


def test_stranger_on_the_line_is_not_heard(host: Host) -> None:
    source = (
        f"{_RAW}\nif os.fork() == 0:\n"
        "    try:\n"
        "        line = say(frame({'ev': 'end'}) + frame({'ev': 'idle'}))\n"
        "        line.settimeout(20); line.recv(1) or os.write(1, b'refused')\n"
        "    except ConnectionError:\n        os.write(1, b'refused')\n"
        "    finally:\n        os._exit(0)\n"
        "os.wait()\nos.write(1, b' still running')"
    )
    found = _cell(host, source)
    assert found["stdout"] == b"refused still running"
    assert found["done"]["alive"] is True


def test_many_idle_connections_do_not_stop_init(host: Host) -> None:
    source = f"{_RAW}\nlines = [say(b'') for _ in range(200)]\nos.write(1, b'done')"
    found = _cell(host, source)
    assert (found["stdout"], found["done"]["alive"]) == (b"done", True)


def test_what_a_program_says_last_is_heard_after_its_exit(host: Host) -> None:
    source = (
        "os.write(1, b'on'); open('go').close()\n"
        "for event in ('display', 'display', 'value', 'error'):\n"
        "    link.send({'ev': event}, b'1'); link.close()\n"
        "os.write(2, b'end'); os._exit(4)"
    )
    gate = Gate(host.home / "go")
    number = host.send("execute", source.encode(), context="main", mode="program")
    host.wait_for("stdout", number)
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    context = int(children.read_text())
    os.kill(host.pid, signal.SIGSTOP)
    gate.open()
    wait_until(lambda: not is_alive(context), "the program has exited")
    os.kill(host.pid, signal.SIGCONT)
    found = summary(host.events(number))
    assert sorted(found["events"]) == ["display", "display", "done", "error", "stderr", "value"]
    assert (found["stderr"], found["done"]["exit_code"]) == (b"end", 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"context": 5},
        {"context": "main", "mode": "other"},
        {"context": "main", "argv": "x"},
        {"context": "main", "argv": ["\0"]},
        {"context": "main", "arguments": [1]},
        {"context": "main", "output_bytes": -1},
        {"context": "main", "display": 1},
    ],
)
def test_execute_of_a_wrong_shape_is_refused(host: Host, fields: dict[str, Any]) -> None:
    assert host.ask("execute", b"", **fields)[0]["code"] == "invalid"
    assert _cell(host, "os.write(1, b'ok')")["stdout"] == b"ok"


def test_unknown_operation_is_refused_and_ids_that_cannot_be_answered_are_ignored(
    host: Host,
) -> None:
    assert host.ask("teleport")[0]["code"] == "unsupported"
    for number in (-1, 2**70):
        host.send("context_list", number=number)
    assert host.ask("context_list")[0]["ev"] == "reply"


def test_end_of_the_channel_kills_everything_and_orphans_too(host: Host) -> None:
    source = (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.write(1, b'%d' % os.getpid()); signal.pause()\n"
        "os.wait(); os.write(2, b'%d' % os.getpid()); signal.pause()"
    )
    number = host.send("execute", source.encode(), context="main", mode="cell")
    pids = [int(host.next()[1]) for _ in range(2)]
    assert all(is_alive(pid) for pid in pids), number
    assert os.WEXITSTATUS(host.hang_up()) == 0
    assert not any(is_alive(pid) for pid in pids)


def test_garbage_from_the_host_ends_init(host: Host) -> None:
    host.socket.sendall(b"\xff" * 64)
    with pytest.raises(EOFError):
        host.next()
    assert os.WEXITSTATUS(host.hang_up()) == 70


def test_orphans_are_reaped(host: Host) -> None:
    source = (
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        os.write(1, b'%d' % os.getpid())\n"
        "        os.write(w, b'.')\n"
        "    os._exit(0)\n"
        "os.read(r, 1)\n"  # what comes after the cell's end waits for the next one
        "os.wait()"
    )
    number = host.send("execute", source.encode(), context="main", mode="cell")
    orphan = int(host.wait_for("stdout", number)[1])
    wait_until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan is reaped")
