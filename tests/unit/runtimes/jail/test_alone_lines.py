"""What a program alone says, in turns: on a clock that the tests move."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any, cast

import pytest

from cellwall.guest.channel.frames import encode
from cellwall.guest.channel.loop import READ
from cellwall.runtimes.channel.loop_share import TURN_S
from cellwall.runtimes.jail.single_program import connections as alone_lines
from cellwall.runtimes.jail.single_program.connections import (
    ContextConnection,
    ContextListener,
    Turn,
)
from cellwall.runtimes.jail.single_program.lazy_loop import LateLoop

_FRAME = encode({"ev": "display", "kind": "display"}, b"{}")
_SOON_S = 5


def test_turn_of_a_line_ends_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    ours, theirs = socket.socketpair()
    heard = 0

    def on_frame(_header: dict[str, Any], _body: bytes) -> None:
        nonlocal heard, now
        heard += 1
        now += TURN_S / 3.5

    connection = ContextConnection(ours)
    theirs.sendall(_FRAME * 10)
    for expected in (4, 8, 10):
        assert connection.read(Turn(), on_frame)
        assert heard == expected
        assert connection.is_behind is (expected < 10)
    connection.close()
    theirs.close()


def test_small_frames_count_for_more_than_they_are() -> None:
    heard = []

    class Silent:
        def forget(self, _fd: int) -> None:
            """Nothing is watched."""

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    context_listener = ContextListener(
        cast("Any", Silent()), listener, lambda *_: heard.append(1), lambda: None
    )
    most = alone_lines._MOST_BYTES // alone_lines._LEAST_BYTES
    for _ in range(most + 10):
        context_listener._said({}, b"")
    assert len(heard) == most


def test_nobody_is_heard_while_the_account_is_overdrawn() -> None:
    """The control: the same descriptor is heard at once before much was said."""

    async def play() -> None:
        late = LateLoop(asyncio.get_running_loop())
        reading, writing = os.pipe()
        told = asyncio.Event()

        def on_readable(_events: int) -> None:
            os.read(reading, 100)
            told.set()

        late.watch(reading, READ, on_readable)
        try:
            await compared(late, told, writing)
        finally:
            late.close()
            os.close(reading)
            os.close(writing)

    async def compared(late: LateLoop, told: asyncio.Event, writing: int) -> None:
        os.write(writing, b"little")
        await asyncio.wait_for(told.wait(), _SOON_S)
        told.clear()
        late.spend(1.0, 1_000_000, 0, 0.0)
        assert late.pause_s > 5  # a second's words, a tenth of the time
        os.write(writing, b"more")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(told.wait(), 0.1)

    asyncio.run(play())
