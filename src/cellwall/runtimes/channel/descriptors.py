"""Descriptors that go to a guest with a request: what comes before the first one.

Only over a unix socket of this kernel. A guest reads its channel without them until it is told to
expect some, because that is cheaper.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.runtimes.channel.channel import GuestChannel


async def prepare(channel: GuestChannel, op: str, ask: Callable[[str], Awaitable[object]]) -> None:
    """Have the guest take descriptors with the next frame, which will be the request `op`.

    `ask` sends a request and waits for its reply. Raises GuestRefused if the channel carries no
    descriptors, and ChannelLost.
    """
    if not channel.carries_files:
        raise GuestRefused("unsupported", f"{op}: this channel carries no descriptors")
    if not channel.is_for_files:
        await ask("expect_files")
        channel.is_for_files = True
    await channel.wait_writable(0)
