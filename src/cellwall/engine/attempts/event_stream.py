"""The events of one run as an iterator: a slow reader pauses the guest, not the host.

Used by `sandbox`, whose `stream` it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.model.execution import Event, Execution
    from cellwall.runtimes.channel.channel import GuestChannel
    from cellwall.surface.shared.callbacks import OnEvent

_HIGH = 256


async def events_of(
    live: ClaimedSandbox, run: Callable[[OnEvent], Coroutine[Any, Any, Execution]]
) -> AsyncIterator[Event]:
    """Yield the events of `run`, which gets what takes them; the last one is `end`."""
    await live.enter()
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    paused: GuestChannel | None = None
    is_left = False

    def on_event(event: Event) -> None:
        nonlocal paused
        if is_left:
            return  # the reader that would call `resume` has left
        events.put_nowait(event)
        if events.qsize() > _HIGH and paused is None:
            paused = live.channel  # another one than at the start if it was hibernated before
            paused.pause()

    running = asyncio.ensure_future(run(on_event))
    running.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            if paused is not None and events.qsize() < _HIGH // 2:
                paused.resume()
                paused = None
            yield event
        await running
    finally:
        is_left = True
        if paused is not None:
            paused.resume()
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
