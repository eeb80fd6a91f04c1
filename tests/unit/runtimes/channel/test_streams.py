"""The host's end of a stream against a guest that lies: real sockets, no guest."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.channel.streams import WINDOW_BYTES, ByteStream
from kit.guest.channel_pair import Pair, frame, with_pair

EXPECTED = frozenset({"stdout", "credit", "done"})


class Taker:
    """A listener that only knows bytes and grants."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.lost: ChannelLost | None = None
        self.ended = asyncio.Event()

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        if kind == "stdout":
            self.stream.feed(body)
        elif kind == "credit":
            self.stream.credit(header["bytes"])

    def on_lost(self, error: ChannelLost) -> None:
        self.lost = error
        self.stream.end(error)
        self.stream.end_input()
        self.ended.set()


def opened(pair: Pair) -> tuple[ByteStream, Taker]:
    pair.guest.setblocking(False)
    stream = ByteStream(pair.channel)
    taker = Taker(stream)
    stream.number = pair.channel.open("start", taker, EXPECTED, {})
    take_frames(pair)
    return stream, taker


def take_frames(pair: Pair) -> list[tuple[dict[str, Any], bytes]]:
    """Return what the host has written since."""
    data, found = b"", []
    try:
        while piece := pair.guest.recv(1 << 20):
            data += piece
    except BlockingIOError:
        pass
    while data:
        head, body = struct.unpack_from(">II", data)
        found.append((json.loads(data[8 : 8 + head]), data[8 + head : 8 + head + body]))
        data = data[8 + head + body :]
    return found


async def say(pair: Pair, data: bytes) -> None:
    """Say more than a socket holds at once."""
    await asyncio.get_running_loop().sock_sendall(pair.guest, data)


async def said_by_host(pair: Pair) -> tuple[dict[str, Any], bytes]:
    """Wait for one frame of the host's."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < 8 or len(data) < 8 + sum(struct.unpack_from(">II", data)):
        data += await asyncio.wait_for(loop.sock_recv(pair.guest, 1 << 20), 5)
    head = struct.unpack_from(">I", data)[0]
    return json.loads(data[8 : 8 + head]), data[8 + head :]


def output(size: int) -> bytes:
    return frame({"ev": "stdout", "id": 1}, bytes(size))


HOSTILE = {
    "one byte more than granted": output(WINDOW_BYTES) + output(1),
    "empty frames, which cost nothing and never end": output(0),
    "a grant of nothing sensible": frame({"ev": "credit", "id": 1, "bytes": -1}),
    "a grant that is true": frame({"ev": "credit", "id": 1, "bytes": True}),
    "a grant without a number": frame({"ev": "credit", "id": 1}),
    "an event of other streams": frame({"ev": "display", "id": 1, "kind": "result"}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_stream_that_breaks_the_rules_ends_the_channel(case: str) -> None:
    async def body(pair: Pair) -> None:
        _, taker = opened(pair)
        await say(pair, HOSTILE[case])
        await asyncio.wait_for(taker.ended.wait(), 5)
        assert taker.lost is not None
        assert taker.lost.is_hostile
        assert len(pair.violations) == 1

    with_pair(body)


def test_whole_window_may_come_and_is_granted_again_when_read() -> None:
    async def body(pair: Pair) -> None:
        stream, _ = opened(pair)
        for _ in range(8):
            saying = asyncio.ensure_future(say(pair, output(WINDOW_BYTES)))
            size = 0
            while size < WINDOW_BYTES:
                size += len(await asyncio.wait_for(stream.read(), 5))
            await saying
        granted = sum(h["bytes"] for h, _ in take_frames(pair) if h["op"] == "credit")
        assert granted == 8 * WINDOW_BYTES
        assert pair.violations == []

    with_pair(body)


def test_unread_stream_grants_nothing() -> None:
    async def body(pair: Pair) -> None:
        stream, _ = opened(pair)
        await say(pair, output(WINDOW_BYTES))
        pair.channel.poll()
        assert len(stream._buffer) == WINDOW_BYTES
        assert take_frames(pair) == []

    with_pair(body)


def test_write_sends_what_was_granted_and_waits() -> None:
    async def body(pair: Pair) -> None:
        stream, _ = opened(pair)
        writing = asyncio.ensure_future(stream.write(b"abcdef"))
        await asyncio.sleep(0)
        assert take_frames(pair) == []
        for count, piece in ((2, b"ab"), (3, b"cde"), (1 << 40, b"f")):
            pair.say(frame({"ev": "credit", "id": 1, "bytes": count}))
            header, data = await said_by_host(pair)
            assert (header["op"], data) == ("stdin", piece)
        assert await asyncio.wait_for(writing, 5)

    with_pair(body)


def test_write_learns_that_nobody_takes_it() -> None:
    async def body(pair: Pair) -> None:
        stream, _ = opened(pair)
        writing = asyncio.ensure_future(stream.write(b"abcdef"))
        await asyncio.sleep(0)
        stream.end_input()
        assert not await asyncio.wait_for(writing, 5)

    with_pair(body)


def test_end_comes_after_what_is_left() -> None:
    async def body(pair: Pair) -> None:
        stream, _ = opened(pair)
        stream.feed(b"rest")
        stream.end(ValueError("the first end counts"))
        stream.end()
        assert await stream.read() == b"rest"
        with pytest.raises(ValueError, match="first"):
            await stream.read()

    with_pair(body)
