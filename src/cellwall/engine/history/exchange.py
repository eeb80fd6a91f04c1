"""Talk with the guest about a whole work area: its description in, the steps of a restoration out.

Used by `history`. At most a few MiB wait in this process, whatever either side does; what blocks is
done in a thread, and a caller that leaves waits for that thread: it writes to the pack.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.engine.history.receiving import Receiver
from cellwall.guest.channel.frames import MAX_EVENT_BODY_BYTES

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.history.manifest import Manifest
    from cellwall.runtimes.channel.replies import Reply

_TOP = "."
_MOST_WAITING_BYTES = 4 << 20
T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Return what a blocking call returns; one that is cancelled waits for its end first."""
    done = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        done.exception()  # no other code retrieves the exception
        raise


class _Inflow:
    """Chunks on their way in; the channel pauses while too many wait."""

    def __init__(self, live: ClaimedSandbox) -> None:
        self._channel = live.channel
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._is_paused = self._is_ended = False

    def on_chunk(self, data: bytes) -> None:
        self._waiting.append(data)
        self._bytes += len(data)
        self._arrived.set()
        if self._bytes > _MOST_WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self._channel.pause()

    def end(self) -> None:
        self._is_ended = True
        self._arrived.set()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._channel.resume()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._waiting or not self._is_ended:
            await self._arrived.wait()
            self._arrived.clear()
            data, self._waiting, self._bytes = b"".join(self._waiting), [], 0
            self.resume()
            if data:
                yield data


async def scan(
    live: ClaimedSandbox,
    receiver: Receiver,
    most_files: int,
    known: bytes | None,
    on_kept: Callable[[], None],
) -> Manifest:
    """Return the work area as the guest describes it.

    `known` are digests of contents that are not to be sent, None if none is. `on_kept` is called
    after each piece. Raises GuestRefused, FrameError, ChannelLost, what both of them raise.
    """
    inflow = _Inflow(live)
    fields = {"path": _TOP, "files": most_files, "content": known is not None}
    async with _transfer(live, "tree_scan", fields, inflow) as (number, reply):
        await _send(live, number, reply, _cut(known or b""))
        async for data in inflow:
            live.touch()
            await in_thread(partial(receiver.feed, data))
            on_kept()
        await reply
    return receiver.finish()


async def restore(live: ClaimedSandbox, steps: Iterable[bytes]) -> dict[str, Any]:
    """Have the guest follow the steps; return its reply. Raises as `scan` does."""
    async with _transfer(live, "tree_restore", {"path": _TOP}, None) as (number, reply):
        await _send(live, number, reply, steps)
        return dict((await reply).header)


@contextlib.asynccontextmanager
async def _transfer(
    live: ClaimedSandbox, op: str, fields: dict[str, Any], inflow: _Inflow | None
) -> AsyncIterator[tuple[int, asyncio.Future[Reply]]]:
    on_chunk = None if inflow is None else inflow.on_chunk
    number, reply = live.channel.open_transfer(op, fields, on_chunk)
    if inflow is not None:
        reply.add_done_callback(lambda _: inflow.end())
    try:
        yield number, reply
    finally:
        live.channel.forget(number)
        if not reply.done():
            live.channel.send({"op": "signal", "id": number, "signal": 9})
        if inflow is not None:
            inflow.resume()
        if reply.done() and not reply.cancelled():
            reply.exception()  # if no other code retrieved it


async def _send(
    live: ClaimedSandbox, number: int, reply: asyncio.Future[Reply], pieces: Iterable[bytes]
) -> None:
    remaining = iter(pieces)
    while (data := await in_thread(lambda: _joined(remaining))) and not reply.done():
        await _send_one(live, number, data)
    live.channel.send({"op": "chunk_end", "id": number})


def _joined(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces in one, a frame's worth."""
    found, size = [], 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= MAX_EVENT_BODY_BYTES:
            break
    return b"".join(found)


async def _send_one(live: ClaimedSandbox, number: int, data: bytes) -> None:
    live.channel.send({"op": "chunk", "id": number}, data)
    await live.channel.wait_writable()
    live.touch()


def _cut(data: bytes) -> Iterable[bytes]:
    step = MAX_EVENT_BODY_BYTES
    return (data[at : at + step] for at in range(0, len(data), step))
