"""Terminals: commands that a person, or a program in a person's place, talks to.

Made by `commands.start(…, pty=(rows, columns))`. A terminal here is not a screen: bytes pass
unchanged, and the program that displays them interprets them. They are hostile bytes; a terminal
emulator that obeys them obeys the sandboxed code. The invariant: an unread terminal stops its
program and never fills the engine's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.attempt import Attempt, Work
from cellwall.engine.attempts.recorder import Recorder
from cellwall.engine.parts.commands import Command
from cellwall.model.unicode import utf8
from cellwall.runtimes.channel.replies import TERMINAL, ChannelLost
from cellwall.runtimes.channel.streams import WINDOW_BYTES, ByteStream
from cellwall.surface.shared.arguments import check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.verdicts import Cause
    from cellwall.surface.shared.tasks import Tasks

_SLACK_BYTES = 64 * 1024
"""Number of bytes accepted beyond the window: at its end a terminal sends its last output without
waiting for the reader."""
_MOST_CELLS = 65_535
_TERM = "xterm-256color"


class TerminalRecorder(Recorder):
    """Recorder of a terminal's frames: it passes bytes to their reader and keeps none."""

    expected = TERMINAL

    def __init__(self, live: ClaimedSandbox, work: Work) -> None:
        super().__init__(work.limits, None)
        self.stream = ByteStream(live.channel, slack_bytes=_SLACK_BYTES)
        self._live = live

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Handle one frame. Output beyond the granted window is a `FrameError`."""
        if kind == "stdout":
            self._live.touch()
            self.stream.feed(body)
            self.stdout.kept_bytes += len(body)  # counted for the usage, not kept
        elif kind == "credit":
            self.stream.credit(int(header["bytes"]))
        else:
            super().on_frame(kind, header, body)

    def settle(self, cause: Cause, detail: str = "") -> None:
        """End the recording and both directions of the stream."""
        super().settle(cause, detail)
        self.stream.end()
        self.stream.end_input()


class Terminal(Command):
    """A command on a terminal: bytes out by `read` or `async for`, bytes in by `write`."""

    has_terminal = True

    def __init__(
        self, live: ClaimedSandbox, attempt: Attempt, argv: Sequence[str], tasks: Tasks
    ) -> None:
        super().__init__(live, attempt, argv, tasks)
        recorder = attempt.recorder
        assert isinstance(recorder, TerminalRecorder)  # noqa: S101 - for the type checker only
        self._stream = recorder.stream
        self._stream.number = self.id
        self._size: Mapping[str, int] = {}

    async def read(self, most_bytes: int = WINDOW_BYTES) -> bytes:
        """Return the output since the last read, at least one byte; `b""` after the end."""
        return await self._stream.read(most_bytes)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the output until the command ends."""
        while data := await self.read():
            yield data

    async def write(self, data: str | bytes) -> None:
        """Type `data`; wait while the program reads no input. Ignored after the command's end."""
        raw = utf8(data, "stdin", escapes=True) if isinstance(data, str) else data
        self._live.knock()
        with contextlib.suppress(ChannelLost):  # a lost channel ends the terminal, too
            await self._stream.write(raw)

    async def send_stdin(self, data: str | bytes) -> None:
        """Do what `write` does."""
        await self.write(data)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size; the kernel tells the program by SIGWINCH."""
        size = self._size = check_size((rows, cols), _MOST_CELLS)
        self._live.knock()
        channel = self._live.channel
        with contextlib.suppress(ChannelLost):
            await channel.wait_writable(0)
            # Dragging a window's corner causes hundreds of requests; only the last one matters.
            if size is self._size and self.is_running:
                channel.send({"op": "resize", "id": self.id, **size})

    async def close(self) -> None:
        """Hang up: kill the terminal's processes and discard unread output."""
        if self.is_running:
            await self.kill()
        self._stream.discard()


def on_terminal(live: ClaimedSandbox, work: Work, pty: tuple[int, int]) -> Attempt:
    """Start `work`, a `start` request, on a terminal. Raises UsageError."""
    fields = {
        **work.fields,
        "pty": check_size(pty, _MOST_CELLS),
        "window": WINDOW_BYTES,
        "env": {"TERM": _TERM, **work.fields["env"]},
    }
    work = replace(work, fields=fields)
    return Attempt(live, work, None, TerminalRecorder(live, work))
