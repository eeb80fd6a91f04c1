"""Calls of another language's code on their way to init, against a socket that plays init."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cellwall.guest.channel.frames import Decoder, encode
from cellwall.guest.channel.init_link import Link
from cellwall.guest.context.foreign.interpreter import DriverBroken
from cellwall.guest.context.foreign.tool_relay import Relay

CALL = {"ev": "call", "call": 1, "tool": "t", "body": "{}"}


@pytest.fixture
def init() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("\0cellwall-test-" + os.urandom(8).hex())
        made.listen(8)
        made.settimeout(10)
        yield made


@pytest.fixture
def relay(init: socket.socket) -> Iterator[Relay]:
    made = Relay(Link(init.getsockname().decode()), {"at_once": 2})
    yield made
    made.close()


def heard(init: socket.socket) -> tuple[socket.socket, dict[str, Any], bytes]:
    line, _ = init.accept()
    line.settimeout(10)
    decoder = Decoder()
    while True:
        for header, body in decoder.feed(line.recv(65536)):
            return line, dict(header), bytes(body)


def said(relay: Relay) -> list[dict[str, Any]]:
    return [json.loads(line) for line in os.read(relay.replies_r, 1 << 20).splitlines()]


def test_call_and_answer_pass(relay: Relay, init: socket.socket) -> None:
    relay.begin({**CALL, "body": '{"x": "ä"}'})
    line, header, body = heard(init)
    assert (header, body) == ({"ev": "call", "tool": "t"}, '{"x": "ä"}'.encode())
    line.sendall(encode({"op": "answer", "ok": True}, b"[1]"))
    relay.step()
    assert said(relay) == [{"call": 1, "ok": True, "body": [1]}]
    line.close()


def test_more_than_at_once_are_refused_until_one_is_read(relay: Relay, init: socket.socket) -> None:
    for number in (1, 2, 3):
        relay.begin({**CALL, "call": number})
    (refused,) = said(relay)
    assert (refused["call"], refused["body"]["kind"]) == (3, "busy")
    line, *_ = heard(init)
    line.close()  # as init does at the end of an execution
    relay.step()
    (ended,) = said(relay)
    assert (ended["call"], ended["body"]["kind"]) == (1, "ended")
    relay.begin({**CALL, "call": 4})
    heard(init)[0].close()


def test_answers_that_nobody_reads_keep_their_places(relay: Relay, init: socket.socket) -> None:
    for number in (1, 2):
        relay.begin({**CALL, "call": number})
        line, *_ = heard(init)
        line.sendall(encode({"op": "answer", "ok": True}, b'"' + b"x" * 100_000 + b'"'))
        relay.step()
        line.close()
    relay.begin({**CALL, "call": 3})
    text = b""
    while text.count(b"\n") < 3:
        text += os.read(relay.replies_r, 1 << 20)
        relay.step()
    assert [json.loads(line)["ok"] for line in text.splitlines()] == [True, True, False]


def test_refusals_that_nobody_reads_are_bounded(relay: Relay) -> None:
    for number in range(10_000):
        relay.begin({**CALL, "call": number, "tool": "t"})
    assert len(relay._replies) <= 256


def test_init_that_is_gone_is_told_to_the_code(relay: Relay, init: socket.socket) -> None:
    init.close()
    relay.begin(CALL)
    assert said(relay)[0]["body"]["kind"] == "ended"


@pytest.mark.parametrize(
    "change", [{"call": "1"}, {"call": True}, {"tool": 1}, {"body": None}, {"body": {}}]
)
def test_call_that_is_none_breaks_the_protocol(relay: Relay, change: dict[str, Any]) -> None:
    with pytest.raises(DriverBroken):
        relay.begin({**CALL, **change})
