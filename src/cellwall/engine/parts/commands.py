"""Commands: processes started in a sandbox, in the foreground or in the background.

Used by `sandbox`. Output is bounded like that of an execution. The invariant: a command is known
to us by our own number, never by a pid the inside told us.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from cellwall.engine.attempts.attempt import Attempt, Work
from cellwall.engine.parts.files import file_error
from cellwall.engine.policy.arguments import (
    SOURCE_CAP_BYTES,
    check_env,
    check_path,
    check_signal,
    check_stdin,
    check_words,
)
from cellwall.model.errors import NotFound, UsageError
from cellwall.model.execution import CommandResult
from cellwall.model.unicode import utf8
from cellwall.runtimes.channel.replies import GuestRefused
from cellwall.surface.shared.callbacks import OnEvent, OnText, by_stream

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import Live
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.engine.parts.terminals import Terminal
    from cellwall.surface.shared.tasks import Tasks

_SHELL = ("/bin/bash", "-c")
_ARGUMENT_BYTES = 100_000
"""Of a script that is an argument; of a longer one its argument says where it is read."""
_BACKGROUND_S = 86_400.0
"""Wall limit of a background command that names none: the sandbox's own life ends it earlier."""


def script_of(line: str) -> tuple[Sequence[str], bytes]:
    """Return how a shell is started for `line`, and what its descriptor 3 reads.

    A kernel takes an argument of 128 KiB at most; `eval` of what was read instead leaves `$0`,
    standard input and the script's descriptors as `-c` has them.
    """
    script = utf8(line, "command", escapes=True)
    if len(script) <= _ARGUMENT_BYTES:
        return (*_SHELL, line), b""
    if len(script) > SOURCE_CAP_BYTES:
        raise UsageError(
            f"command: {len(script)} bytes is above {SOURCE_CAP_BYTES}",
            remedy="put data into a file or stdin",
        )
    if "\0" in line:
        raise UsageError("command: it contains a NUL character", remedy="remove it")
    return (*_SHELL, 'eval "$(</dev/fd/3)" 3<&-'), script


class Command:
    """A command in the background."""

    def __init__(self, live: Live, attempt: Attempt, argv: Sequence[str], tasks: Tasks) -> None:
        """Made by `Commands`; supervised by the engine from now on."""
        self._live = live
        self.attempt = attempt
        self.argv = tuple(argv)
        self.id = attempt.recorder.number
        self._result: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        tasks.spawn(self._supervise())

    async def _supervise(self) -> None:
        try:
            outcome = await self.attempt.wait()
        except GuestRefused as refusal:
            self._result.set_exception(file_error(refusal, f"start {self.argv[0]!r}"))
            self._result.exception()  # `wait` raises it; nobody has to
        except asyncio.CancelledError:
            self._result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - a callback's, or ours: who waits gets it
            self._result.set_exception(error)
            self._result.exception()
        else:
            recorder = self.attempt.recorder
            self._result.set_result(
                CommandResult(recorder.stdout.text, recorder.stderr.text, outcome)
            )

    @property
    def pid(self) -> int | None:
        """Its pid inside, as the inside says."""
        return self.attempt.recorder.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._result.done()

    def on_ended(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, soon after it has ended."""
        self._result.add_done_callback(lambda _: callback())

    async def wait(self) -> CommandResult:
        """Return how it ended."""
        return await asyncio.shield(self._result)

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input."""
        checked = check_stdin(data) or b""
        self._live.touch()
        channel = self._live.channel
        for start in range(0, len(checked), 1 << 20):
            channel.send({"op": "stdin", "id": self.id}, checked[start : start + (1 << 20)])
            with self._live.speaking():
                await channel.wait_writable()

    async def close_stdin(self) -> None:
        """End its standard input."""
        self._live.channel.send({"op": "stdin_close", "id": self.id})

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Signal its whole process tree."""
        number = check_signal(signal)
        self._live.channel.send({"op": "signal", "id": self.id, "signal": number})


class Commands:
    """The commands of one sandbox."""

    def __init__(self, live: Live, tasks: Tasks) -> None:
        """Belongs to one `AsyncSandbox`."""
        self._live = live
        self._tasks = tasks
        self._background: dict[int, Command] = {}

    async def run(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        merge_stderr: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
    ) -> CommandResult:
        """Run a command (a string goes to a shell) and return how it ended.

        With `merge_stderr` what it writes to either comes in `stdout`, in the order of writing.
        """
        argv, work = self._work(command, cwd, env, timeout, merge_stderr=merge_stderr)
        if stdin is not None:
            fields = {**work.fields, "stdin": "stream"}
            work = replace(work, fields=fields, stdin=check_stdin(stdin))
        attempt = Attempt(self._live, work, by_stream(on_stdout, on_stderr, on_event))
        try:
            outcome = await attempt.wait()
        except GuestRefused as refusal:
            raise _refused(refusal, argv) from None
        return CommandResult(attempt.recorder.stdout.text, attempt.recorder.stderr.text, outcome)

    @overload
    async def start(
        self,
        command: str | Sequence[str],
        *,
        pty: tuple[int, int],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Terminal: ...
    @overload
    async def start(
        self,
        command: str | Sequence[str],
        *,
        pty: None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        merge_stderr: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
    ) -> Command: ...
    async def start(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        command: str | Sequence[str],
        *,
        pty: tuple[int, int] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        merge_stderr: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
    ) -> Command:
        """Start a command in the background; with `pty`, (rows, columns), on a terminal.

        With `merge_stderr` what it writes to either is stdout's, in the order of writing. A
        terminal has one output anyway, which is not text and has no limit: read it from the
        `Terminal` returned.
        """
        argv, work = self._work(
            command, cwd, env, timeout or _BACKGROUND_S, merge_stderr=merge_stderr
        )
        work = replace(work, fields={**work.fields, "stdin": "stream"})
        deliver = by_stream(on_stdout, on_stderr, on_event)
        if pty is None:
            attempt = Attempt(self._live, work, deliver)
            started = Command(self._live, attempt, argv, self._tasks)
        else:
            from cellwall.engine.parts.terminals import Terminal, on_terminal

            if deliver is not None:
                raise UsageError("pty: callbacks get text", remedy="read the terminal's bytes")
            attempt = on_terminal(self._live, work, pty)
            started = Terminal(self._live, attempt, argv, self._tasks)
        try:
            await _started(attempt.recorder, argv)
        except asyncio.CancelledError:
            attempt.cancel()  # nobody has it, so nobody could end it
            raise
        self._keep(started)
        return started

    def _keep(self, command: Command) -> None:
        """Know it while it runs: nobody has to ask, and it holds its output."""
        self._background[command.id] = command
        command.on_ended(partial(self._background.pop, command.id, None))

    async def list(self) -> list[Command]:
        """Return the background commands that run."""
        return [command for command in self._background.values() if command.is_running]

    async def get(self, command_id: int) -> Command:
        """Return the running background command of that id."""
        for command in await self.list():
            if command.id == command_id:
                return command
        raise NotFound(f"command {command_id}: none runs under that id", remedy="list commands")

    async def kill(self, command_id: int, signal: int = signals.SIGKILL) -> None:
        """Signal a background command's process tree."""
        await (await self.get(command_id)).kill(signal)

    async def send_stdin(self, command_id: int, data: str | bytes) -> None:
        """Write to a background command's standard input."""
        await (await self.get(command_id)).send_stdin(data)

    def _work(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        timeout_s: float | None,
        *,
        merge_stderr: bool,
    ) -> tuple[tuple[str, ...], Work]:
        self._live.check_alive()
        argv, script = script_of(command) if isinstance(command, str) else (command, b"")
        argv = check_words(argv, "command")
        if not argv or not argv[-1]:
            raise UsageError("command: it is empty", remedy="name a program")
        limits = self._live.spec.limits
        if timeout_s is not None:
            limits = limits.with_changes({"wall_s": timeout_s})
        if timeout_s == _BACKGROUND_S:
            limits = limits.with_changes({"cpu_s": _BACKGROUND_S})
        fields: dict[str, Any] = {
            "argv": argv,
            "env": check_env(env or {}),
            "stdin": "none",
            "pty": None,
            "output_bytes": limits.output_bytes,
            "merge_stderr": merge_stderr,
        }
        if cwd is not None:
            fields["cwd"] = check_path(cwd)
        return argv, Work("start", fields, limits, body=script, stop=self._stop)

    def _stop(self, number: int) -> None:
        channel = self._live.channel
        channel.send({"op": "signal", "id": number, "signal": int(signals.SIGKILL)})


async def _started(recorder: Recorder, argv: Sequence[str]) -> None:
    """Return when it has started, or ended at once. Raises NotFound, FileError."""
    recorder.started = asyncio.get_running_loop().create_future()
    await recorder.started
    if recorder.refused is not None:
        raise _refused(recorder.refused, argv)


def _refused(refusal: GuestRefused, argv: Sequence[str]) -> Exception:
    if refusal.reason == "not_found":
        return NotFound(f"command {argv[0]!r}: {refusal}", remedy="name a program the sandbox has")
    return file_error(refusal, f"start {argv[0]!r}")
