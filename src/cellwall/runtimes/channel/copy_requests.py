"""Requests that serve a copy of the whole sandbox: with descriptors, and no use of it.

Used by the runtime's part that copies, beside `stand_by`. A hibernation gives a sandbox's processes
up only if nothing else was asked of it meanwhile (`GuestChannel.asked`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cellwall.runtimes.channel import descriptors
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import (
    REPLY,
    REPLY_WITH_CHUNKS,
    Reply,
    Single,
)

if TYPE_CHECKING:
    from cellwall.runtimes.channel.channel import GuestChannel


Answer = Callable[[str, bytes], None]
"""Sends an operation and its body, unless its request has ended."""
Look = Callable[[bytes, Answer], None]


async def request(channel: GuestChannel, op: str) -> Reply:
    """Send a request and wait for the one reply. Raises GuestRefused, ChannelLost."""
    channel.copy_requests += 1
    return await channel.request(op)


async def request_with_files(
    channel: GuestChannel,
    op: str,
    files: Sequence[int],
    body: bytes = b"",
    *,
    told: Look | None = None,
    patience_s: float = 0.0,
    **fields: object,
) -> Reply:
    """Send a request with descriptors, which the guest gets; wait for the one reply.

    The descriptors are this function's: it closes them once they are sent. If it is cancelled, the
    guest is told to give up. `told` is called with a chunk that comes before the reply, one at
    most, and with what sends an operation and a body for it under the same id. A
    cancellation waits up to `patience_s` for the guest to have given up. Raises GuestRefused,
    ChannelLost.
    """
    number, waiting = 0, [told]

    def on_chunk(chunk: bytes) -> None:
        look = waiting.pop() if waiting else None
        if look is None:
            raise FrameError("a chunk that was not asked for")
        look(chunk, answer)

    def answer(op: str, body: bytes) -> None:
        if not future.done():
            channel.send({"op": op, "id": number}, body)

    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    try:
        await descriptors.prepare(channel, op, partial(request, channel))
        expected = REPLY if told is None else REPLY_WITH_CHUNKS
        listener = Single(future, on_chunk)
        number = channel.open_with_files(op, files, listener, expected, fields, body)
        channel.copy_requests += 1
    finally:
        for each in files:
            os.close(each)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        channel.send({"op": "signal", "id": number, "signal": 9})
        if patience_s and not future.done():
            await asyncio.wait([future], timeout=patience_s)
        raise
    finally:
        channel.forget(number)
        if not future.cancel():
            future.exception()  # it was heard
