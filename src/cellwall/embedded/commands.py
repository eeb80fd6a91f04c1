"""The commands of a synchronous sandbox; the engine's `commands` say what each call does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, overload

from cellwall.embedded.part import Part
from cellwall.engine.commands import OnText, by_stream
from cellwall.engine.terminals import Terminal
from cellwall.runtimes.streams import WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cellwall.embedded import Runner
    from cellwall.engine.commands import Command, CommandResult
    from cellwall.engine.sandbox import AsyncSandbox


class SyncCommand(Part):
    """A command in the background."""

    def __init__(self, runner: Runner, sandbox: AsyncSandbox, command: Command) -> None:
        """Made by `SyncCommands.start`."""
        super().__init__(runner, sandbox)
        self._command = command

    @property
    def id(self) -> int:
        """Our number for it."""
        return self._command.id

    @property
    def pid(self) -> int | None:
        """Its pid inside, as the inside says."""
        return self._command.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._command.is_running

    def wait(self) -> CommandResult:
        """Return how it ended."""
        return self._do(self._command.wait)

    def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input."""
        self._do(lambda: self._command.send_stdin(data))

    def close_stdin(self) -> None:
        """End its standard input."""
        self._do(self._command.close_stdin)

    def kill(self, signal: int = 9) -> None:
        """Signal its whole process tree."""
        self._do(lambda: self._command.kill(signal))


class SyncTerminal(SyncCommand):
    """A command on a terminal: bytes out by `read` or iteration, bytes in by `write`."""

    def __init__(self, runner: Runner, sandbox: AsyncSandbox, terminal: Terminal) -> None:
        """Made by `SyncCommands.start` with `pty`."""
        super().__init__(runner, sandbox, terminal)
        self._terminal = terminal

    def read(self, most_bytes: int = WINDOW_BYTES) -> bytes:
        """Return what it printed since, at least one byte; `b""` after its end."""
        return self._do(lambda: self._terminal.read(most_bytes))

    def __iter__(self) -> Iterator[bytes]:
        """Yield what it prints until it ends."""
        while data := self.read():
            yield data

    def write(self, data: str | bytes) -> None:
        """Type `data`; waits while the program takes no input. Ignored after its end."""
        self._do(lambda: self._terminal.write(data))

    def resize(self, rows: int, cols: int) -> None:
        """Give it another size; the program learns it by SIGWINCH."""
        self._do(lambda: self._terminal.resize(rows, cols))

    def close(self) -> None:
        """Hang up: kill its processes and forget what was not read."""
        self._do(self._terminal.close)


class SyncCommands(Part):
    """The commands of one sandbox."""

    def run(
        self,
        command: str | Sequence[str],
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        **options: Any,  # noqa: ANN401 - of Commands.run
    ) -> CommandResult:
        """Run a command (a string goes to a shell) and return how it ended."""
        deliver = by_stream(on_stdout, on_stderr)
        return self._runner.call(
            lambda _engine, put: self._inner.commands.run(
                command, on_event=None if deliver is None else put, **options
            ),
            deliver,
        )

    @overload
    def start(
        self,
        command: str | Sequence[str],
        *,
        pty: tuple[int, int],
        **options: Any,  # noqa: ANN401
    ) -> SyncTerminal: ...
    @overload
    def start(
        self,
        command: str | Sequence[str],
        *,
        pty: None = None,
        **options: Any,  # noqa: ANN401
    ) -> SyncCommand: ...
    def start(
        self,
        command: str | Sequence[str],
        *,
        pty: tuple[int, int] | None = None,
        **options: Any,
    ) -> SyncCommand:
        """Start a command in the background; its callbacks run on the engine's thread.

        With `pty`, (rows, columns), it runs on a terminal.
        """
        if pty is not None:
            options["pty"] = pty
        return self._wrap(self._do(partial(self._inner.commands.start, command, **options)))

    def _wrap(self, command: Command) -> SyncCommand:
        if isinstance(command, Terminal):
            return SyncTerminal(self._runner, self._inner, command)
        return SyncCommand(self._runner, self._inner, command)

    def list(self) -> list[SyncCommand]:
        """Return the background commands that run."""
        found = self._do(self._inner.commands.list)
        return [self._wrap(command) for command in found]

    def kill(self, command_id: int, signal: int = 9) -> None:
        """Signal a background command's process tree."""
        self._do(lambda: self._inner.commands.kill(command_id, signal))

    def send_stdin(self, command_id: int, data: str | bytes) -> None:
        """Write to a background command's standard input."""
        self._do(lambda: self._inner.commands.send_stdin(command_id, data))
