"""Commands through the real init: real processes, real pipes, real terminals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.guest.guest_host import Host, summary
from kit.waiting import Gate, is_alive, wait_until


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def _shell(host: Host, script: str, **fields: Any) -> dict[str, Any]:
    return host.run("start", argv=["sh", "-c", script], **fields)


def test_command_output_and_exit_code(host: Host) -> None:
    found = _shell(host, "echo out; echo err >&2; exit 3")
    assert (found["stdout"], found["stderr"]) == (b"out\n", b"err\n")
    assert found["events"][0] == "started"
    assert (found["done"]["exit_code"], found["done"]["signal"]) == (3, None)


def test_command_killed_by_a_signal_says_so(host: Host) -> None:
    done = _shell(host, "kill -SEGV $$")["done"]
    assert (done["exit_code"], done["signal"]) == (None, signal.SIGSEGV)


def test_command_gets_directory_and_environment(host: Host) -> None:
    (host.home / "sub").mkdir()
    found = _shell(host, 'pwd; echo "$EXTRA $HOME"', cwd="sub", env={"EXTRA": "more"})
    assert found["stdout"].decode().splitlines() == [f"{host.home}/sub", f"more {host.home}"]


def test_command_has_three_descriptors_and_default_signals(host: Host) -> None:
    found = _shell(host, "ls /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status")
    lines = found["stdout"].decode().split()
    assert lines[:4] == ["0", "1", "2", "3"]  # 3: the listing itself
    c_library_only = 0b11 << 31  # signals 32 and 33, which no program can set
    assert [int(lines[at], 16) & ~c_library_only for at in (5, 7)] == [0, 0]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"argv": ["no-such-program"]}, "not_found"),
        ({"argv": ["/no/such/program"]}, "not_found"),
        ({"argv": ["/etc/passwd"]}, "permission"),
        ({"argv": ["./notes"]}, "invalid"),
        ({"argv": ["true"], "cwd": "nowhere"}, "not_found"),
        ({"argv": ["true"], "cwd": "notes"}, "not_directory"),
        ({"argv": []}, "invalid"),
        ({"argv": "true"}, "invalid"),
        ({"argv": ["true"], "env": {"A=B": "x"}}, "invalid"),
        ({"argv": ["true"], "env": {"A": 1}}, "invalid"),
        ({"argv": ["true"], "pty": {"rows": 0}}, "invalid"),
        ({"argv": ["echo", "x" * 300_000]}, "too_large"),
    ],
)
def test_command_that_cannot_start_is_refused(
    host: Host, fields: dict[str, Any], code: str
) -> None:
    (host.home / "notes").write_bytes(b"\0not a program")
    (host.home / "notes").chmod(0o755)
    before = host.descriptors()
    header, _ = host.ask("start", **fields)
    assert (header["ev"], header.get("code")) == ("fail", code)
    assert host.descriptors() == before


def test_input_larger_than_any_pipe_comes_through(host: Host) -> None:
    number = host.send("start", argv=["cat"], stdin="stream", output_bytes=2**30)
    for _ in range(8):
        host.send("stdin", b"x" * 500_000, number=number)
    host.send("stdin_close", number=number)
    found = summary(host.events(number))
    assert found["stdout"] == b"x" * 4_000_000


def test_input_for_a_reader_that_left_does_no_harm(host: Host) -> None:
    gate = Gate(host.home / "go")
    script = "exec 0<&-; echo on; read line < go"
    number = host.send("start", argv=["sh", "-c", script], stdin="stream")
    host.wait_for("stdout", number)
    host.send("stdin", b"x" * 200_000, number=number)
    assert host.ask("context_list")[0]["ev"] == "reply"  # init has tried to pass it on
    gate.open()
    assert host.events(number)[-1][0]["exit_code"] == 0
    host.send("stdin", b"late", number=number)
    assert host.ask("context_list")[0]["ev"] == "reply"


def test_output_over_the_limit_is_cut_and_counted(host: Host) -> None:
    found = _shell(host, "head -c 3000000 /dev/zero", output_bytes=10)
    assert found["stdout"] == bytes(10)
    assert found["done"]["cut"]["stdout"] == 2_999_990


def test_command_ends_though_a_child_holds_its_pipes(host: Host) -> None:
    found = _shell(host, "sleep 600 & echo here")
    assert (found["stdout"], found["done"]["exit_code"]) == (b"here\n", 0)


def test_what_a_command_left_behind_may_go_on_printing(host: Host) -> None:
    gate = Gate(host.home / "go")
    _shell(host, "( read line < go; echo noise; echo ok > survived ) & exit 0")
    gate.open()
    wait_until((host.home / "survived").exists, "the child survives its own output")


def test_signal_reaches_the_whole_session(host: Host) -> None:
    script = "set -m; sleep 600 & echo $!; wait"  # -m: a process group of its own
    number = host.send("start", argv=["bash", "-c", script])
    child = int(host.wait_for("stdout", number)[1])
    assert os.getpgid(child) == child
    host.send("signal", number=number, signal=int(signal.SIGKILL))
    assert host.events(number)[-1][0]["signal"] == signal.SIGKILL
    wait_until(lambda: not is_alive(child), "the grandchild is dead")


def test_terminal_is_a_terminal(host: Host) -> None:
    # Not bash: its readline reads the size and sets what it read, over a resize in between.
    number = host.send("start", argv=["sh"], pty={"rows": 33, "cols": 101})
    host.send("stdin", b"stty size; test -t 0 && test -t 2 && echo y''es\n", number=number)
    seen = b""
    while b"yes" not in seen:
        seen += host.wait_for("stdout", number)[1]
    assert b"33 101" in seen
    host.send("resize", number=number, rows=44, cols=55)
    host.send("stdin", b"stty size; exit 5\n", number=number)
    found = summary(host.events(number))
    assert b"44 55" in found["stdout"]
    assert found["done"]["exit_code"] == 5


def test_terminal_keys_interrupt_the_foreground(host: Host) -> None:
    number = host.send("start", argv=["sh", "-c", "echo on; exec sleep 600"], pty={})
    host.wait_for("stdout", number)
    host.send("stdin", b"\x03", number=number)
    assert host.events(number)[-1][0]["signal"] == signal.SIGINT


def test_closing_the_input_of_a_terminal_is_the_end_of_file_key(host: Host) -> None:
    number = host.send("start", argv=["cat"], pty={})
    host.wait_for("started", number)
    host.send("stdin_close", number=number)
    assert host.events(number)[-1][0]["exit_code"] == 0


def test_fifty_commands_at_once_leave_no_descriptor(host: Host) -> None:
    before = host.descriptors()
    running = {host.send("start", argv=["true"], stdin="stream") for _ in range(50)}
    while running:
        header, _ = host.next()
        if header["ev"] == "done":
            running.remove(header["id"])
    assert host.descriptors() == before


def test_too_many_commands_are_refused(host: Host) -> None:
    for _ in range(64):
        host.send("start", argv=["sleep", "600"])
    last = host.send("start", argv=["true"])
    header = host.events(last)[-1][0]
    assert header["code"] == "busy"


def test_merged_output_is_one_stream_in_order(host: Host) -> None:
    script = "for n in 1 2 3; do echo $n; echo -$n >&2; done"
    found = _shell(host, script, merge_stderr=True)
    assert (found["stdout"], found["stderr"]) == (b"1\n-1\n2\n-2\n3\n-3\n", b"")
    assert _shell(host, script)["stderr"] == b"-1\n-2\n-3\n"


def test_merged_output_has_one_budget(host: Host) -> None:
    found = _shell(host, "printf 12345; printf 67890 >&2", merge_stderr=True, output_bytes=7)
    assert found["stdout"] == b"1234567"
    assert found["done"]["cut"]["stdout"] == 3


def test_body_of_a_request_is_what_descriptor_three_reads(host: Host) -> None:
    before = host.descriptors()
    body = b"echo $0; exit 7\n" + b"#" * 3_000_000
    found = host.run("start", body, argv=["bash", "-c", 'eval "$(</dev/fd/3)" 3<&-'])
    assert (found["stdout"], found["done"]["exit_code"]) == (b"bash\n", 7)
    assert host.run("start", body, argv=["true"])["done"]["exit_code"] == 0  # never reads it
    assert host.descriptors() == before
