"""Calls to host tools through the real init, from a context that obeys or attacks on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.guest.guest_host import Host, stub_context

TOOLS = {"functions": {}, "at_once": 2, "in_all": 4}

# A call as hostile caller code makes it, past everything that `tools` would check.
_RAW = """
import json, socket, struct
def frame(header, body=b""):
    text = json.dumps(header).encode()
    return struct.pack(">II", len(text), len(body)) + text + body
def say(data):
    line = socket.socket(socket.AF_UNIX)
    line.connect(link._address)
    line.sendall(data)
    return line
def hear(line):
    data = b""
    while piece := line.recv(65536): data += piece
    if not data: return None
    head, body = struct.unpack(">II", data[:8])
    return json.loads(data[8:8 + head])["ok"], json.loads(data[8 + head:8 + head + body])
def call(tool="t", body=b"{}"):
    return say(frame({"ev": "call", "tool": tool}, body))
def show(what): os.write(1, (json.dumps(what) + "\\n").encode())
"""


@pytest.fixture(params=["session", "program"])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    """Every test twice: the first program of a sandbox goes a shorter way, if it can."""
    made = Host(tmp_path, ("main",), stub_context, purpose=request.param)
    yield made
    made.close()


def begin(host: Host, source: str, tools: Any = TOOLS, mode: str = "cell") -> int:
    code = (_RAW + source).encode()
    return host.send(
        "execute", code, context="main", mode=mode, stdin="none", output_bytes=10**6, tools=tools
    )


def answer(host: Host, number: int, call: int, value: object = None, ok: bool = True) -> None:
    host.send("answer", json.dumps(value).encode(), number, call=call, ok=ok)


def shown(host: Host, number: int) -> list[Any]:
    """What it printed as JSON lines, to its end."""
    events = host.events(number)
    text = b"".join(body for header, body in events if header["ev"] == "stdout")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("mode", ["cell", "program"])
def test_call_reaches_the_host_and_its_answer_the_caller(host: Host, mode: str) -> None:
    number = begin(host, 'show(hear(call("t", b"[1]")))', mode=mode)
    header, body = host.wait_for("call", number)
    assert (header["call"], header["tool"], body) == (1, "t", b"[1]")
    answer(host, number, 1, {"found": 2})
    assert shown(host, number) == [[True, {"found": 2}]]


def test_calls_at_once_are_bounded_and_places_come_back(host: Host) -> None:
    number = begin(host, "a, b = call(), call(); hear(a); show(hear(call()))")
    assert [host.wait_for("call", number)[0]["call"] for _ in range(2)] == [1, 2]
    answer(host, number, 1)
    assert host.wait_for("call", number)[0]["call"] == 3
    answer(host, number, 3)
    assert shown(host, number) == [[True, None]]


def test_call_over_the_bound_at_once_is_refused(host: Host) -> None:
    number = begin(host, "a, b = call(), call(); show(hear(call()))")
    (is_ok, said), *_ = shown(host, number)
    assert (is_ok, said["kind"]) == (False, "busy")


def test_calls_in_all_are_bounded(host: Host) -> None:
    number = begin(host, "show([hear(call())[0] for _ in range(5)])")
    for call in range(1, 5):
        assert host.wait_for("call", number)[0]["call"] == call
        answer(host, number, call)
    assert shown(host, number) == [[True] * 4 + [False]]


def test_hanging_up_drops_the_call(host: Host) -> None:
    number = begin(host, "call().close(); show(hear(call()))")
    found = {(header["ev"], header["call"]) for header in (host.next()[0] for _ in range(3))}
    assert found == {("call", 1), ("call_dropped", 1), ("call", 2)}
    answer(host, number, 1)  # too late, and for nobody
    answer(host, number, 2)
    assert shown(host, number) == [[True, None]]


def test_execution_without_tools_calls_none(host: Host) -> None:
    (is_ok, said), *_ = shown(host, begin(host, "show(hear(call()))", tools=None))
    assert (is_ok, said["kind"]) == (False, "unknown")


@pytest.mark.parametrize("tool", ["''", "'x' * 65", "7", "None"])
def test_call_needs_the_name_of_a_tool(host: Host, tool: str) -> None:
    (is_ok, said), *_ = shown(host, begin(host, f"show(hear(call({tool})))"))
    assert (is_ok, said["kind"]) == (False, "unknown")


def test_end_of_the_execution_ends_its_calls(host: Host) -> None:
    number = begin(host, "import builtins; builtins.kept = call()")
    host.events(number)
    later = begin(host, "import builtins; show(hear(builtins.kept))")
    (is_ok, said), *_ = shown(host, later)
    assert (is_ok, said["kind"]) == (False, "ended")


@pytest.mark.parametrize(
    "attack",
    [
        "line = call(); line.sendall(frame({'ev': 'call', 'tool': 't'}))",
        "say(frame({'ev': 'call', 'tool': 't'}) * 2)",
        "say(struct.pack('>II', 40, 1 << 21) + b'{' * 40)",
        "say(struct.pack('>II', 1 << 17, 0))",
        "say(struct.pack('>II', 60_000, 0) + b'[' * 60_000)",
        "say(frame({'ev': 'call', 'tool': 't', 'op': 'answer'}).replace(b'}', b'{'))",
        "call(); say(frame({'ev': 'answer', 'call': 1, 'ok': True}))",
        "call(); say(frame({'ev': 'call_dropped', 'call': 1}))",
    ],
)
def test_context_that_forges_dies_and_init_lives(host: Host, attack: str) -> None:
    number = begin(host, attack + "\nimport signal; signal.pause()")
    done = host.events(number)[-1][0]
    assert (done["signal"], done["alive"]) == (9, False)
    assert host.ask("context_create", context="main")[0]["ev"] == "reply"


def test_other_process_cannot_call(host: Host) -> None:
    code = "if os.fork() == 0:\n    show(hear(call())); os._exit(0)\nos.wait()\nshow(hear(call()))"
    number = begin(host, code)
    assert host.wait_for("call", number)[0]["call"] == 1
    answer(host, number, 1)
    assert shown(host, number)[-1] == [True, None]


def test_hoarded_connections_stop_no_call(host: Host) -> None:
    number = begin(host, "kept = [say(b'') for _ in range(50)]\nshow(hear(call()))")
    host.wait_for("call", number)
    answer(host, number, 1)
    assert shown(host, number) == [[True, None]]


@pytest.mark.parametrize("is_read", [False, True])
def test_answers_that_nobody_reads_keep_their_places(host: Host, is_read: bool) -> None:
    first = "[hear(each) for each in kept]; " if is_read else ""
    code = f"kept = [call(), call()]; {first}hear(call()); d = call(); show(hear(call()))"
    number = begin(host, code, {**TOOLS, "at_once": 3, "in_all": 4})
    for call in (1, 2, 3):
        host.wait_for("call", number)
        answer(host, number, call, "x" * (1 << 20) if call < 3 else "")
    (is_ok, said), *_ = shown(host, number)
    # The control: once they are read, it is the other bound that holds.
    assert (is_ok, said["kind"]) == (False, "limit" if is_read else "busy")


def test_answer_to_nobody_is_ignored(host: Host) -> None:
    answer(host, 999, 1)
    number = begin(host, "show(1)")
    answer(host, number, 7)
    assert shown(host, number) == [1]
