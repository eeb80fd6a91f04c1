"""Terminals through the real init: bytes at the pace of who takes them, and never cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.channel.streams import INPUT_WINDOW_BYTES, LAST_BYTES
from kit.guest.guest_host import Host, summary


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def on_terminal(host: Host, script: str, **fields: Any) -> int:
    return host.send("start", argv=["bash", "-c", script], pty={}, **fields)


def output_until(host: Host, number: int, size: int) -> bytes:
    seen = b""
    while len(seen) < size:
        seen += host.wait_for("stdout", number)[1]
    return seen


def events_before_answer(host: Host) -> list[str]:
    """Everything init says before it answers a question asked now."""
    asked = host.send("context_list")
    found: list[str] = []
    while True:
        header, _ = host.next()
        if header["id"] == asked:
            return found
        found.append(header["ev"])


def test_no_more_comes_than_was_granted(host: Host) -> None:
    number = on_terminal(host, "stty raw; head -c 400000 /dev/zero", window=1000)
    assert output_until(host, number, 1000) == bytes(1000)
    assert "stdout" not in events_before_answer(host)
    host.send("credit", number=number, bytes=2000)
    assert output_until(host, number, 2000) == bytes(2000)
    host.send("credit", number=number, bytes=1 << 20)
    found = summary(host.events(number))
    assert found["stdout"] == bytes(397_000)
    assert found["done"]["cut"] == {"stdout": 0, "stderr": 0, "display": 0, "stdin": 0}


def test_last_output_comes_without_a_grant(host: Host) -> None:
    number = on_terminal(host, "stty raw; printf end", window=0)
    found = summary(host.events(number))
    assert found["stdout"] == b"end"
    assert len(found["stdout"]) <= LAST_BYTES


def test_session_longer_than_any_limit_is_not_cut(host: Host) -> None:
    number = on_terminal(host, "stty raw; head -c 5000000 /dev/zero", output_bytes=10)
    size = 0
    while True:
        header, body = host.next()
        if header["ev"] == "done":
            break
        size += len(body)
        if body:
            host.send("credit", number=number, bytes=len(body))
    assert (size, header["cut"]["stdout"]) == (5_000_000, 0)


def test_input_is_granted_again_as_it_is_taken(host: Host) -> None:
    number = on_terminal(host, "stty raw -echo; echo go; exec head -c 1000000 > taken")
    output_until(host, number, 3)
    credit, left = INPUT_WINDOW_BYTES, 1_000_000
    while left:
        size = min(credit, left)
        host.send("stdin", b"x" * size, number=number)
        left -= size
        credit -= size
        if left:
            credit += host.wait_for("credit", number)[0]["bytes"]
    assert host.events(number)[-1][0]["exit_code"] == 0
    assert (host.home / "taken").read_bytes() == b"x" * 1_000_000


def test_input_that_nobody_takes_is_bounded(host: Host) -> None:
    number = on_terminal(host, "stty raw -echo; echo go; exec sleep 600")
    output_until(host, number, 3)
    for _ in range(40):  # a host that ignores grants
        host.send("stdin", b"x" * 100_000, number=number)
    host.send("signal", number=number, signal=9)
    cut = host.events(number)[-1][0]["cut"]["stdin"]
    assert 4_000_000 - cut < 3 * INPUT_WINDOW_BYTES


@pytest.mark.parametrize("count", [0, -1, 2**31, True, "7", None])
def test_senseless_grant_is_refused(host: Host, count: object) -> None:
    assert host.ask("credit", bytes=count)[0]["code"] == "invalid"


def test_grant_for_what_has_ended_is_ignored(host: Host) -> None:
    number = on_terminal(host, "exit 0")
    host.events(number)
    host.send("credit", number=number, bytes=1)
    assert events_before_answer(host) == []
