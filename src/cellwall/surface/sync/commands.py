"""The commands of a synchronous sandbox; the asynchronous `commands` say what each call does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, overload

from cellwall.surface.shared.callbacks import OnEvent, OnText, by_stream
from cellwall.surface.sync.part import Part
from cellwall.surface.sync.protocols import AnyTerminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.model.execution import CommandResult
    from cellwall.surface.sync.loop_thread import LoopThread
    from cellwall.surface.sync.protocols import AnyCommand, AnySandbox
    from cellwall.surface.sync.terminals import SyncTerminal


class SyncCommand(Part):
    """A command in the background."""

    def __init__(self, thread: LoopThread[Any], sandbox: AnySandbox, command: AnyCommand) -> None:
        """`SyncCommands.start` makes this object."""
        super().__init__(thread, sandbox)
        self._command = command

    @property
    def id(self) -> Any:  # noqa: ANN401 - a number in the engine, a text over HTTP
        """The id of the command."""
        return self._command.id

    @property
    def pid(self) -> int | None:
        """The command's pid inside, as the sandbox reports it."""
        return self._command.pid

    @property
    def is_running(self) -> bool:
        """Whether the command has not ended yet."""
        return self._command.is_running

    def wait(self) -> CommandResult:
        """Wait for the command's end and return its result."""
        return self._do(self._command.wait)

    def send_stdin(self, data: str | bytes) -> None:
        """Write to the command's standard input."""
        self._do(lambda: self._command.send_stdin(data))

    def close_stdin(self) -> None:
        """End the command's standard input."""
        self._do(self._command.close_stdin)

    def kill(self, signal: int = 9) -> None:
        """Signal the command's whole process tree."""
        self._do(lambda: self._command.kill(signal))


class SyncCommands(Part):
    """The commands of one sandbox."""

    def run(
        self,
        command: str | Sequence[str],
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
        **options: Any,  # noqa: ANN401 - of the asynchronous `run`
    ) -> CommandResult:
        """Run a command (a string goes to a shell) and return its result."""
        deliver = by_stream(on_stdout, on_stderr, on_event)
        return self._thread.call(
            lambda _subject, put: self._inner.commands.run(
                command, on_event=None if deliver is None else put, **options
            ),
            deliver,
        )

    async def arun(self, command: str | Sequence[str], **options: Any) -> CommandResult:  # noqa: ANN401 - of run
        """Do what `run` does for a caller on an event loop, which goes on meanwhile.

        Callbacks run on the loop's thread. Cancelling the call cancels the command.
        """
        return await self._ado(lambda: self._inner.commands.run(command, **options))

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
        """Start a command in the background; its callbacks run on the loop's thread.

        With `pty`, (rows, columns), the command runs on a terminal.
        """
        if pty is not None:
            options["pty"] = pty
        return self._wrap(self._do(partial(self._inner.commands.start, command, **options)))

    def _wrap(self, command: AnyCommand) -> SyncCommand:
        if not isinstance(command, AnyTerminal):
            return SyncCommand(self._thread, self._inner, command)
        from cellwall.surface.sync.terminals import SyncTerminal

        return SyncTerminal(self._thread, self._inner, command)

    def list(self) -> list[SyncCommand]:
        """Return the background commands that run."""
        found = self._do(self._inner.commands.list)
        return [self._wrap(command) for command in found]

    def get(self, command_id: int | str) -> SyncCommand:
        """Return the background command of that id."""
        return self._wrap(self._do(lambda: self._inner.commands.get(command_id)))

    def attach(self, command_id: int | str, pty: tuple[int, int] | None = None) -> SyncTerminal:
        """Return a terminal that runs, with `pty` as its new size."""
        from cellwall.surface.sync.terminals import SyncTerminal

        found = self._do(lambda: self._inner.commands.attach(command_id, pty))
        return SyncTerminal(self._thread, self._inner, found)

    def kill(self, command_id: int | str, signal: int = 9) -> None:
        """Signal a background command's process tree."""
        self._do(lambda: self._inner.commands.kill(command_id, signal))

    def send_stdin(self, command_id: int | str, data: str | bytes) -> None:
        """Write to a background command's standard input."""
        self._do(lambda: self._inner.commands.send_stdin(command_id, data))
