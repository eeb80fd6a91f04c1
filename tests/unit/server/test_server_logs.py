"""The log: one record per line, nothing forged, no secret, and a blocked sink blocks nobody."""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cellwall.server.core.request_context import ORIGIN, Origin
from cellwall.server.observability import logs
from cellwall.server.observability.log_sink import Sink
from cellwall.server.observability.redaction import REDACTED, Redactor
from kit.figures import collections_off

EVIL = (
    'x\n{"level":"error","event":"FORGED"}\r\x1b[2J\x1b]52;c;Zm9v\x07\x7f\x9b31m\u202eevil\u2066 é'
)


@pytest.fixture
def redactor() -> Redactor:
    made = Redactor()
    made.learn("planted-secret-42", "alice")
    return made


def record(**fields: object) -> dict[str, Any]:
    return {"time": 0.0, "level": "info", "event": "it happened", **fields}


def line(redactor: Redactor, form: str = "json", **fields: object) -> str:
    render = logs.as_json if form == "json" else logs.as_words
    return logs.rendered(record(**fields), redactor, render)


@pytest.mark.parametrize("form", ["json", "console"])
def test_hostile_text_stays_in_its_field(redactor: Redactor, form: str) -> None:
    """K06, K07, G16: control characters, terminals' sequences, lines that look like ours."""
    for fields in ({"name": EVIL}, {"event": EVIL}, {"nested": {EVIL: [EVIL]}}):
        made = line(redactor, form, **fields)
        assert made.isprintable()
        assert not set(made) & {"\n", "\r", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066"}
    if form == "json":
        assert json.loads(line(redactor, name=EVIL))["name"] == EVIL


def test_console_fields_cannot_be_forged(redactor: Redactor) -> None:
    made = line(redactor, "console", name="x tenant=admin", tenant="alice")
    assert made.endswith('name="x tenant=admin" tenant=alice')


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_taken_out_before_anything_is_cut(redactor: Redactor, form: str) -> None:
    made = line(
        redactor,
        form,
        tenant="alice",
        text="a" * 4090 + "planted-secret-42",
        more=["planted-secret-42"],
    )
    assert "planted" not in made
    assert REDACTED in made


def test_a_program_is_never_logged_whole(redactor: Redactor) -> None:
    assert len(line(redactor, code="x = 1\n" * 100_000)) < 10_000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_lines(fd: int, until: str) -> list[str]:
    data = b""
    while until.encode() not in data or not data.endswith(b"\n"):
        assert select.select([fd], [], [], 10)[0], f"nothing more came after {data[-200:]!r}"
        data += os.read(fd, 1 << 20)
    return data.decode().splitlines()


def plain(record: dict[str, Any]) -> str:
    return json.dumps(record)


def test_records_are_written_in_order(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1], plain)
    for number in range(500):
        sink.put(record(number=number))
    sink.close(5)
    lines = read_lines(pipe[0], '"number": 499}')
    assert [json.loads(each)["number"] for each in lines] == list(range(500))
    assert sink.dropped == 0


def test_full_pipe_drops_and_counts_and_says_so(pipe: tuple[int, int]) -> None:
    """FI-36: nobody reads the log; whoever logs goes on at once."""
    sink = Sink(pipe[1], plain, most=100)
    longest = 0.0
    with collections_off():
        for number in range(5_000):
            began = time.thread_time()
            sink.put(record(number=number, pad="x" * 500))
            longest = max(longest, time.thread_time() - began)
    assert sink.dropped >= 4_000  # a pipe holds 64 KiB, some 120 of these
    assert longest < 0.1
    dropped = sink.dropped

    def end() -> None:
        sink.close(10)
        sink.put(record())  # nobody takes it, and nobody waits
        os.write(pipe[1], b"the end\n")

    ending = threading.Thread(target=end)  # what is left may be more than the pipe holds
    ending.start()
    told = read_lines(pipe[0], "the end")[:-1]
    ending.join(10)
    said = [json.loads(each) for each in told if "log records dropped" in each]
    assert said[-1]["total"] == sum(each["count"] for each in said) == dropped
    assert len(told) - len(said) + dropped == 5_000


def test_closing_does_not_wait_for_a_reader_that_never_comes(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1], plain)
    for _ in range(1000):
        sink.put(record(pad="x" * 500))
    closing = threading.Thread(target=sink.close, args=(0.2,))
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    while sink._thread.is_alive() or select.select([pipe[0]], [], [], 0)[0]:
        if select.select([pipe[0]], [], [], 0.1)[0]:
            os.read(pipe[0], 1 << 20)


def test_a_descriptor_that_does_not_block_loses_nothing(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    sink = Sink(pipe[1], plain)
    for number in range(2000):
        sink.put(record(number=number, pad="x" * 100))
    lines = read_lines(pipe[0], '"number": 1999,')
    assert len(lines) == 2000
    sink.close(5)


def test_a_sink_that_is_gone_is_counted() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    sink = Sink(writer, plain)
    sink.put(record())
    sink.close(5)
    os.close(writer)
    assert sink.dropped == 1


def test_a_record_that_cannot_be_rendered_does_not_end_the_log(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1], plain)
    sink.put(record(bad=object()))
    sink.put(record(last=True))
    lines = read_lines(pipe[0], '"last": true')
    assert "cannot be written: TypeError" in lines[0]
    sink.close(5)


def test_standard_loggers_join_it_one_line_each(pipe: tuple[int, int], redactor: Redactor) -> None:
    sink = Sink(pipe[1], lambda each: logs.rendered(each, redactor, logs.as_json))
    logs._way.sink = sink
    token = ORIGIN.set(Origin("r", "alice"))
    try:
        target = logging.Logger("asyncio")
        target.addHandler(logs._Bridge())
        try:
            raise ValueError("planted-secret-42\nFORGED")
        except ValueError:
            target.exception("task %s failed", EVIL)
        target.error("bad %d format", "x")
        logs.logger("cellwall.test").info("said", field="planted-secret-42", tenant="alice")
    finally:
        ORIGIN.reset(token)
        logs._way.sink = None
    sink.close(5)
    first, second, third = map(json.loads, read_lines(pipe[0], '"said"'))
    assert EVIL in first["event"]
    assert "ValueError: [redacted]\nFORGED" in first["traceback"]
    assert "cannot be formatted" in second["event"]
    assert third["event"] == "said"
    assert third["logger"] == "cellwall.test"
    assert third["field"] == REDACTED


def test_value_of_a_tenant_changes_neither_our_words_nor_others_lines(redactor: Redactor) -> None:
    """Control: what the same line says of that tenant in words is without it."""
    ours = {"route": "planted-secret-42", "execution_id": "planted-secret-42"}
    made = json.loads(line(redactor, tenant="alice", reason="planted-secret-42", **ours))
    assert {name: made[name] for name in ours} == ours
    assert made["reason"] == REDACTED
    assert "planted-secret-42" in line(redactor, tenant="bob", reason="planted-secret-42")
    assert "planted-secret-42" in line(redactor, "console", reason="planted-secret-42")
    assert "_asking" not in line(redactor, _asking="alice", reason="x")
