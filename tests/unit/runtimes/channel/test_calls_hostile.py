"""What the host makes of calls to tools by an init that lies: real sockets, no guest."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.engine.attempts.attempt import Attempt, Work
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes.base import KernelReadings
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.surface.tools.tools import Tool, ToolBox
from kit import loop_clock
from kit.guest.channel_pair import Pair, frame, with_pair
from kit.loop_clock import clock

_READINGS = KernelReadings(cpu_s=0, memory_bytes=0, memory_peak_bytes=0)


class _Never:
    """A function that is never done; it says how often it was begun and cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.has_begun, self.was_cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, x: int = 0) -> None:
        self.begun += 1
        self.has_begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.was_cancelled.set()
            raise


def begin(pair: Pair, box: ToolBox | None, on_event: Any = None) -> Attempt:
    live = SimpleNamespace(
        channel=pair.channel,
        running=set(),
        claimed_kills=0,
        unknown_kills=0,
        begun=0,
        readings_before=lambda: _READINGS,
        knock=lambda: None,
        clocks=set(),
        ending=set(),
        pausing=None,
        paused_s=0.0,
        readings=lambda: _READINGS,
        read_cpu_s=lambda: 0.0,
        isolation=Isolation("toy", IsolationLevel.PROCESS, "", {}),
        kill=lambda _reason: pair.channel.close(),
        runtime_sandbox=SimpleNamespace(wait_ended=lambda: asyncio.sleep(0)),
    )
    return Attempt(cast("Any", live), Work("execute", {}, Limits(), tools=box), on_event)


def call(number: int, body: bytes = b"{}", tool: str = "t") -> bytes:
    return frame({"ev": "call", "id": 1, "call": number, "tool": tool}, body)


async def heard(pair: Pair, count: int) -> list[Mapping[str, Any]]:
    """The next answers, as the guest reads them."""
    pair.guest.setblocking(False)
    loop, data, found = asyncio.get_running_loop(), b"", list[Mapping[str, Any]]()
    while len(found) < count:
        data += await asyncio.wait_for(loop.sock_recv(pair.guest, 1 << 20), 20)
        while len(data) >= 8:
            head, body = (int.from_bytes(data[at : at + 4], "big") for at in (0, 4))
            if len(data) < 8 + head + body:
                break
            header = json.loads(data[8 : 8 + head])
            if header["op"] == "answer":
                found.append({**header, "said": json.loads(data[8 + head : 8 + head + body])})
            data = data[8 + head + body :]
    return found


FORGED = {
    "the same number twice": call(1) + call(1),
    "a number left out": call(2),
    "number nought": call(0),
    "a number below nought": call(-1),
    "a number in words": frame({"ev": "call", "id": 1, "call": "1", "tool": "t"}),
    "no tool": frame({"ev": "call", "id": 1, "call": 1}),
    "a tool that is no text": frame({"ev": "call", "id": 1, "call": 1, "tool": ["t"]}),
    "more at once than told": b"".join(call(number) for number in range(1, 4)),
    "another request's": frame({"ev": "call", "id": 2, "call": 1, "tool": "t"}),
    "dropped without a number": frame({"ev": "call_dropped", "id": 1}),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_call_ends_the_sandbox(case: str) -> None:
    async def body(pair: Pair) -> None:
        never = _Never()
        attempt = begin(pair, ToolBox({"t": never}, at_once=2))
        pair.say(FORGED[case])
        outcome = await asyncio.wait_for(attempt.wait(), 20)
        assert outcome.verdict.value == "sandbox_error"
        assert len(pair.violations) == 1
        assert never.begun == never.cancelled

    with_pair(body)


def test_call_without_tools_ends_the_sandbox() -> None:
    async def body(pair: Pair) -> None:
        attempt = begin(pair, None)
        pair.say(call(1))
        await asyncio.wait_for(attempt.wait(), 20)
        assert len(pair.violations) == 1

    with_pair(body)


def test_more_calls_than_an_execution_may_make_end_the_sandbox() -> None:
    async def body(pair: Pair) -> None:
        attempt = begin(pair, ToolBox({"t": lambda: 1}, calls=3))
        for number in (1, 2, 3):  # the control: these are answered
            pair.say(call(number))
            assert (await heard(pair, 1))[0]["said"] == 1
        pair.say(call(4))
        await asyncio.wait_for(attempt.wait(), 20)
        assert len(pair.violations) == 1

    with_pair(body)


DEEP = b'{"x":' * 60 + b"1" + b"}" * 60
WRONG = {
    "not JSON": b"{",
    "no object": b"[1]",
    "not a number": b'{"x": NaN}',
    "infinite": b'{"x": 1e999}',
    "digits without end": b'{"x": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"x": "\xff"}',
    "brackets without end": b'{"x": ' + b"[" * 100_000,
    "deep": b'{"x": ' + b"[" * 500 + b"]" * 500 + b"}",
    "a name too many": b'{"x": 1, "y": 2}',
    "the wrong type": b'{"x": "1"}',
    "truth for a number": b'{"x": true}',
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("is_explicit", [False, True])
def test_wrong_arguments_are_refused_and_the_sandbox_goes_on(case: str, is_explicit: bool) -> None:
    async def body(pair: Pair) -> None:
        seen: list[int] = []

        def function(x: int) -> None:
            seen.append(x)

        schema = {"properties": {"x": {"type": "integer"}}} if is_explicit else None
        attempt = begin(pair, ToolBox({"t": Tool(function, schema=schema)}))
        pair.say(call(1, WRONG[case]), call(2, b'{"x": 3}'))
        answers = {each["call"]: each for each in await heard(pair, 2)}
        assert (answers[1]["ok"], answers[1]["said"]["kind"]) == (False, "invalid")
        assert (answers[2]["ok"], seen, pair.violations) == (True, [3], [])
        attempt.cancel()
        await asyncio.wait_for(attempt.wait(), 20)

    with_pair(body)


def test_recursive_schema_does_not_run_away() -> None:
    node = {
        "properties": {"x": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {"type": ["object", "integer"], "properties": {"x": {"$ref": "#/$defs/node"}}}
        },
    }

    async def body(pair: Pair) -> None:
        attempt = begin(pair, ToolBox({"t": Tool(lambda x: 1, schema=node)}))
        pair.say(call(1, DEEP), call(2, DEEP.replace(b'{"x":', b'{"x":' * 30)))
        answers = {each["call"]: each for each in await heard(pair, 2)}
        assert (answers[1]["ok"], answers[2]["ok"]) == (True, False)
        attempt.cancel()
        await asyncio.wait_for(attempt.wait(), 20)

    with_pair(body)


def test_answers_that_init_does_not_take_stop_its_calls() -> None:
    """What waits for init is bounded: calls keep their places, and one too many is hostile."""

    async def body(pair: Pair) -> None:
        async def much() -> str:
            return "x" * 1_000_000

        box = ToolBox({"t": Tool(much, max_bytes=1 << 20)}, at_once=2)
        attempt = begin(pair, box)
        number = queued = 0
        while not pair.violations:
            number += 1
            pair.say(call(number))
            await clock().settle()
            queued = max(queued, pair.channel._out.nbytes)
        assert 2 <= number <= 10
        assert queued <= 4 << 20
        await attempt.wait()

    with_pair(body, loop_clock.run)


@pytest.mark.parametrize("end", ["guest gone", "cancelled", "dropped"])
def test_function_is_cancelled_with_its_call(end: str) -> None:
    async def body(pair: Pair) -> None:
        never, events = _Never(), list[Any]()
        attempt = begin(pair, ToolBox({"t": never}), events.append)
        pair.say(call(1))
        await asyncio.wait_for(never.has_begun.wait(), 20)
        if end == "dropped":
            pair.say(frame({"ev": "call_dropped", "id": 1, "call": 1}))
            await asyncio.wait_for(never.was_cancelled.wait(), 20)
        if end == "guest gone":
            pair.guest.close()
        else:
            attempt.cancel()
        await asyncio.wait_for(attempt.wait(), 20)
        assert never.cancelled == 1
        assert [event.kind for event in events] == ["tool_call", "end"]
        assert events[0].data["decision"] == "cancelled"

    with_pair(body)


def test_thread_that_hangs_keeps_its_seat_and_nothing_else() -> None:
    async def body(pair: Pair) -> None:
        release, begun = threading.Event(), list[int]()

        def hang() -> None:
            begun.append(1)
            release.wait(20)

        box = ToolBox({"t": Tool(hang, timeout_s=0.1)}, at_once=2)
        attempt = begin(pair, box)
        kinds = []
        for number in range(1, 6):
            pair.say(call(number))
            kinds.append((await heard(pair, 1))[0]["said"]["kind"])
        assert kinds == ["timeout"] * 5
        assert len(begun) == 2
        release.set()
        attempt.cancel()
        await asyncio.wait_for(attempt.wait(), 20)

    with_pair(body)


def test_lost_channel_is_not_an_error_of_the_call() -> None:
    async def body(pair: Pair) -> None:
        attempt = begin(pair, ToolBox({"t": lambda: 1}))
        pair.say(call(1))
        pair.channel.close()
        outcome = await asyncio.wait_for(attempt.wait(), 20)
        assert outcome.verdict.value == "sandbox_error"
        with pytest.raises(ChannelLost):
            pair.channel.open("x", cast("Any", None), frozenset(), {})

    with_pair(body)
