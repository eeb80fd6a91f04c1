"""A real channel over a socket pair, and the end of it that a hostile guest would hold.

For tests of what the host makes of frames. No guest runs: the test is the guest.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from cellwall.runtimes.channel.channel import GuestChannel


def frame(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack(">II", len(text), len(body)) + text + body


class Pair:
    """A channel and the hostile end of its socket."""

    def __init__(self) -> None:
        ours, self.guest = socket.socketpair()
        self.violations: list[str] = []
        self.channel = GuestChannel(ours, on_violation=self.violations.append)

    def say(self, *frames: bytes) -> None:
        self.guest.sendall(b"".join(frames))


def with_pair(
    body: Callable[[Pair], Awaitable[None]],
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """Play `body`; `run` is `kit.loop_clock.run` where time has to pass or has to stand still."""

    async def main() -> None:
        pair = Pair()
        try:
            await body(pair)
        finally:
            pair.channel.close()
            pair.guest.close()

    run(main())
