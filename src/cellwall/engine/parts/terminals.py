"""Terminals: commands that a person, or what plays one, talks to.

Made by `commands.start(…, pty=(rows, columns))`. Not a screen: bytes pass as they are, and what
they mean is for whoever shows them. They are hostile bytes; a terminal that obeys them obeys the
inside. The invariant: an unread terminal stops its program, it never fills our memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.attempt import Attempt, Work
from cellwall.engine.attempts.recorder import Recorder
from cellwall.engine.parts.commands import Command
from cellwall.model.errors import UsageError
from cellwall.model.unicode import utf8
from cellwall.runtimes.channel.replies import TERMINAL, ChannelLost
from cellwall.runtimes.channel.streams import WINDOW_BYTES, ByteStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.engine.attempts.claimed_sandbox import Live
    from cellwall.engine.attempts.verdicts import Cause
    from cellwall.surface.shared.tasks import Tasks

_SLACK_BYTES = 64 * 1024
"""At its end a terminal's last output comes without waiting for our reader."""
_MOST_CELLS = 65_535
_TERM = "xterm-256color"


class TerminalRecorder(Recorder):
    """Takes a terminal's frames: bytes go on to their reader, nothing is kept."""

    expected = TERMINAL

    def __init__(self, live: Live, work: Work) -> None:
        """No event is made of output."""
        super().__init__(work.limits, None)
        self.stream = ByteStream(live.channel, slack_bytes=_SLACK_BYTES)
        self._live = live

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Take one frame; more output than was granted is a `FrameError`."""
        if kind == "stdout":
            self._live.touch()
            self.stream.feed(body)
            self.stdout.kept_bytes += len(body)  # counted for the usage, kept nowhere
        elif kind == "credit":
            self.stream.credit(int(header["bytes"]))
        else:
            super().on_frame(kind, header, body)

    def settle(self, cause: Cause, detail: str = "") -> None:
        """End the recording and both directions."""
        super().settle(cause, detail)
        self.stream.end()
        self.stream.end_input()


class Terminal(Command):
    """A command on a terminal: bytes out by `read` or `async for`, bytes in by `write`."""

    def __init__(self, live: Live, attempt: Attempt, argv: Sequence[str], tasks: Tasks) -> None:
        """Made by `Commands`."""
        super().__init__(live, attempt, argv, tasks)
        recorder = attempt.recorder
        assert isinstance(recorder, TerminalRecorder)  # noqa: S101 - for the type checker only
        self._stream = recorder.stream
        self._stream.number = self.id
        self._size: Mapping[str, int] = {}

    async def read(self, most_bytes: int = WINDOW_BYTES) -> bytes:
        """Return what it printed since, at least one byte; `b""` after its end."""
        return await self._stream.read(most_bytes)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what it prints until it ends."""
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def write(self, data: str | bytes) -> None:
        """Type `data`; waits while the program takes no input. Ignored after its end."""
        raw = utf8(data, "stdin", escapes=True) if isinstance(data, str) else data
        self._live.touch()
        with contextlib.suppress(ChannelLost):  # that is an end, too
            await self._stream.write(raw)

    async def send_stdin(self, data: str | bytes) -> None:
        """Do what `write` does."""
        await self.write(data)

    async def resize(self, rows: int, cols: int) -> None:
        """Give it another size; the program learns it by SIGWINCH."""
        size = self._size = check_size((rows, cols))
        self._live.touch()
        channel = self._live.channel
        with contextlib.suppress(ChannelLost):
            await channel.wait_writable(0)
            # Whoever drags a corner asks for hundreds; only the last one matters.
            if size is self._size and self.is_running:
                channel.send({"op": "resize", "id": self.id, **size})

    async def close(self) -> None:
        """Hang up: kill its processes and forget what was not read."""
        if self.is_running:
            await self.kill()
        self._stream.discard()


def on_terminal(live: Live, work: Work, pty: tuple[int, int]) -> Attempt:
    """Begin `work`, a `start`, on a terminal. Raises UsageError."""
    fields = {
        **work.fields,
        "pty": check_size(pty),
        "window": WINDOW_BYTES,
        "env": {"TERM": _TERM, **work.fields["env"]},
    }
    work = replace(work, fields=fields)
    return Attempt(live, work, None, TerminalRecorder(live, work))


def check_size(pty: tuple[int, int]) -> Mapping[str, int]:
    """Return a terminal's size as the guest wants it."""
    fits = isinstance(pty, (tuple, list)) and len(pty) == 2
    if not fits or not all(type(count) is int and 1 <= count <= _MOST_CELLS for count in pty):
        raise UsageError(
            f"pty: {pty!r} is not a size", remedy=f"give (rows, columns), each 1 to {_MOST_CELLS}"
        )
    return {"rows": pty[0], "cols": pty[1]}
