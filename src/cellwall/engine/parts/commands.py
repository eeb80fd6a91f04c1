"""Commands: processes started in a sandbox, in the foreground or in the background.

Used by `sandbox`. Output has the same bounds as the output of an execution. The invariant: the
engine identifies a command by a number of its own, never by a pid that the guest reported.
"""

from __future__ import annotations

import asyncio
import builtins
import signal as signals
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from cellwall.engine.attempts.attempt import Attempt, Work
from cellwall.engine.attempts.file_errors import file_error
from cellwall.engine.parts.kept_commands import MOST_KEPT, KeptCommand, begin_again, earlier
from cellwall.engine.policy.arguments import (
    SOURCE_CAP_BYTES,
    check_env,
    check_signal,
    check_stdin,
    check_words,
)
from cellwall.model.errors import Conflict, NotFound, UsageError
from cellwall.model.execution import CommandResult
from cellwall.model.unicode import utf8
from cellwall.runtimes.channel.replies import GuestRefused
from cellwall.surface.shared.arguments import check_path
from cellwall.surface.shared.callbacks import OnEvent, OnText, by_stream

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.engine.parts.terminals import Terminal
    from cellwall.surface.shared.tasks import Tasks

_SHELL = ("/bin/bash", "-c")
_ARGUMENT_BYTES = 100_000
"""Maximum size in bytes of a script passed as an argument. A longer script is read from descriptor
3."""
_BACKGROUND_S = 86_400.0
"""Wall limit in seconds of a background command without a timeout. The sandbox's own lifetime ends
the command earlier."""


def script_of(line: str) -> tuple[Sequence[str], bytes]:
    """Return the argv of the shell that runs `line`, and the bytes for its descriptor 3.

    The kernel limits one argument to 128 KiB. A longer script is read from descriptor 3 and passed
    to `eval`, which leaves `$0`, standard input and the script's descriptors as `-c` has them.
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

    has_terminal = False

    def __init__(
        self, live: ClaimedSandbox, attempt: Attempt, argv: Sequence[str], tasks: Tasks
    ) -> None:
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
            # `wait` raises it; mark it as retrieved if `wait` is never called
            self._result.exception()
        except asyncio.CancelledError:
            self._result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - of a callback or ours: `wait` raises it
            self._result.set_exception(error)
            self._result.exception()
        else:
            recorder = self.attempt.recorder
            self._result.set_result(
                CommandResult(recorder.stdout.text, recorder.stderr.text, outcome)
            )

    @property
    def pid(self) -> int | None:
        """Process id inside the sandbox, as reported by the guest."""
        return self.attempt.recorder.pid

    @property
    def is_running(self) -> bool:
        """Report whether the command is still running."""
        return not self._result.done()

    def on_ended(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, soon after the command has ended."""
        self._result.add_done_callback(lambda _: callback())

    async def wait(self) -> CommandResult:
        """Wait for the command to end and return its result."""
        return await asyncio.shield(self._result)

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to the command's standard input."""
        checked = check_stdin(data) or b""
        self._live.knock()
        channel = self._live.channel
        for start in range(0, len(checked), 1 << 20):
            channel.send({"op": "stdin", "id": self.id}, checked[start : start + (1 << 20)])
            with self._live.speaking():
                await channel.wait_writable()

    async def close_stdin(self) -> None:
        """Close the command's standard input."""
        self._live.knock()
        self._live.channel.send({"op": "stdin_close", "id": self.id})

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to the command's whole process tree; a paused sandbox resumes for it."""
        number = check_signal(signal)
        if self._live.pausing is not None:
            self._live.pausing.wake()
        self._live.channel.send({"op": "signal", "id": self.id, "signal": number})


class Commands:
    """The commands of one sandbox."""

    def __init__(self, live: ClaimedSandbox, tasks: Tasks) -> None:
        self._live = live
        self._tasks = tasks
        self._background: dict[int, Command] = {}
        self._notes: dict[int, Mapping[str, Any]] = {}
        """What the owner keeps of each command that goes on in the next server, by number."""
        self.left: tuple[KeptCommand, ...] = ()
        """Commands of an earlier server that still run, until they are taken on or ended."""
        self.taken_on: list[Command] = []
        """Those that were taken on."""
        self.on_changed: Callable[[], bool] = bool
        """Writes anew what is kept of the sandbox; returns whether it is kept."""

    # -- beyond this process ---------------------------------------------------------------

    def keep(self, command: Command, note: Mapping[str, Any]) -> bool:
        """Have a command outlive this process with the sandbox; return whether it does.

        `note` is JSON that its owner will need then.
        """
        if len(self._notes) >= MOST_KEPT or not command.is_running:
            return False
        self._notes[command.id] = note
        if not self.on_changed():
            del self._notes[command.id]
            return False
        command.on_ended(partial(self._forget, command.id))
        return True

    def _forget(self, number: int) -> None:
        if self._notes.pop(number, None) is not None:
            self.on_changed()

    def kept(self) -> builtins.list[KeptCommand]:
        """Return what outlives this process, with what was kept and is not taken on yet."""
        known = self._background
        found = [KeptCommand.of(known[n], note) for n, note in self._notes.items() if n in known]
        return [*(each for each in found if each is not None), *self.left]

    async def take_on(
        self, kept: KeptCommand, on_event: OnEvent | None = None, after: int = 0
    ) -> Command:
        """Go on with a command that an earlier process has started; events follow number `after`.

        Raises NotFound if it ended and init does not know how, SandboxBroken.
        """
        try:
            return await self._take_on(kept, on_event, after)
        finally:
            self.left = tuple(each for each in self.left if each.number != kept.number)

    async def _take_on(self, kept: KeptCommand, on_event: OnEvent | None, after: int) -> Command:
        self._live.check_alive()
        work = kept.work(self._live, Work("start", {}, self._live.spec.limits, stop=self._stop))
        since = await earlier(self._live, kept)
        if kept.has_terminal:
            from cellwall.engine.parts.terminals import Terminal, TerminalRecorder

            attempt = Attempt(
                self._live, work, None, TerminalRecorder(self._live, work), earlier=since
            )
            made: Command = Terminal(self._live, attempt, (), self._tasks)
        else:
            attempt = Attempt(self._live, work, on_event, earlier=since)
            made = Command(self._live, attempt, (), self._tasks)
        attempt.recorder.go_on_after(after)
        try:
            await begin_again(self._live, attempt, kept)
        except BaseException:
            attempt.abandon()
            raise
        self.taken_on.append(made)
        self._keep(made)
        return made

    # -- starting --------------------------------------------------------------------------

    async def run(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        merge_stderr: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
    ) -> CommandResult:
        """Run a command (a string goes to a shell) and return its result.

        With `merge_stderr`, `stdout` holds the output of both streams in the order of writing.
        `user`: a user of the sandbox, by name or number, whom the command's process has; only in a
        sandbox on an image whose own user is root. Raises NotFound, FileError, UsageError.
        """
        await self._live.enter()
        argv, work = self._work(command, cwd, env, timeout, merge_stderr=merge_stderr)
        work = _as_user(work, user)
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
        user: str | None = None,
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
        user: str | None = None,
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
        user: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        merge_stderr: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
    ) -> Command:
        """Start a command in the background; with `pty`, (rows, columns), on a terminal.

        With `merge_stderr`, `stdout` holds the output of both streams in the order of writing. A
        terminal has a single output stream of bytes without a limit: read it from the `Terminal`
        returned.
        """
        await self._live.enter()
        argv, work = self._work(
            command, cwd, env, timeout or _BACKGROUND_S, merge_stderr=merge_stderr
        )
        work = _as_user(replace(work, fields={**work.fields, "stdin": "stream"}), user)
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
            attempt.cancel()  # the caller never got the handle, so it could not end the command
            raise
        self._keep(started)
        return started

    def _keep(self, command: Command) -> None:
        """List the command while it runs, and drop it afterwards: it holds its output."""
        self._background[command.id] = command
        command.on_ended(partial(self._background.pop, command.id, None))

    def background(self) -> builtins.list[Command]:
        """Return the background commands that are running."""
        return [command for command in self._background.values() if command.is_running]

    async def list(self) -> list[Command]:
        """Return the background commands that are running."""
        return self.background()

    async def get(self, command_id: int) -> Command:
        """Return the running background command with that id."""
        for command in await self.list():
            if command.id == command_id:
                return command
        raise NotFound(f"command {command_id}: none runs under that id", remedy="list commands")

    async def attach(self, command_id: int, pty: tuple[int, int] | None = None) -> Terminal:
        """Return the running terminal with that id, with `pty` as its new size.

        Raises NotFound, Conflict.
        """
        from cellwall.engine.parts.terminals import Terminal

        found = await self.get(command_id)
        if not isinstance(found, Terminal):
            raise no_terminal(command_id)
        if pty is not None:
            await found.resize(*pty)
        return found

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
            # An image need not have the shell that a template has.
            "any_shell": isinstance(command, str) and self._live.spec.image is not None,
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


def no_terminal(command_id: object) -> Conflict:
    """Return the error for a command that runs without a terminal."""
    return Conflict(
        f"command {command_id}: it runs without a terminal", remedy="read its events instead"
    )


def _as_user(work: Work, user: str | None) -> Work:
    if user is None:
        return work
    if not isinstance(user, str) or not user or "\0" in user:
        raise UsageError(f"command: user: {user!r} is no user's name", remedy="name one")
    return replace(work, fields={**work.fields, "user": user})


async def _started(recorder: Recorder, argv: Sequence[str]) -> None:
    """Wait until the command has started or ended. Raises NotFound, FileError."""
    recorder.started = asyncio.get_running_loop().create_future()
    await recorder.started
    if recorder.refused is not None:
        raise _refused(recorder.refused, argv)


def _refused(refusal: GuestRefused, argv: Sequence[str]) -> Exception:
    if refusal.reason == "not_found":
        return NotFound(f"command {argv[0]!r}: {refusal}", remedy="name a program the sandbox has")
    return file_error(refusal, f"start {argv[0]!r}")
