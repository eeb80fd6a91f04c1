"""Standing by: a channel that is quiet, and between two frames, while its guest is written down.

The guest's part is `guest.channel.standing_by`. The invariant: between `stand_by` and `wake`
neither side sends a byte, so that an image has no half frame in it, and a copy's channel begins
with `wake`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.channel.replies import REPLY, Reply, Single

if TYPE_CHECKING:
    from cellwall.runtimes.channel.channel import GuestChannel

_PATIENCE_S = 60.0


async def stand_by(channel: GuestChannel, epoch: str) -> Reply:
    """Have the guest stand by. Raises GuestRefused, SandboxBroken, ChannelLost."""
    await channel.wait_writable(0)
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    number = channel.open("stand_by", Single(future, None), REPLY, {"epoch": epoch})
    channel.hold()
    try:
        return await _answer(future, "stand by")
    except BaseException:
        channel.let_go(lambda: None)
        raise
    finally:
        channel.forget(number)


async def wake(channel: GuestChannel, epoch: str, **fields: object) -> Reply:
    """Have a guest that stands by go on; then send what waited meanwhile. Raises as `stand_by`."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    asked = {**fields, "epoch": epoch}
    number = channel.let_go(lambda: channel.open("wake", Single(future, None), REPLY, asked))
    try:
        return await _answer(future, "go on")
    finally:
        channel.forget(number)


async def _answer(future: asyncio.Future[Reply], what: str) -> Reply:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await future
    except TimeoutError:
        raise SandboxBroken(
            f"copy the sandbox: its guest did not {what} within {_PATIENCE_S:g} s",
            remedy="what runs in it answers for its guest; make the session again",
        ) from None
