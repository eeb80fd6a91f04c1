"""Commands in a sandbox on a server: in the foreground, in the background, found again.

The engine's `commands` describes each call. A command belongs to the sandbox, not to this process:
every client that knows its id finds it, its output and its end, for ten minutes after the end.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import signal as signals
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from cellwall.client.connection.attempts import Attempt, events_of, follow
from cellwall.client.connection.transport import Ask, segment
from cellwall.model.errors import Conflict, SandboxUnavailable, UsageError
from cellwall.model.ids import new_id
from cellwall.model.unicode import utf8
from cellwall.surface.shared.callbacks import OnEvent, OnText, by_stream
from cellwall.wire import asking
from cellwall.wire.reading import command_result_of, error_of

if TYPE_CHECKING:
    from cellwall.client.connection.transport import Json
    from cellwall.client.live import RemoteSandboxHandle
    from cellwall.client.terminals import Terminal
    from cellwall.model.execution import CommandResult, Event

_WAIT_S = 50
"""Seconds of one waiting request; shorter than the time after which proxies drop an idle
connection."""
_STEP_BYTES = 16 * 1024 * 1024


class Command:
    """A command in the background."""

    def __init__(self, live: RemoteSandboxHandle, facts: Json) -> None:
        """`facts` is the server's object of it."""
        self._live = live
        self.id: str = facts["id"]
        self.pid: int | None = facts["pid"]
        """Process id inside the sandbox, as reported by the guest."""
        self.argv = tuple(facts["argv"])
        self._result: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._is_supervised = False

    def supervise(self, deliver: OnEvent | None = None) -> None:
        """Watch for the command's end from now on, and deliver its events as they arrive."""
        if not self._is_supervised:
            self._is_supervised = True
            self._live.transport.tasks.spawn(self._supervise(deliver))

    async def _supervise(self, deliver: OnEvent | None) -> None:
        try:
            if deliver is not None:
                async for event in self.events():
                    deliver(event)
            result = command_result_of(await self._ended())
        except asyncio.CancelledError:
            self._result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            self._settle(error)
        else:
            self._settle(result)

    def _settle(self, end: CommandResult | Exception) -> None:
        if self._result.done():
            return
        if isinstance(end, Exception):
            self._result.set_exception(end)
            # `wait` raises it; mark it as retrieved if `wait` is never called
            self._result.exception()
        else:
            self._result.set_result(end)

    async def _ended(self) -> Json:
        while True:
            ask = Ask("GET", self._path(), {"wait": _WAIT_S}, is_held=True)
            facts = await self._live.json(ask)
            if facts.get("failure") is not None:
                raise error_of(facts["failure"])
            if facts["status"] == "ended":
                return facts

    def _path(self, below: str = "") -> str:
        return f"/commands/{self.id}{below}"

    @property
    def is_running(self) -> bool:
        """Whether the command is still running, by the server's last report."""
        return not self._result.done()

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield its events after number `after`, live until its end; a `gap` names lost ones."""
        place = self._live.path(self._path())
        events = follow(self._live.transport, lambda n: events_of(place, n), after=after)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def wait(self) -> CommandResult:
        """Wait for the command to end and return its result."""
        self.supervise()
        return await asyncio.shield(self._result)

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input; ignored after its end."""
        raw = utf8(data, "stdin", escapes=True) if isinstance(data, str) else data
        if not isinstance(raw, bytes):
            raise UsageError(
                f"stdin: {type(data).__name__} is not text", remedy="give a string or bytes"
            )
        for start in range(0, len(raw), _STEP_BYTES):
            await self._feed(raw[start : start + _STEP_BYTES])

    async def close_stdin(self) -> None:
        """Close its standard input."""
        await self._feed(b"", close=True)

    async def _feed(self, data: bytes, *, close: bool | None = None) -> None:
        ask = Ask("POST", self._path("/stdin"), {"close": close}, content=data)
        with contextlib.suppress(Conflict):  # the command has ended
            await self._live.json(ask)

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to its whole process tree."""
        await self._live.json(Ask("POST", self._path("/signal"), body={"signal": int(signal)}))


class Commands:
    """The commands of one sandbox."""

    def __init__(self, live: RemoteSandboxHandle) -> None:
        self._live = live
        self._known: dict[str, Command] = {}

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
        `user`: a user of the image, whose the process is; only where the sandbox's own is root.
        """
        body = {**_body(command, cwd, env, timeout), **asking.stdin(stdin), **_merged(merge_stderr)}
        body.update(asking.given(user=user))
        attempt = Attempt(
            self._live.transport,
            self._live.path("/commands"),
            body,
            header="x-command-id",
            things=self._live.path("/commands"),
        )
        try:
            facts = await attempt.perform(by_stream(on_stdout, on_stderr, on_event))
        except SandboxUnavailable:
            self._live.ended()
            raise
        return command_result_of(facts)

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
        detach_s: float | None = None,
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
        detach_s: float | None = None,
    ) -> Command | Terminal:
        """Start a command in the background; with `pty`, (rows, columns), on a terminal.

        With `merge_stderr`, `stdout` holds the output of both streams in the order of writing; on a
        terminal it always does. `detach_s`: seconds that a terminal without a client waits for
        `attach` before it is hung up.
        """
        deliver = by_stream(on_stdout, on_stderr, on_event)
        started: Command | Terminal
        if pty is None:
            body = {
                **_body(command, cwd, env, timeout),
                **_merged(merge_stderr),
                **asking.given(user=user),
                "background": True,
            }
            ask = Ask("POST", "/commands", body=body, key=new_id())
            started = Command(self._live, await self._live.json(ask))
            started.supervise(deliver)
        else:
            from cellwall.client.terminals import opened

            if deliver is not None:
                raise UsageError("pty: callbacks get text", remedy="read the terminal's bytes")
            times = (timeout, detach_s)
            started = await opened(self._live, command, pty, (cwd, user), env, times)
        self._known[started.id] = started
        return started

    async def list(self) -> builtins.list[Command]:
        """Return the running background commands, including those of other clients."""
        answer = await self._live.json(Ask("GET", "/commands"))
        running = [each for each in answer["commands"] if each["status"] == "running"]
        self._known = {key: each for key, each in self._known.items() if each.is_running}
        return [self._found(facts) for facts in running]

    async def get(self, command_id: str) -> Command:
        """Return the command of that id, also one that ended recently or that others started."""
        checked = segment(command_id, "command", remedy="list commands")
        return self._found(await self._live.json(Ask("GET", f"/commands/{checked}")))

    async def attach(self, command_id: str, pty: tuple[int, int] | None = None) -> Terminal:
        """Take a terminal that runs, with `pty` as its new size; its client before is closed.

        Output that came while it had no client comes first. Raises NotFound, Conflict if it has
        ended or is no terminal.
        """
        from cellwall.client.terminals import attached

        checked = segment(command_id, "command", remedy="list commands")
        found = self._known[command_id] = await attached(self._live, checked, pty)
        return found

    def _found(self, facts: Json) -> Command:
        known = self._known.get(facts["id"])
        if known is None:
            known = self._known[facts["id"]] = Command(self._live, facts)
            known.supervise()
        return known

    async def kill(self, command_id: str, signal: int = signals.SIGKILL) -> None:
        """Send a signal to a background command's process tree."""
        await (await self.get(command_id)).kill(signal)

    async def send_stdin(self, command_id: str, data: str | bytes) -> None:
        """Write to a background command's standard input."""
        await (await self.get(command_id)).send_stdin(data)


def _merged(merge_stderr: bool) -> dict[str, Any]:
    """Include the field only if it is set: an older server does not know it."""
    return {"merge_stderr": True} if merge_stderr else {}


def _body(
    command: str | Sequence[str],
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout_s: float | None,
) -> dict[str, Any]:
    fields = asking.given(cwd=cwd, env=asking.env(env), timeout=timeout_s)
    return {**asking.command(command), **fields}
