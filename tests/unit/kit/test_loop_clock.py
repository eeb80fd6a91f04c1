"""The loop whose time a test moves: nothing passes by itself, and nothing due is left out."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from kit import loop_clock
from kit.loop_clock import clock


def test_time_passes_only_when_it_is_moved() -> None:
    async def body() -> None:
        begun = clock().time()
        late = asyncio.ensure_future(asyncio.sleep(0.001))
        await clock().settle()
        await asyncio.to_thread(time.thread_time)  # real work takes none of it
        assert (late.done(), clock().time()) == (False, begun)
        await clock().advance(0.001)
        assert late.done()

    loop_clock.run(body())


def test_each_timer_has_its_own_moment_and_what_it_begins_runs_then() -> None:
    async def body() -> None:
        begun, rounds = clock().time(), list[float]()

        async def work() -> None:
            while True:
                await asyncio.sleep(10)
                rounds.append(clock().time() - begun)

        working = asyncio.ensure_future(work())
        await clock().advance(35)
        assert rounds == pytest.approx([10, 20, 30])
        working.cancel()
        await clock().advance(100)
        assert len(rounds) == 3

    loop_clock.run(body())


def test_a_deadline_is_met_when_time_is_moved_past_it() -> None:
    async def body() -> None:
        waiting = asyncio.ensure_future(asyncio.wait_for(asyncio.Event().wait(), 60))
        await clock().advance(59)
        assert not waiting.done()
        await clock().advance(1)
        with pytest.raises(TimeoutError):
            await waiting

    loop_clock.run(body())


@pytest.mark.parametrize("turns", [0, 1, 5, 50])
def test_what_lies_in_a_pipe_is_read_and_what_comes_of_it_is_followed(turns: int) -> None:
    async def body() -> None:
        read_fd, write_fd = os.pipe()
        told = list[bytes]()

        async def follow() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            told.append(b"followed")

        def hear() -> None:
            told.append(os.read(read_fd, 9))
            clock().remove_reader(read_fd)
            following.append(asyncio.ensure_future(follow()))

        following = list[asyncio.Task[None]]()
        os.write(write_fd, b"word")
        clock().call_later(5, lambda: clock().add_reader(read_fd, hear))
        await clock().advance(4)
        assert told == []
        await clock().advance(1)
        assert told == [b"word", b"followed"]
        os.close(read_fd)
        os.close(write_fd)

    loop_clock.run(body())


def test_a_loop_that_never_rests_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_clock, "_MOST_TURNS", 100)

    async def body() -> None:
        async def turn() -> None:
            while True:  # noqa: ASYNC110 - what is refused
                await asyncio.sleep(0)

        turning = asyncio.ensure_future(turn())
        with pytest.raises(AssertionError, match="not at rest"):
            await clock().settle()
        turning.cancel()

    loop_clock.run(body())
