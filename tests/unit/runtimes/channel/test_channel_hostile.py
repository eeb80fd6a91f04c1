"""What arrives on the guest channel was written by hostile code; real sockets, no guest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.runtimes.channel.channel import BODY_CAP_BYTES, HEADER_CAP_BYTES, SEND_BODY_CAP_BYTES
from cellwall.runtimes.channel.copy_requests import request_with_files
from cellwall.runtimes.channel.frames import FrameError, strict_json
from cellwall.runtimes.channel.replies import RUN, ChannelLost, GuestRefused
from kit.guest.channel_pair import Pair, frame, with_pair

DONE: dict[str, Any] = {
    "ev": "done",
    "id": 1,
    "exit_code": 0,
    "signal": None,
    "alive": False,
    "raised": False,
    "cut": {"stdout": 0},
    "rusage": {"user_us": 1},
}


async def answer_to_a_request(pair: Pair, *frames: bytes) -> object:
    asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
    await asyncio.sleep(0)
    pair.say(*frames)
    try:
        return await asyncio.wait_for(asking, 5)
    except (ChannelLost, GuestRefused) as error:
        return error


HOSTILE: list[tuple[str, bytes]] = [
    ("header above the cap", struct.pack(">II", HEADER_CAP_BYTES + 1, 0)),
    ("header of many lists", frame({"ev": "reply", "id": 1, "x": [[]] * 8000})),
    ("header of many objects", frame({"ev": "reply", "id": 1, "x": [{}] * 8000})),
    ("header of many numbers", frame({"ev": "reply", "id": 1, "x": [0] * 9000})),
    ("header of many names", frame({"ev": "reply", "id": 1, **{f"{n:x}": 0 for n in range(8200)}})),
    ("body above the cap", struct.pack(">II", 2, BODY_CAP_BYTES + 1)),
    ("four GiB", struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFF)),
    ("not JSON", struct.pack(">II", 3, 0) + b"{]}"),
    ("not UTF-8", struct.pack(">II", 2, 0) + b"\xff\xfe"),
    ("not an object", frame([1])),
    ("deep nesting", struct.pack(">II", 60_000, 0) + b"[" * 60_000),
    ("unknown event", frame({"ev": "surprise", "id": 1})),
    ("event that is a list", frame({"ev": [], "id": 1})),
    ("no id", frame({"ev": "reply"})),
    ("negative id", frame({"ev": "reply", "id": -1})),
    ("boolean id", frame({"ev": "reply", "id": True})),
    ("huge id", frame({"ev": "reply", "id": 1 << 70})),
    ("id never given", frame({"ev": "reply", "id": 99})),
    ("event of another kind of request", frame({"ev": "stdout", "id": 1}, b"x")),
    ("done for a file request", frame(DONE)),
    ("cut of another stream", frame({"ev": "cut", "id": 1, "stream": "stdin", "bytes": 1})),
    ("negative cut", frame({"ev": "cut", "id": 1, "stream": "stdout", "bytes": -1})),
    ("fail without a code", frame({"ev": "fail", "id": 1, "message": "m"})),
    ("ready with an id", frame({"ev": "ready", "id": 1, "protocol": 1, "python": "3"})),
    ("NaN", struct.pack(">II", 24, 0) + b'{"ev":"reply","id": NaN}'),
]


@pytest.mark.parametrize(("case", "data"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_violation_ends_the_channel_and_is_reported(case: str, data: bytes) -> None:
    async def body(pair: Pair) -> None:
        answer = await answer_to_a_request(pair, data)
        assert isinstance(answer, ChannelLost), case
        assert answer.is_hostile
        assert len(pair.violations) == 1
        assert not pair.channel.is_open

    with_pair(body)


class Doubting:
    """A listener to which no content is right."""

    def __init__(self) -> None:
        self.lost: list[ChannelLost] = []

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        raise FrameError(f"{kind}: not what it claims")

    def on_lost(self, error: ChannelLost) -> None:
        self.lost.append(error)


@pytest.mark.parametrize("event", [DONE, {"ev": "started", "id": 1, "pid": 7}])
def test_listener_that_refuses_a_frame_learns_of_the_end(event: dict[str, Any]) -> None:
    """Whoever waits for it would otherwise wait for ever, with a final frame too."""

    async def body(pair: Pair) -> None:
        listener = Doubting()
        pair.channel.open("execute", listener, RUN, {})
        pair.say(frame(event))
        ended = asyncio.Event()
        pair.channel.on_end(ended.set)
        await asyncio.wait_for(ended.wait(), 5)
        assert [error.is_hostile for error in listener.lost] == [True]
        assert len(pair.violations) == 1

    with_pair(body)


def test_body_that_no_guest_would_take_is_not_sent() -> None:
    """It would end the sandbox for a breach of the protocol that was ours."""

    async def body(pair: Pair) -> None:
        with pytest.raises(FrameError, match="a body of"):
            pair.channel.send({"op": "x", "id": 1}, bytes(SEND_BODY_CAP_BYTES + 1))
        pair.guest.setblocking(False)
        with pytest.raises(BlockingIOError):
            pair.guest.recv(1)

    with_pair(body)


def test_well_formed_reply_is_delivered() -> None:
    async def body(pair: Pair) -> None:
        answer = await answer_to_a_request(pair, frame({"ev": "reply", "id": 1, "size": 3}, b"abc"))
        assert getattr(answer, "body", None) == b"abc"
        assert pair.violations == []

    with_pair(body)


def test_reply_split_into_single_bytes_is_delivered() -> None:
    async def body(pair: Pair) -> None:
        asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
        await asyncio.sleep(0)
        for byte in frame({"ev": "reply", "id": 1}, b"body"):
            pair.say(bytes([byte]))
            await asyncio.sleep(0)
        assert (await asking).body == b"body"

    with_pair(body)


def test_fail_is_raised_with_its_code() -> None:
    async def body(pair: Pair) -> None:
        failed = frame({"ev": "fail", "id": 1, "code": "not_found", "message": "no x"})
        answer = await answer_to_a_request(pair, failed)
        assert isinstance(answer, GuestRefused)
        assert answer.reason == "not_found"

    with_pair(body)


def test_answer_to_a_forgotten_request_is_ignored() -> None:
    async def body(pair: Pair) -> None:
        asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
        await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        pair.say(frame({"ev": "reply", "id": 1}))
        asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
        await asyncio.sleep(0)
        pair.say(frame({"ev": "reply", "id": 2}, b"second"))
        assert (await asking).body == b"second"

    with_pair(body)


def test_flood_of_stray_frames_is_hostile() -> None:
    async def body(pair: Pair) -> None:
        asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
        await asyncio.sleep(0)
        pair.say(frame({"ev": "reply", "id": 1}))
        await asking
        flood = frame({"ev": "reply", "id": 1}) * 20_000
        writing = asyncio.get_running_loop().run_in_executor(None, _send_ignoring, pair, flood)
        with pytest.raises(ChannelLost):
            await pair.channel.request("file_stat", path="x")
        await writing
        assert len(pair.violations) == 1

    with_pair(body)


async def ask_and_give_up(pair: Pair) -> int:
    """Return the id of a request that nobody waits for any more."""
    number = pair.channel.open("execute", Doubting(), RUN, {})
    pair.channel.forget(number)
    return number


async def send_late(pair: Pair, *, count: int, number: int) -> None:
    """Send late frames, and return once the channel has read them or has ended."""
    late = frame({"ev": "stdout", "id": number}, b"x") * count
    await asyncio.get_running_loop().run_in_executor(None, _send_ignoring, pair, late)
    asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
    await asyncio.sleep(0)
    last = frame({"ev": "reply", "id": number + 1})
    await asyncio.get_running_loop().run_in_executor(None, _send_ignoring, pair, last)
    await asyncio.wait_for(asking, 5)


class Counting:
    """A listener that counts."""

    def __init__(self, most: int = 0) -> None:
        self.count = 0
        self.some, self.all = asyncio.Event(), asyncio.Event()
        self._most = most

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        self.count += 1
        self.some.set()
        if self.count == self._most:
            self.all.set()

    def on_lost(self, error: ChannelLost) -> None:
        self.all.set()


def test_flood_of_frames_is_heard_a_turn_at_a_time() -> None:
    """One read brings six thousand of them. Nothing is lost, and the loop is others' in between."""

    async def body(pair: Pair) -> None:
        listener, loop = Counting(12_000), asyncio.get_running_loop()
        number = pair.channel.open("execute", listener, RUN, {})
        flood = frame({"ev": "stdout", "id": number}, b"x") * 12_000
        sending = loop.run_in_executor(None, _send_ignoring, pair, flood)
        most, longest_s, last = 0, 0.0, time.thread_time()
        before = 0
        while not listener.all.is_set():
            await asyncio.sleep(0)
            most, before = max(most, listener.count - before), listener.count
            now_s = time.thread_time()
            longest_s, last = max(longest_s, now_s - last), now_s
        await sending
        assert listener.count == 12_000
        assert most < 3000
        assert longest_s < 0.1

    with_pair(body)


def test_channel_that_has_overdrawn_its_account_is_not_heard() -> None:
    """A frame takes its account below nothing; the next one waits. Control: before, none did."""

    async def body(pair: Pair) -> None:
        listener, hearing = Counting(3), pair.channel.hearing
        said = frame({"ev": "stdout", "id": pair.channel.open("execute", listener, RUN, {})}, b"x")
        for _ in range(2):
            listener.some.clear()
            pair.say(said)
            await asyncio.wait_for(listener.some.wait(), 5)
        assert hearing.spend(time.perf_counter(), 1.0, 1_000_000, 0) > 5
        pair.say(said)
        await asyncio.wait_for(listener.all.wait(), 5)
        listener.some.clear()
        pair.say(said)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(listener.some.wait(), 0.2)

    with_pair(body)


def test_what_was_said_before_the_end_is_heard_before_it() -> None:
    async def body(pair: Pair) -> None:
        listener = Counting()
        number = pair.channel.open("execute", listener, RUN, {})
        flood = frame({"ev": "stdout", "id": number}, b"x") * 5000
        await asyncio.get_running_loop().run_in_executor(None, _send_ignoring, pair, flood)
        pair.guest.close()
        await asyncio.wait_for(listener.all.wait(), 20)
        assert listener.count == 5000

    with_pair(body)


class Reading(Counting):
    """A listener that decodes bodies, as an execution's does."""

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        strict_json(body)
        super().on_frame(kind, header, body)


def _wide(values: int) -> bytes:
    return json.dumps([[]] * values).encode()


async def _is_deaf(pair: Pair, listener: Counting, number: int) -> bool:
    """Whether a frame that is there already has to wait for more than a turn of others."""
    before = listener.count
    pair.say(frame({"ev": "stdout", "id": number}, b"1"))
    for _ in range(20):
        await asyncio.sleep(0)
    return listener.count == before


@pytest.mark.parametrize(("values", "is_deaf"), [(100, False), (100_000, True)])
def test_body_costs_its_sandbox_what_taking_it_apart_took(values: int, is_deaf: bool) -> None:
    """A list of lists takes some 300 ns for each of its bytes, a text two."""

    async def body(pair: Pair) -> None:
        listener = Reading(2)
        number = pair.channel.open("execute", listener, RUN, {})
        loop = asyncio.get_running_loop()
        said = frame({"ev": "value", "id": number}, _wide(values))
        await loop.run_in_executor(None, _send_ignoring, pair, said)
        await asyncio.wait_for(listener.some.wait(), 20)
        assert await _is_deaf(pair, listener, number) == is_deaf
        await asyncio.wait_for(listener.all.wait(), 20)

    with_pair(body)


@pytest.mark.parametrize(("values", "is_deaf"), [(100, False), (100_000, True)])
def test_answer_that_is_taken_apart_later_costs_its_sandbox(values: int, is_deaf: bool) -> None:
    async def body(pair: Pair) -> None:
        listener = Counting(1)
        number = pair.channel.open("execute", listener, RUN, {})
        assert len(pair.channel.take_apart(_wide(values))) == values
        assert await _is_deaf(pair, listener, number) == is_deaf
        await asyncio.wait_for(listener.all.wait(), 20)

    with_pair(body)


@pytest.mark.parametrize("is_polled", [True, False])
def test_rest_of_a_turn_is_heard_once_it_may_be(is_polled: bool) -> None:
    """Paused in the middle of what one read brought: a poll, or the end of the pause, hears it."""

    async def body(pair: Pair) -> None:
        listener = Counting(2000)
        number = pair.channel.open("execute", listener, RUN, {})
        pair.say(frame({"ev": "stdout", "id": number}, b"x") * 2000)
        await asyncio.wait_for(listener.some.wait(), 20)
        pair.channel.pause()
        count = listener.count
        for _ in range(20):
            await asyncio.sleep(0)
        assert listener.count == count < 2000
        if is_polled:
            pair.channel.poll()
        else:
            pair.channel.resume()
        await asyncio.wait_for(listener.all.wait(), 20)

    with_pair(body)


def test_late_frames_of_a_long_life_are_not_hostile() -> None:
    """Each request that is given up may be followed by some; together they exceed any cap."""

    async def body(pair: Pair) -> None:
        for _ in range(4):
            await send_late(pair, count=6000, number=await ask_and_give_up(pair))
        assert pair.violations == []

    with_pair(body)


def test_refusals_of_a_long_life_are_not_hostile() -> None:
    """Requests without an answer, an interrupt of an idle context say, may each be refused."""

    async def body(pair: Pair) -> None:
        pair.guest.setblocking(False)
        for number in range(1, 10_003):
            pair.channel.tell("interrupt", context="main")
            pair.guest.recv(65536)
            pair.say(frame({"ev": "fail", "id": number, "code": "no_context", "message": "m"}))
            pair.channel.poll()
        assert pair.violations == []

    with_pair(body)


def test_late_frames_without_end_are_hostile() -> None:
    """Other requests that are answered in between do not excuse them."""

    async def body(pair: Pair) -> None:
        number = await ask_and_give_up(pair)
        await send_late(pair, count=6000, number=number)
        with pytest.raises(ChannelLost) as caught:
            await send_late(pair, count=6000, number=number)
        assert caught.value.is_hostile
        assert len(pair.violations) == 1

    with_pair(body)


def _send_ignoring(pair: Pair, data: bytes) -> None:
    with contextlib.suppress(OSError):
        pair.guest.sendall(data)


def test_end_of_file_fails_what_was_asked() -> None:
    async def body(pair: Pair) -> None:
        asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
        await asyncio.sleep(0)
        pair.guest.close()
        with pytest.raises(ChannelLost) as caught:
            await asking
        assert not caught.value.is_hostile
        with pytest.raises(ChannelLost):
            await pair.channel.request("file_stat", path="x")

    with_pair(body)


def test_large_body_arrives_whole_though_the_reader_is_slow() -> None:
    async def body(pair: Pair) -> None:
        content = bytes(range(256)) * 40_000
        asking = asyncio.ensure_future(pair.channel.request("file_write", content, path="x"))
        await asyncio.sleep(0)
        received = bytearray()
        loop = asyncio.get_running_loop()
        pair.guest.setblocking(False)
        while not received.endswith(content[-1024:]) or len(received) < len(content):
            received += await loop.sock_recv(pair.guest, 65536)
        assert bytes(received).endswith(content)
        pair.guest.setblocking(True)
        pair.say(frame({"ev": "reply", "id": 1}))
        await asking

    with_pair(body)


def test_small_frames_to_a_guest_that_does_not_read_cost_their_size() -> None:
    """Grants and keystrokes: as an object each they took ten and twenty times their bytes."""

    async def body(pair: Pair) -> None:
        frames = [
            ({"op": "credit", "id": 1, "bytes": 65536}, b""),
            ({"op": "stdin", "id": 1}, b"x"),
        ]
        expected = b"".join(frame_of_ours(*each) for each in frames) * 10_000
        tracemalloc.start()
        try:
            for _ in range(10_000):
                for header, content in frames:
                    pair.channel.send(header, content)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 1.5 * len(expected)
        assert await drained(pair, len(expected)) == expected

    with_pair(body)


def frame_of_ours(header: dict[str, Any], content: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", len(text), len(content)) + text + content


async def drained(pair: Pair, size: int) -> bytes:
    """Read what the host has to say, from the guest's end."""
    received = bytearray()
    pair.guest.setblocking(False)
    while len(received) < size:
        received += await asyncio.get_running_loop().sock_recv(pair.guest, 65536)
    return bytes(received)


@pytest.mark.parametrize("order", [(10, 70_000, 10), (70_000, 10, 70_000), (4096, 4097, 1)])
def test_queued_bytes_keep_their_order(order: tuple[int, ...]) -> None:
    async def body(pair: Pair) -> None:
        expected = b""
        for number in range(30):
            for size in order:
                content = bytes([number]) * size
                pair.channel.send({"op": "stdin", "id": 1}, content)
                expected += frame_of_ours({"op": "stdin", "id": 1}, content)
        assert await drained(pair, len(expected)) == expected

    with_pair(body)


def test_paused_channel_leaves_data_in_the_kernel() -> None:
    async def body(pair: Pair) -> None:
        asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
        await asyncio.sleep(0)
        pair.channel.pause()
        pair.say(frame({"ev": "reply", "id": 1}))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asking.done()
        pair.channel.resume()
        await asyncio.wait_for(asking, 5)

    with_pair(body)


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_garbage_never_raises_out_of_the_channel(data: bytes) -> None:
    async def body(pair: Pair) -> None:
        asking = asyncio.ensure_future(pair.channel.request("file_stat", path="x"))
        await asyncio.sleep(0)
        pair.say(data)
        pair.guest.shutdown(socket.SHUT_WR)
        with pytest.raises(ChannelLost):
            await asyncio.wait_for(asking, 5)

    with_pair(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
@settings(deadline=None)
def test_strict_json_reads_what_json_writes(value: object) -> None:
    assert strict_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        *(b"NaN", b"[Infinity]", b"1e999", b"\xff", b"{", b"[" * 100_000, b"1" * 5000),
        b"[" * 201 + b"]" * 201,
        b'[{"a": ' * 101 + b"0" + b"}]" * 101,
        b'["' + b"[" * 300 + b'", ' + b"[" * 200 + b"]" * 201,
    ],
)
def test_strict_json_refuses_what_we_could_not_send_on(data: bytes) -> None:
    with pytest.raises(FrameError):
        strict_json(data)


def test_strict_json_takes_two_hundred_levels_and_brackets_in_texts() -> None:
    nested = strict_json(b"[" * 200 + b"]" * 200)
    assert json.dumps(nested) == "[" * 200 + "]" * 200
    assert strict_json(b'"' + b"[{" * 1000 + b'"') == "[{" * 1000
    assert strict_json(b"[" + b"[]," * 1000 + b"0]")[-1] == 0


def test_strict_json_replaces_lone_surrogates() -> None:
    value = strict_json(b'{"a": ["\\ud800", "\\ud83d\\ude00"], "\\udfff": {"\\ud800": 1}}')
    assert json.dumps(value, ensure_ascii=False).encode()
    assert value["a"][1] == "\U0001f600"


def test_guest_is_looked_at_once_for_a_request() -> None:
    """Each look takes the host's time; the guest cannot ask for another one."""

    async def body(pair: Pair) -> None:
        looks: list[bytes] = []

        def look(chunk: bytes, answer: Callable[[str, bytes], None]) -> None:
            looks.append(chunk)
            answer("equal", b"flags")

        loop = asyncio.get_running_loop()
        pair.guest.setblocking(False)
        asking = asyncio.ensure_future(request_with_files(pair.channel, "copy", [], told=look))
        heard = await loop.sock_recv(pair.guest, 4096)
        assert b"expect_files" in heard
        pair.say(frame({"ev": "reply", "id": 1}))
        assert b'"op":"copy"' in await loop.sock_recv(pair.guest, 4096)
        pair.say(frame({"ev": "chunk", "id": 2}, b"17"))
        heard = await loop.sock_recv(pair.guest, 4096)
        assert b'"op":"equal","id":2' in heard
        assert heard.endswith(b"flags")
        pair.say(frame({"ev": "chunk", "id": 2}, b"17"))
        with pytest.raises(ChannelLost) as caught:
            await asyncio.wait_for(asking, 5)
        assert caught.value.is_hostile
        assert looks == [b"17"]

    with_pair(body)
