"""Waiting for a guest: its word, its silence, and a caller that leaves meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from cellwall.runtimes.channel.replies import ChannelLost
from kit import loop_clock
from kit.guest.channel_pair import Pair, frame, with_pair
from kit.loop_clock import clock

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
        waiting = asyncio.ensure_future(pair.channel.wait_ready(10))
        await clock().advance(9.9)
        assert not waiting.done()
        await clock().advance(0.2)
        with pytest.raises(ChannelLost, match="no ready event"):
            await waiting

    with_pair(body, loop_clock.run)


def test_a_guest_that_is_asked_early_has_begun_nothing_before_it_is_ready() -> None:
    async def body(pair: Pair) -> None:
        pair.channel.expect_ready(20)
        assert pair.channel.is_unready
        pair.say(READY)
        pair.channel.poll()
        assert not pair.channel.is_unready

    with_pair(body)


def test_a_guest_that_ended_before_it_was_ready_stays_unready() -> None:
    async def body(pair: Pair) -> None:
        pair.channel.expect_ready(20)
        pair.guest.close()
        pair.channel.poll()
        assert pair.channel.is_unready
        assert not pair.channel.is_open

    with_pair(body)


def test_a_guest_that_has_been_ready_need_not_be_expected() -> None:
    async def body(pair: Pair) -> None:
        pair.say(READY)
        await pair.channel.wait_ready(5)
        pair.channel.expect_ready(0)
        await clock().advance(60)
        assert pair.channel.is_open

    with_pair(body, loop_clock.run)


@pytest.mark.parametrize("said", [b"", READY])
def test_silence_of_a_guest_that_was_asked_early_has_an_end(said: bytes) -> None:
    """Its word counts also when it has come and nobody has read it yet."""

    async def body(pair: Pair) -> None:
        ended = asyncio.Event()
        pair.channel.on_end(ended.set)
        pair.channel.pause()
        pair.say(said)
        pair.channel.expect_ready(10)
        await clock().advance(9.9)
        assert not ended.is_set()
        await clock().advance(50)
        assert ended.is_set() is not bool(said)
        assert said or "no ready event within 10 s" in str(pair.channel.lost)

    with_pair(body, loop_clock.run)
