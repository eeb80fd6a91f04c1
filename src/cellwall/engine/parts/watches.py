"""Watches: change notifications of a sandbox's directory, read from outside.

Made by `Files.watch`. The notifications are hostile text, one JSON object a line; they are parsed
only as fast as the caller reads, so a program that changes a million files costs the engine one
window. A caller that reads too slowly gets an `overflow` for the events that the guest's kernel had
no room for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from cellwall.engine.attempts.file_errors import file_error
from cellwall.model.errors import CapacityError, SandboxBroken
from cellwall.model.files import CHANGE_KINDS, Change
from cellwall.runtimes.channel.frames import FrameError, strict_json
from cellwall.runtimes.channel.replies import WATCH, ChannelLost, GuestRefused
from cellwall.runtimes.channel.streams import WINDOW_BYTES, ByteStream
from cellwall.surface.shared.closing import AsyncClosing

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox

MOST_WATCHES = 8
"""Maximum number of concurrent watches per sandbox, including those being closed; init has the same
bound."""
_LINE_CAP_BYTES = 64 * 1024
_STEP_BYTES = 4 * 1024
"""Number of bytes (some fifty lines) parsed before other tasks get the event loop."""
_STARTED = "watching"


class Watch(AsyncClosing):
    """Iterator over changes: `async with files.watch("src") as watch`, then `async for`.

    In `async with`, watching starts before the block begins; otherwise with the first `anext`. The
    iteration ends when the watch is closed, the directory is gone, or the sandbox ends.
    """

    def __init__(
        self, live: ClaimedSandbox, path: str, recursive: bool, opened: set[Watch]
    ) -> None:
        """Join `opened`, the sandbox's watches, from the start of this watch to its end."""
        self.path = path
        self._live = live
        self._recursive = recursive
        self._opened = opened
        self._stream = ByteStream(live.channel)
        self._hearing = live.channel.hearing
        self._starting: asyncio.Lock = asyncio.Lock()
        self._is_started = False
        self._is_over = False
        self._rest = b""
        self._lines: deque[bytes] = deque()

    # -- frames ----------------------------------------------------------------------------

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Handle one frame. Data beyond the granted window is a `FrameError`."""
        if kind == "data":
            self._stream.feed(body)
        elif kind == "fail":
            refusal = GuestRefused(str(header["code"])[:40], str(header["message"])[:2000])
            self._end(refusal)
        else:
            self._end(None)

    def on_lost(self, error: ChannelLost) -> None:
        """End the watch because the sandbox has ended."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._stream.end(error)
        self._opened.discard(self)

    # -- for the owner ---------------------------------------------------------------------

    async def start(self) -> None:
        """Start watching: every change after the return is reported. Idempotent.

        Raises FileError, CapacityError, SandboxUnavailable.
        """
        async with self._starting:
            if self._is_started:
                return
            await self._live.enter()
            if len(self._opened) >= MOST_WATCHES:
                raise _too_many(self.path)
            self._is_started = True
            self._opened.add(self)
            channel = self._live.channel  # another one than before if it was hibernated meanwhile
            self._stream, self._hearing = ByteStream(channel), channel.hearing
            fields = {"path": self.path, "recursive": self._recursive, "window": WINDOW_BYTES}
            self._stream.number = self._live.channel.open("watch", self, WATCH, fields)
            try:
                first = await self._next_line()
            except asyncio.CancelledError:
                await self.aclose()
                raise
            if first is None:
                self._live.check_alive()
            elif first.get("change") != _STARTED:
                raise self._broken()

    def __aiter__(self) -> Watch:
        """Return the watch itself, an iterator over changes."""
        return self

    async def __anext__(self) -> Change:
        """Return the next change. Raises SandboxBroken if the guest sent anything else."""
        await self.start()
        line = await self._next_line()
        if line is None:
            raise StopAsyncIteration
        return self._change(line)

    async def aclose(self) -> None:
        """Stop watching and end the iteration of a waiting caller. Idempotent."""
        self._stream.discard()
        self._lines.clear()
        if not self._is_started:
            self._is_started = self._is_over = True
        elif not self._is_over:
            header = {"op": "signal", "id": self._stream.number, "signal": 9}
            self._live.channel.send(header)

    async def __aenter__(self) -> Self:
        """Start watching."""
        await self.start()
        return self

    # -- lines -----------------------------------------------------------------------------

    async def _next_line(self) -> dict[str, Any] | None:
        while not self._lines:
            if len(self._rest) > _LINE_CAP_BYTES:
                raise self._broken()
            try:
                data = await self._stream.read(_STEP_BYTES)
            except GuestRefused as refusal:
                raise _watch_error(refusal, self.path) from None
            if not data:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)
            await asyncio.sleep(self._hearing.spend_lines(time.perf_counter(), len(lines)))
        try:
            line = strict_json(self._lines.popleft())
        except FrameError:
            line = None
        if not isinstance(line, dict):
            raise self._broken()
        return line

    def _change(self, line: dict[str, Any]) -> Change:
        kind, path, target = line.get("change"), line.get("path"), line.get("to")
        known = CHANGE_KINDS.get(kind) if isinstance(kind, str) else None
        if known is None or not isinstance(path, str) or not isinstance(target, (str, type(None))):
            raise self._broken()
        return Change(known, path, target, line.get("directory") is True)

    def _broken(self) -> SandboxBroken:
        return SandboxBroken(f"watch {self.path!r}: bad answer", remedy="close the sandbox")


def _too_many(path: str) -> CapacityError:
    message = f"watch {path!r}: {MOST_WATCHES} watches of this sandbox are open"
    return CapacityError(message, retry_after_s=1, remedy="close one")


def _watch_error(refusal: GuestRefused, path: str) -> Exception:
    if refusal.reason == "busy":
        return CapacityError(f"watch {path!r}: {refusal}", retry_after_s=1)
    return file_error(refusal, f"watch {path!r}")
