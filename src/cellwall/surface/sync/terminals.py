"""The terminals of a synchronous sandbox; the asynchronous `terminals` say what each call does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.surface.sync.commands import SyncCommand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellwall.surface.sync.loop_thread import LoopThread
    from cellwall.surface.sync.protocols import AnySandbox, AnyTerminal


class SyncTerminal(SyncCommand):
    """A command on a terminal: bytes out by `read` or iteration, bytes in by `write`."""

    def __init__(self, thread: LoopThread[Any], sandbox: AnySandbox, terminal: AnyTerminal) -> None:
        """`SyncCommands.start` with `pty` makes this object."""
        super().__init__(thread, sandbox, terminal)
        self._terminal = terminal

    def read(self, most_bytes: int = 262_144) -> bytes:
        """Return at least one byte of new output; `b""` after the command's end."""
        return self._do(lambda: self._terminal.read(most_bytes))

    def __iter__(self) -> Iterator[bytes]:
        """Yield output until the command ends."""
        while data := self.read():
            yield data

    def write(self, data: str | bytes) -> None:
        """Type `data`; wait while the program takes no input. Ignored after the command's end."""
        self._do(lambda: self._terminal.write(data))

    def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size; the program learns it by SIGWINCH."""
        self._do(lambda: self._terminal.resize(rows, cols))

    def close(self) -> None:
        """Hang up: kill the command's processes and drop unread output."""
        self._do(self._terminal.close)
