"""Programs of a batch's body at a gateway: found without being built, in small pieces of work."""

from __future__ import annotations

import asyncio
import json

import pytest

from cellwall.cluster.gateway.work.programs import TURN_BYTES, Lines, Listed, check
from cellwall.model.errors import CapacityError, UsageError
from cellwall.server.http.endpoint import parsed
from cellwall.server.schemas.requests import BatchBody

MANY = 2 << 20
"""Bytes of a large body here: far above what is looked at in one turn of the loop."""


def _nothing() -> None:
    """Hear that more is needed."""


async def _all(programs: Lines | Listed) -> list[bytes]:
    found = []
    while (program := await programs.take()) is not None:
        found.append(program)
    return found


def _listed(body: bytes) -> list[bytes]:
    made = Listed()
    made.feed(body)
    made.end()
    return asyncio.run(_all(made))


async def _turns_of(work: asyncio.Task[object]) -> int:
    """Return how often the loop had its turn until `work` ended."""
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


@pytest.mark.parametrize(
    "item",
    [b"[],", b"{},", b'"",', b"0,", b'"\\"",', b"[[[]]],", b'{"a":"]"},', b'"\\\\",'],
)
def test_large_program_leaves_the_loop_its_turns(item: bytes) -> None:
    program = b'{"a":[' + item * (MANY // len(item)) + b"0]}"

    async def body() -> None:
        made = Listed()
        made.feed(b'{"executions": [' + program + b', {"code": "}"}], "concurrency": 3}')
        made.end()
        taking = asyncio.ensure_future(_all(made))
        turns = await _turns_of(taking)
        assert taking.result() == [program, b'{"code": "}"}']
        assert made.concurrency == 3
        assert turns > MANY // (2 * TURN_BYTES)

    asyncio.run(body())


def test_large_blank_line_leaves_the_loop_its_turns() -> None:
    async def body() -> None:
        made = Lines(_nothing)
        made.feed(b" " * MANY + b"\n\n{}")
        made.end()
        taking = asyncio.ensure_future(_all(made))
        turns = await _turns_of(taking)
        assert taking.result() == [b"{}"]
        assert turns > MANY // (2 * TURN_BYTES)

    asyncio.run(body())


def test_list_of_many_small_items_is_refused_at_the_first_that_is_wrong() -> None:
    async def body() -> None:
        for item in (b"0,", b"{},"):
            made = Listed()
            made.feed(b'{"executions":[' + item * (MANY // len(item)) + b"0]}")
            made.end()
            taking = asyncio.ensure_future(_all(made))
            turns = await _turns_of(taking)
            assert isinstance(taking.exception(), UsageError)
            assert turns < 10_000 * 1024 // TURN_BYTES

    asyncio.run(body())


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[1]",
        b'{"executions": []}',
        b'{"executions": 0}',
        b'{"executions": [0]}',
        b'{"executions": [{}, "x"]}',
        b'{"executions": [{}], "concurrency": 0}',
        b'{"executions": [{}], "concurrency": 1025}',
        b'{"executions": [{}], "concurrency": true}',
        b'{"executions": [{}], "concurrency": 2.0}',
        b'{"concurrency": "2", "executions": [{}]}',
        b'{"executions": [{}], "x": 1}',
    ],
)
def test_what_is_no_batch_is_refused_in_the_words_of_a_server(body: bytes) -> None:
    with pytest.raises(UsageError) as of_server:
        parsed(BatchBody, body)
    with pytest.raises(UsageError) as of_gateway:
        _listed(body)
    assert str(of_gateway.value) == str(of_server.value)


def test_more_programs_than_a_server_takes_are_refused() -> None:
    most = b'{"executions":[' + b"{}," * 9_999 + b"{}]}"
    assert len(_listed(most)) == 10_000
    more = most[:-2] + b",{}]}"
    with pytest.raises(UsageError) as of_server:
        parsed(BatchBody, more)
    with pytest.raises(UsageError, match="at most 10000 items after validation") as of_gateway:
        _listed(more)
    assert str(of_server.value).startswith(of_gateway.value.message)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"nonsense", b'{"executions"', b'{"executions":[{}', b'{"executions":[{}]',
        b'{"executions":[{}],}', b'{"executions":[{},]}', b'{"executions":[{}]}x', b'{"a',
        b'{"executions":[{"a":"\\', b'{"executions":[{"a":"\\"}]}', b'{"executions":[{} {}]}',
        b'{"executions":[{}],"concurrency":x}', b'{"executions":[{}],"executions":[{}]}',
        b'{"executions":[{}]\x0b}', b'{"executions":[{"a":[]}', b"\xff\xfe{\x00}\x00",
    ],
)  # fmt: skip
def test_what_is_cut_or_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError):
        _listed(body)


@pytest.mark.parametrize("indent", [None, 1])
def test_programs_are_found_wherever_windows_end(indent: int | None) -> None:
    wanted = [
        {"code": text * count, "limits": {"a": [[], {}, "]}"]}}
        for count in (0, 1, 63, 254, 255, 256, 257, 5_000, 16_383, 16_384, 16_385, 40_000)
        for text in ("x", '"', "\\", '\\"', "[", "}", "é")
    ]
    body = json.dumps({"concurrency": None, "executions": wanted}, indent=indent)
    assert [json.loads(each) for each in _listed(body.encode())] == wanted


def test_lines_are_no_longer_held_once_they_are_taken() -> None:
    async def body() -> None:
        made = Lines(_nothing)
        for data in (b'{"a":1}\n\n \r\n{"b"', b":2}\n", b"\n" * 1000, b'{"c":3}'):
            made.feed(data)
        assert made.waiting == 1004
        assert await made.take() == b'{"a":1}'
        assert await made.take() == b'{"b":2}'
        last = asyncio.ensure_future(made.take())
        await _settled(last)
        assert (made.waiting, made.size) == (0, 7)
        made.end()
        assert await last == b'{"c":3}'
        assert await made.take() is None
        assert made.size == 0

    asyncio.run(body())


async def _settled(task: asyncio.Task[bytes | None]) -> None:
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()


def test_lines_before_a_fault_are_taken_still() -> None:
    async def body() -> None:
        made = Lines(_nothing)
        made.feed(b"{}\n{")
        made.end(CapacityError("full", retry_after_s=1.0, remedy="wait"))
        assert await made.take() == b"{}"
        with pytest.raises(CapacityError):
            await made.take()

    asyncio.run(body())


def test_line_that_is_too_long_is_refused() -> None:
    made = Lines(_nothing)
    made.feed(b"{}\n")
    for _ in range(16):
        made.feed(b"x" * (1 << 20))
    with pytest.raises(UsageError, match="too long"):
        made.feed(b"x")


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (b'{"code":"1","tools":{}}', "tools"),
        (b'{"code":"1","t\\u006fols" : [ ]}', "tools"),
        (b'{"background":true,"code":"1"}', "background"),
        (b'{"limits":{"a":[1,2]},"n":-1.5e3,"tools":[],"tools":null}', "tools"),
    ],
)
def test_tools_and_background_are_refused(program: bytes, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        asyncio.run(check(program))


@pytest.mark.parametrize(
    "program",
    [
        b'{"code":"\\"tools\\" \\u00e9"}', b'{"a":{"tools":[1]},"tools":null,"background":false}',
        b'["tools"]', b'{"tools"', b"\\u",
    ],
)  # fmt: skip
def test_words_that_say_nothing_are_left_to_the_node(program: bytes) -> None:
    asyncio.run(check(program))
