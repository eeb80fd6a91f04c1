"""Process service: programs are started, listed, fed and signalled.

A process is a command of the server and lives as one: it goes on when its client leaves, and its
limits, its audit and its end are those of every command.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.e2b.daemon import inner, process_events, pty
from cellwall.apps.doors.e2b.daemon.connect import connect_codec, messages
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid
from cellwall.apps.doors.e2b.daemon.process_table import Process, Processes
from cellwall.apps.doors.e2b.daemon.users import account, named
from cellwall.model.errors import Conflict, FileError, NotFound
from cellwall.wire.reading import outcome_of

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.calls import Stream
    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.daemon.users import Account
    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.client.connection.transport import Json

_MOST_TAG = 256


class ProcessService:
    """The methods, over one table of processes."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def start(self, seat: Seat, asked: Value, stream: Stream) -> None:
        """Answer Start: events of a new process until its end."""
        if len(asked.get("tag", "")) > _MOST_TAG:
            raise invalid(f"tag: more than {_MOST_TAG} characters")
        if "pty" in asked:
            await self._start_terminal(seat, asked, stream)
            return
        config = asked.get("process", {})
        who = await account(seat, named(seat.request.headers))
        body: dict[str, Any] = _body(who, config)
        body["timeout"] = connect_codec.timeout_s(seat.request.headers)
        if not asked.get("stdin", True):
            body["stdin"] = ""
        given = {name: each for name, each in body.items() if each is not None}
        async with _explained(seat, who, config):
            facts = await inner.start(seat.live, given)
        process = Process(facts["id"], facts["pid"], config, asked.get("tag"))
        self._processes.add(seat.sandbox.id, process)
        await stream.send(process_events.started(process.pid))
        await stream.pass_on(_output(seat, process, 0), process_events.ALIVE)

    async def _start_terminal(self, seat: Seat, asked: Value, stream: Stream) -> None:
        config = asked.get("process", {})
        who = await account(seat, named(seat.request.headers))
        _body(who, config)
        async with _explained(seat, who, config):
            screen = await pty.opened(seat, who, config, asked["pty"])
        terminal = screen.terminal
        process = Process(terminal.id, terminal.pid or 0, config, asked.get("tag"), screen)
        self._processes.add(seat.sandbox.id, process)
        with screen.reading() as events:
            await stream.send(process_events.started(process.pid))
            await stream.pass_on(events, process_events.ALIVE)

    async def connect(self, seat: Seat, asked: Value, stream: Stream) -> None:
        """Answer Connect: the output of a process from now on, and its end."""
        process, facts = await self._processes.find(seat.live, asked.get("process"))
        started = process_events.started(process.pid)
        if facts["status"] == "ended":
            await stream.send(started)
            if facts["outcome"] is None:
                raise ConnectError("internal", "the end of the process is not known")
            await stream.send(process_events.ended(outcome_of(facts["outcome"])))
        elif facts["terminal"] is None:
            await stream.send(started)
            events = _output(seat, process, facts["last_event"], is_late=True)
            await stream.pass_on(events, process_events.ALIVE)
        else:
            with (await self._screen(seat, process)).reading() as shown:
                await stream.send(started)  # a client that has it misses nothing from then on
                await stream.pass_on(shown, process_events.ALIVE)

    async def _screen(self, seat: Seat, process: Process) -> pty.Screen:
        """Return the terminal of a process; one that another client of the server has is taken."""
        process = self._processes.kept(seat.sandbox.id, process)
        async with process.attaching:
            if process.screen is None or process.screen.terminal.is_replaced:
                process.screen = await pty.attached(seat, process.command_id)
            return process.screen

    async def list(self, seat: Seat, _: Value) -> Value:
        """Answer List."""
        return {"processes": [_info(each) for each in await self._processes.list(seat.live)]}

    async def send_input(self, seat: Seat, asked: Value) -> Value:
        """Answer SendInput."""
        process, facts = await self._processes.running(seat.live, asked.get("process"))
        await self._feed(seat, process, facts, asked.get("input", {}))
        return {}

    async def _feed(self, seat: Seat, process: Process, facts: Json, given: Value) -> None:
        has_terminal = facts["terminal"] is not None
        if ("pty" if has_terminal else "stdin") not in given:
            raise invalid("input: it has to be pty for a terminal, and stdin for any other process")
        if has_terminal:
            await (await self._screen(seat, process)).terminal.write(given["pty"])
            return
        try:
            await inner.feed(seat.live, process.command_id, given["stdin"])
        except Conflict:
            raise _ended(process) from None

    async def stream_input(self, seat: Seat, asked: AsyncIterator[Value]) -> Value:
        """Answer StreamInput: its first message names the process."""
        found: tuple[Process, Json] | None = None
        async for each in asked:
            if "start" in each:
                found = await self._processes.running(seat.live, each["start"].get("process"))
            elif "data" in each:
                if found is None:
                    raise invalid("stream: input came before its start")
                await self._feed(seat, *found, each["data"].get("input", {}))
        return {}

    async def close_stdin(self, seat: Seat, asked: Value) -> Value:
        """Answer CloseStdin."""
        process, facts = await self._processes.running(seat.live, asked.get("process"))
        if facts["terminal"] is not None:
            raise ConnectError("unknown", "a terminal's input cannot be closed")
        try:
            await inner.feed(seat.live, process.command_id, b"", close=True)
        except Conflict:
            raise _ended(process) from None
        return {}

    async def send_signal(self, seat: Seat, asked: Value) -> Value:
        """Answer SendSignal."""
        number = asked.get("signal", 0)
        if number not in (messages.SIGTERM, messages.SIGKILL):
            raise ConnectError("unimplemented", f"signal: {number} is not SIGTERM or SIGKILL")
        process, _ = await self._processes.running(seat.live, asked.get("process"))
        await inner.signal(seat.live, process.command_id, number)
        if number == messages.SIGKILL:
            # A client looks for the process right after.
            await inner.until_ended(seat.live, process.command_id)
        return {}

    async def update(self, seat: Seat, asked: Value) -> Value:
        """Answer Update: a terminal gets another size."""
        process, facts = await self._processes.running(seat.live, asked.get("process"))
        if "pty" not in asked:
            return {}
        if facts["terminal"] is None:
            raise ConnectError("failed_precondition", "the process runs without a terminal")
        size = pty.size_of(asked["pty"])
        await (await self._screen(seat, process)).terminal.resize(*size)
        return {}


def _body(who: Account, config: Value) -> dict[str, Any]:
    """Return the request for a command; a field that is None is left out."""
    if not config.get("cmd"):
        raise invalid("process: cmd is empty")
    cwd = config.get("cwd")
    return {
        "argv": [config["cmd"], *config.get("args", [])],
        "cwd": who.path(cwd) if cwd else None,
        "env": config.get("envs") or None,
        "user": who.wanted,
    }


@contextlib.asynccontextmanager
async def _explained(seat: Seat, who: Account, config: Value) -> AsyncIterator[None]:
    """Say whether it is the program or its directory that is missing. Raises ConnectError."""
    try:
        yield
    except (NotFound, FileError) as error:
        cwd = config.get("cwd")
        if cwd:
            try:
                await seat.sandbox.files.stat(who.path(cwd))
            except FileError:
                raise invalid(f"cwd '{who.path(cwd)}' does not exist") from None
        raise invalid(error.message) from None


async def _output(
    seat: Seat, process: Process, after: int, *, is_late: bool = False
) -> AsyncGenerator[Value, None]:
    """Yield what a process writes, and its end."""
    events = inner.events(seat.live, process.command_id, after)
    try:
        async for event in events:
            for each in process_events.of(event, is_late=is_late):
                yield each
    finally:
        await events.aclose()


def _ended(process: Process) -> ConnectError:
    return ConnectError("not_found", f"process with pid {process.pid} not found")


def _info(process: Process) -> Value:
    shown: Value = {"config": process.config, "pid": process.pid}
    if process.tag is not None:
        shown["tag"] = process.tag
    return shown
