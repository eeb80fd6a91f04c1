"""Waiting for a guest: its word, its silence, and a caller that leaves meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from channel_pair import Pair, frame, with_pair

from cellwall.runtimes.channel import ChannelLost

READY = frame({"ev": "ready", "protocol": 1, "python": "3"})


def test_answer_is_returned() -> None:
    async def body(pair: Pair) -> None:
        pair.say(READY)
        assert (await pair.channel.wait_ready(5))["python"] == "3"
        assert pair.violations == []

    with_pair(body)


def test_cancelling_in_the_moment_of_the_answer_is_not_lost() -> None:
    async def body(pair: Pair) -> None:
        waiting = asyncio.ensure_future(pair.channel.wait_ready(5))
        await asyncio.sleep(0)
        pair.say(READY)
        pair.channel.poll()  # the answer is there, and nobody has seen it yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with_pair(body)


def test_silence_has_an_end() -> None:
    async def body(pair: Pair) -> None:
        with pytest.raises(ChannelLost, match="no ready event"):
            await pair.channel.wait_ready(0.01)

    with_pair(body)
