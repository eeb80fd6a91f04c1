"""Watches against a guest that lies: real sockets, no guest."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.engine.parts.watches import _STEP_BYTES, MOST_WATCHES, Watch
from cellwall.model.errors import CapacityError, FileError, SandboxBroken
from cellwall.model.files import Change
from cellwall.runtimes.channel.streams import WINDOW_BYTES
from kit import loop_clock
from kit.guest.channel_pair import Pair, frame, with_pair
from kit.loop_clock import clock

STARTED = b'{"change":"watching","path":"."}\n'
CANCELLED = {"ev": "fail", "id": 1, "code": "cancelled", "message": ""}


def watch_of(pair: Pair, opened: set[Watch] | None = None) -> Watch:
    async def enter() -> None:
        """It runs."""

    live = SimpleNamespace(
        channel=pair.channel, enter=enter, check_alive=lambda: None, kill=lambda _: None
    )
    return Watch(cast("Any", live), "src", True, set() if opened is None else opened)


def data(body: bytes) -> bytes:
    return frame({"ev": "data", "id": 1}, body)


async def started(pair: Pair) -> Watch:
    watch = watch_of(pair)
    starting = asyncio.ensure_future(watch.start())
    await asyncio.sleep(0)
    pair.say(data(STARTED))
    await asyncio.wait_for(starting, 5)
    return watch


def test_lines_are_changes_however_they_are_cut() -> None:
    async def body(pair: Pair) -> None:
        watch = await started(pair)
        lines = b'{"change":"created","path":"a","directory":true}\n{"change":"moved","path":"a",'
        pair.say(data(lines), data(b'"to":"b"}\n'), frame({"ev": "reply", "id": 1}))
        assert [change async for change in watch] == [
            Change("created", "a", None, True),
            Change("moved", "a", "b", False),
        ]

    with_pair(body)


BAD = {
    "not JSON": b"{]\n",
    "no object": b"[]\n",
    "no change": b"{}\n",
    "unknown change": b'{"change":"exploded","path":"a"}\n',
    "change that is a list": b'{"change":[],"path":"a"}\n',
    "the start once more": STARTED,
    "path that is a number": b'{"change":"created","path":1}\n',
    "target that is a number": b'{"change":"moved","path":"a","to":1}\n',
    "depth": b"[" * 60_000 + b"\n",
    "no end of line": b"x" * (WINDOW_BYTES - 1000),
}


@pytest.mark.parametrize("case", BAD)
def test_line_that_is_no_change_is_our_fault_and_said(case: str) -> None:
    async def body(pair: Pair) -> None:
        watch = await started(pair)
        pair.guest.setblocking(False)
        sending = asyncio.ensure_future(
            asyncio.get_running_loop().sock_sendall(pair.guest, data(BAD[case]))
        )
        with pytest.raises(SandboxBroken):
            await asyncio.wait_for(anext(watch), 5)
        await sending

    with_pair(body)


@pytest.mark.parametrize("first", [b"\n", b'{"change":"created","path":"a"}\n', b"null\n"])
def test_watch_that_does_not_say_that_it_began_is_none(first: bytes) -> None:
    async def body(pair: Pair) -> None:
        starting = asyncio.ensure_future(watch_of(pair).start())
        await asyncio.sleep(0)
        pair.say(data(first))
        with pytest.raises(SandboxBroken):
            await asyncio.wait_for(starting, 5)

    with_pair(body)


@pytest.mark.parametrize(
    ("code", "error"),
    [("not_found", FileError), ("busy", CapacityError), ("\x1b[2J", SandboxBroken)],
)
def test_refusal_is_translated(code: str, error: type[Exception]) -> None:
    async def body(pair: Pair) -> None:
        opened: set[Watch] = set()
        starting = asyncio.ensure_future(watch_of(pair, opened).start())
        await asyncio.sleep(0)
        pair.say(frame({"ev": "fail", "id": 1, "code": code, "message": "m"}))
        with pytest.raises(error):
            await asyncio.wait_for(starting, 5)
        assert not opened

    with_pair(body)


def test_closed_watch_counts_until_the_guest_lets_go() -> None:
    async def body(pair: Pair) -> None:
        opened: set[Watch] = set()
        watches = [watch_of(pair, opened) for _ in range(MOST_WATCHES)]
        for number, watch in enumerate(watches, 1):
            starting = asyncio.ensure_future(watch.start())
            await asyncio.sleep(0)
            pair.say(frame({"ev": "data", "id": number}, STARTED))
            await asyncio.wait_for(starting, 5)
            await watch.aclose()
        with pytest.raises(CapacityError):
            await watch_of(pair, opened).start()
        pair.say(data(STARTED), frame(CANCELLED))
        pair.channel.poll()
        assert len(opened) == MOST_WATCHES - 1
        assert pair.violations == []

    with_pair(body)


def test_closing_wakes_who_waits_and_the_end_is_quiet() -> None:
    async def body(pair: Pair) -> None:
        watch = await started(pair)
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0)
        await watch.aclose()
        assert await asyncio.wait_for(waiting, 5) is None
        never_started = watch_of(pair)
        await never_started.aclose()
        assert [change async for change in never_started] == []

    with_pair(body)


def test_watch_ends_with_the_sandbox() -> None:
    async def body(pair: Pair) -> None:
        watch = await started(pair)
        pair.guest.close()
        assert await asyncio.wait_for(anext(watch, None), 5) is None

    with_pair(body)


def test_lines_are_taken_down_and_their_reader_waits() -> None:
    """A directory in which much happens is its sandbox's to pay for, whoever reads of it."""

    async def body(pair: Pair) -> None:
        watch = await started(pair)
        found, moments = list[Change](), list[float]()

        async def read() -> None:
            async for change in watch:
                found.append(change)
                moments.append(clock().time())

        line = b'{"change":"created","path":"a"}\n'
        pair.say(data(line * 1000), frame({"ev": "reply", "id": 1}))
        reading = asyncio.ensure_future(read())
        await clock().settle()
        assert len(found) < 1000
        await clock().advance(60)
        await reading
        assert found == [Change("created", "a", None, False)] * 1000
        late = Counter(moment for moment in moments if moment > moments[0])
        assert late.total() > 0
        assert max(late.values()) <= _STEP_BYTES // len(line)  # a step at a time

    with_pair(body, loop_clock.run)
