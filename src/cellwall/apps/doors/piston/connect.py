"""Piston's WebSocket: a program whose input, output and signals are messages.

Its sandbox lives as long as the connection at most. The invariants: output waits for the client
inside the sandbox and is never kept here, and a client that leaves ends its program.
"""

from __future__ import annotations

import asyncio
import signal as signals
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange
from cellwall.apps.doors.piston.answers import end_of
from cellwall.apps.doors.piston.jobs import BadJob, job_of, named
from cellwall.languages.entries.language import BUILD
from cellwall.languages.registry import find
from cellwall.model.errors import CellwallError
from cellwall.model.outcome import Verdict
from cellwall.server.core.websockets import Socket

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.piston.jobs import Job
    from cellwall.apps.doors.piston.runtimes import PistonRuntime, Runtimes
    from cellwall.client.commands import Command
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.languages.registry import Language
    from cellwall.model.outcome import Outcome

_INIT_S = 1.0
_SIGNALS = {each.name: each.value for each in signals.Signals}


class _Closing(Exception):
    """The connection is to be closed with a code of the protocol."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


async def connect(visit: Visit, runtimes: Runtimes) -> None:
    """`WS /api/v2/connect`."""
    socket = Socket(visit.request)
    await socket.accept()
    try:
        await _serve(visit, socket, runtimes)
    except _Closing as closing:
        await socket.close(closing.code, closing.reason)
    except CellwallError as error:
        await socket.send_json({"type": "error", "message": str(error)})
        await socket.close(4002, "Notified Error")


async def _serve(visit: Visit, socket: Socket, runtimes: Runtimes) -> None:
    try:
        async with asyncio.timeout(_INIT_S):
            body = await _message(socket)
    except TimeoutError:
        raise _Closing(4001, "Initialization Timeout") from None
    if body.get("type") != "init":
        raise _Closing(4003, "Not yet initialized")
    name, selector = named(body)
    runtime = await runtimes.find(name, selector)
    if runtime is None:
        raise BadJob(f"{name}-{selector} runtime is unknown")
    job = job_of(body, visit.request.settings.most)
    session = _Session(socket, runtime, job)
    limits = dict(job.options(runtime.language)["limits"])
    async with asyncio.timeout(visit.request.settings.socket_s):
        async with await visit.client.create_sandbox(limits=limits) as sandbox:
            await _first_of(session.run(sandbox), session.listen())
    raise _Closing(4999, "Job Completed")


async def _message(socket: Socket) -> dict[str, Any]:
    try:
        data = await socket.receive()
        message = exchange.decoded(data if isinstance(data, bytes) else data.encode())
    except ValueError:
        raise BadJob("a message is not JSON") from None
    return message if isinstance(message, dict) else {}


async def _first_of(*works: Any) -> None:  # noqa: ANN401 - coroutines
    """Do both until one ends; raise its error."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Session:
    """One program and its client."""

    def __init__(self, socket: Socket, runtime: PistonRuntime, job: Job) -> None:
        self._socket = socket
        self._runtime = runtime
        self._job = job
        self._command: Command | None = None
        self._started = asyncio.Event()

    # -- from the client -------------------------------------------------------------------

    async def listen(self) -> None:
        """Pass the client's messages on, until it leaves."""
        while True:
            message = await _message(self._socket)
            if message.get("type") == "init":
                raise _Closing(4000, "Already Initialized")
            if message.get("type") == "data":
                await self._feed(message)
            elif message.get("type") == "signal":
                await self._signal(message.get("signal"))

    async def _feed(self, message: dict[str, Any]) -> None:
        if message.get("stream") != "stdin":
            raise _Closing(4004, "Can only write to stdin")
        data = message.get("data")
        if not isinstance(data, str):
            raise BadJob("data is required as a string")
        await (await self._running()).send_stdin(data)

    async def _signal(self, name: object) -> None:
        number = _SIGNALS.get(name) if isinstance(name, str) else None
        if number is None:
            raise _Closing(4005, "Invalid signal")
        await (await self._running()).kill(number)

    async def _running(self) -> Command:
        await self._started.wait()
        if self._command is None:
            raise LookupError("piston: there is no command")
        return self._command

    # -- to the client ---------------------------------------------------------------------

    async def run(self, sandbox: AsyncSandbox) -> None:
        """Compile and run the program, and tell the client of each stage."""
        shown = self._runtime.as_json()
        head = {"type": "runtime", "language": shown["language"], "version": shown["version"]}
        await self._socket.send_json(head)
        language, job = find(self._runtime.language), self._job
        file = language.name_of(job.code)
        for path, data in {**job.files, file: job.code.encode()}.items():
            await sandbox.files.write(path, data)
        if language.compile:
            await sandbox.files.mkdir(BUILD)
            argv = language.compile_command(file, list(job.files))
            limit_s = job.compile_limits["wall_s"]
            outcome = await self._stage("compile", sandbox, language, argv, limit_s)
            if outcome.verdict is not Verdict.OK:
                return
        memory_mb = int(job.limits.get("memory_mb", sandbox.limits.memory_mb))
        argv = language.command(file, job.args, memory_mb=memory_mb)
        await self._stage("run", sandbox, language, argv, job.limits["wall_s"])

    async def _stage(
        self, name: str, sandbox: AsyncSandbox, language: Language, argv: list[str], limit_s: float
    ) -> Outcome:
        await self._socket.send_json({"type": "stage", "stage": name})
        command = await sandbox.commands.start(argv, env=dict(language.env), timeout=limit_s)
        if name == "run":
            self._command = command
            self._started.set()
        outcome: Outcome | None = None
        async for event in command.events():
            if event.kind in {"stdout", "stderr"}:
                data = {"type": "data", "stream": event.kind, "data": event.text}
                await self._socket.send_json(data)
            outcome = event.outcome or outcome
        if outcome is None:
            outcome = (await command.wait()).outcome
        end = end_of(outcome)
        message = {"type": "exit", "stage": name, "code": end["code"], "signal": end["signal"]}
        if end["status"] not in {None, "RE"}:
            message["error"] = end["message"]
        await self._socket.send_json(message)
        return outcome
