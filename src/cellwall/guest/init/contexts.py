"""The contexts of a sandbox as init sees them: forked, served over connections, killed at will.

`init/main.py` owns the table and reports exits to it. This module runs no caller code
(`context/main.py` does that, on the other side of the fork) and keeps no output counters
(`execution.py` does).

A context is idle only when it said so on a connection that is still open. A message out of turn
kills the context: init never tries to understand a context that broke the protocol.
"""

from __future__ import annotations

import _socket
import errno
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.guest import drivers
from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.errors import Refusal
from cellwall.guest.channel.frames import Header
from cellwall.guest.channel.init_link import Link
from cellwall.guest.channel.loop import Loop
from cellwall.guest.channel.pipes import Feed, Pump, Sinks
from cellwall.guest.channel.progress import RUNNING
from cellwall.guest.channel.requests import Request
from cellwall.guest.drivers import available
from cellwall.guest.init import context_exec, context_spawn, tool_calls
from cellwall.guest.init.context_connections import ContextConnection, ContextListener
from cellwall.guest.init.execution import Execution
from cellwall.guest.init.families import Families, now_ticks
from cellwall.guest.init.first_program import FirstProgram, serve
from cellwall.guest.init.handover import HandOver, WrongWord
from cellwall.guest.process import processes
from cellwall.guest.process.processes import Exit, LivingUsage

if TYPE_CHECKING:
    from cellwall.guest.init.copying import Copies, Copying

MOST_CONTEXTS = 32
_MOST_CONNECTIONS = 8
_MOST_NAME_CHARACTERS = 64
_DEFAULT_OUTPUT_BYTES = 1024 * 1024
_DEFAULT_DISPLAY_BYTES = 8 * 1024 * 1024
_MOST_OUTPUT_BYTES = 2**40
_MOST_LAST_WORDS = 1500
_SAY_IDLE: Header = {"op": "idle"}


class ContextBroken(Exception):
    """A context sent a message that the protocol does not allow."""


class Context:
    """One interpreter process."""

    def __init__(self, name: str, language: str, pid: int, stdout: Pump, stderr: Pump) -> None:
        """Own the pumps of a process that has just been forked."""
        self.name = name
        self.language = language
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.connections: list[ContextConnection] = []
        self.idle_connection: ContextConnection | None = None
        self.was_ready = False
        self.execution: Execution | None = None
        self.handing: HandOver | None = None
        """The latest hand-over of work to this context."""
        self.usage: LivingUsage | None = None
        """Resource usage of its latest cell."""
        self.birth: int | None = None
        """Id of the request that waits for this context to become ready."""
        self.copying: Copying | None = None
        """The copying of which this context is a part."""
        self.closings: list[int] = []
        """Ids of the requests that wait for this context to be gone."""

    @property
    def state(self) -> str:
        """Return `starting`, `idle`, `busy` or `ending`.

        A context is `ending` when its connection is closed; it is killed for that.
        """
        if self.execution is not None or self.copying is not None:
            return "busy"
        if self.idle_connection is not None and self.idle_connection.is_open:
            return "idle"
        return "ending" if self.was_ready else "starting"

    def kill(self) -> None:
        """Kill the context; `done` and everything else follow from its exit."""
        processes.signal_group(self.pid, signal.SIGKILL)

    def drain(self) -> None:
        """Forward what was printed so far, so that events keep their order."""
        self.stdout.drain()
        self.stderr.drain()


class ContextJob:
    """A running execution, seen as a job that takes input and signals."""

    def __init__(self, context: Context, execution: Execution) -> None:
        self._context = context
        self._execution = execution
        self.feed = execution.feed
        self.pid = context.pid

    def processor_us(self) -> int | None:
        """Return the µs of CPU that the context's process used for it; None if not recorded."""
        usage = self._execution.usage
        return None if usage is None else usage.processor_us()

    def signal(self, number: int) -> None:
        """Signal the context and the processes that it started in its group."""
        if number == signal.SIGINT:
            self._execution.is_interrupted = True
        processes.signal_group(self._context.pid, number)

    def end_input(self) -> None:
        """End the input of the execution."""
        if self.feed is not None:
            self.feed.end()

    def resize(self, rows: int, columns: int) -> None:
        """Do nothing: an execution has no terminal."""

    def answer(self, request: Request) -> None:
        """Answer one of its tool calls."""
        if self._execution.calls is not None:
            self._execution.calls.answer(request)


class Contexts:
    """All contexts of this sandbox."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        sinks: Sinks,
        config: dict[str, Any],
        run_context: Callable[[Link, dict[str, Any]], Any],
        families: Families,
    ) -> None:
        """`config` is read late; `run_context` is called in each child and does not return."""
        self._loop = loop
        self._families = families
        self._channel = channel
        self._sinks = sinks
        self._config = config
        self._run_context = run_context
        # The environment that a context finds; reading os.environ in every fork costs too much.
        self._environment = dict(os.environ)
        self._listener = ContextListener(loop, channel, self._on_connection)
        self._copies: Copies | None = None
        """Made on first use: most sandboxes are never copied."""
        self._by_name: dict[str, Context] = {}
        self._by_pid: dict[int, Context] = {}
        self._missing: dict[str, Refusal] = {}
        """Contexts that should exist from the start, and why they do not."""
        self.on_ready: Callable[[str], None] | None = None

    def open(self, listener: tuple[_socket.socket, str] | None = None) -> None:
        """Prepare for the first fork; connections are accepted only after `watch`."""
        self._listener.are_named = bool(self._config.get("are_callers_named"))
        self._listener.open(listener)

    def watch(self) -> None:
        """Accept connections of contexts from now on."""
        self._listener.watch()

    @property
    def may_run_first(self) -> bool:
        """Return whether the sandbox is for one program, so that `first_program` can serve it."""
        return self._config.get("purpose") == "program" and self._refusal(self.language) is None

    @property
    def language(self) -> str:
        """Return the language of the contexts that exist from the start."""
        return str(self._config.get("language") or "python")

    def hear_the_dying(self) -> None:
        """Accept pending connections before an ended process is reaped and its pid becomes free."""
        if self._listener.are_named:
            self._listener.drain()

    def run_first(
        self, channel_fd: int, wakeup_fd: int, on_forked: Callable[[], None]
    ) -> FirstProgram:
        """Serve the first program of a sandbox before there is an event loop."""
        program = FirstProgram(*self._fork("main", self.language))
        on_forked()
        program.may_be_foreseen = bool(self._config.get("is_end_foreseen"))
        program.has_interpreter = drivers.find(self.language) is not None
        serve(program, channel_fd, wakeup_fd, self._listener.fileno())
        return program

    def take_over(self, program: FirstProgram) -> None:
        """Continue from where `first_program` stopped."""
        stdout = Pump(self._loop, self._channel, program.stdout, "stdout")
        stderr = Pump(self._loop, self._channel, program.stderr, "stderr")
        if program.progress.is_reported:
            self._sinks.add(stdout)
            self._sinks.add(stderr)
            return
        context = Context("main", self.language, program.pid, stdout, stderr)
        self._by_name["main"] = context
        self._by_pid[context.pid] = context
        context.was_ready = program.progress.is_ready
        if program.connection_fd >= 0:
            self._listen(context, self._listener.connection(program.connection_fd))
            context.idle_connection = context.connections[0]
        if not program.progress.is_ready:
            context.kill()  # it sent no `idle`, or something else
        elif program.header is not None:
            self._resume(context, program, program.header)
        if program.end is not None:
            self.on_exit(context.pid, processes.exit_from(*program.end))

    def _resume(self, context: Context, program: FirstProgram, header: Header) -> None:
        execution = self._execution(header["id"], header["output_bytes"], header.get("tools"))
        execution.is_program = True
        execution.progress = program.progress
        execution.stdout.passed, execution.stderr.passed = program.passed
        context.execution = execution
        context.stdout.begin(execution.id, execution.stdout)
        context.stderr.begin(execution.id, execution.stderr)
        if program.left is not None:
            which, data = program.left
            (context.stderr if which else context.stdout).forward(data)

    def names(self) -> list[str]:
        """Return the names of all contexts, in order of creation."""
        return list(self._by_name)

    def begin(self, name: str) -> bool:
        """Fork a context that exists from the start; return False where its tool is missing."""
        refusal = self._refusal(self.language)
        if refusal is not None:
            self._missing[name] = refusal
            return False
        self.create(name, self.language)
        return True

    def _refusal(self, language: str) -> Refusal | None:
        try:
            self._check(language)
        except Refusal as refusal:
            return refusal
        return None

    def _check(self, language: str) -> None:
        environment = self._config.get("env") or self._environment
        if self._config.get("is_image"):
            context_exec.check({**self._config, "env": environment})
            if language == "sql":
                return  # the image's interpreter says whether it has what that needs
        available.check(language, environment)

    def create(self, name: str, language: str, birth: int | None = None) -> None:
        """Fork a context; with `birth`, answer that request once it is ready."""
        if not 0 < len(name) <= _MOST_NAME_CHARACTERS:
            raise Refusal("invalid", f"context: a name has 1 to {_MOST_NAME_CHARACTERS} characters")
        if name in self._by_name:
            raise Refusal("exists", f"context {name!r}: exists; close it first")
        if len(self._by_name) >= MOST_CONTEXTS:
            raise Refusal("busy", f"context {name!r}: {MOST_CONTEXTS} exist; close one first")
        self._check(language)
        pid, stdout, stderr, connection_fd = self._fork(name, language)
        context = Context(
            name,
            language,
            pid,
            Pump(self._loop, self._channel, stdout, "stdout"),
            Pump(self._loop, self._channel, stderr, "stderr"),
        )
        self._listen(context, self._listener.connection(connection_fd))
        self._families.lead(pid)
        context.birth = birth
        self._by_name[name] = context
        self._by_pid[pid] = context

    def _fork(self, name: str, language: str) -> tuple[int, int, int, int]:
        """Fork a context; return its pid and our ends of stdout, stderr and first connection."""
        config = {**self._config, "context": name, "language": language}
        parent = context_spawn.Parent(self._listener.address, are_named=self._listener.are_named)
        run = context_exec.main if self._config.get("is_image") else self._run_context
        return context_spawn.fork_context(config, self._environment, parent, run)

    # -- requests ------------------------------------------------------------------------------

    def execute(self, request: Request) -> None:
        """Hand an idle context something to run."""
        context = self._find(request.text("context"))
        if context.state == "ending":
            raise Refusal("no_context", f"context {context.name!r}: its process has ended")
        if request.flag("held", default=False):
            raise Refusal("unsupported", "execute: only a sandbox's first program can be held")
        if context.state != "idle" or context.idle_connection is None:
            raise Refusal("busy", f"context {context.name!r}: is {context.state}; wait for `done`")
        task: Header = {
            "op": "execute",
            "mode": request.choice("mode", ("program", "cell")),
            "filename": request.text("filename", "<cell>"),
            "arguments": request.mapping("arguments"),
            "argv": request.words("argv"),
            "display": request.flag("display", default=True),
            "stdin": request.choice("stdin", ("none", "enclosed", "stream")),
            "stdin_bytes": request.integer("stdin_bytes", 0, high=len(request.body)),
            "tools": request.mapping("tools"),
        }
        output_bytes = request.integer(
            "output_bytes", _DEFAULT_OUTPUT_BYTES, high=_MOST_OUTPUT_BYTES
        )
        execution = self._execution(request.id, output_bytes, task["tools"])
        execution.is_program = task["mode"] == "program"
        if not execution.is_program:
            execution.usage = context.usage = LivingUsage(context.pid, context.usage)
            execution.since = self._families.begin(request.id, context.pid, now_ticks())
        self._hand_over(context, execution, task, request.body)

    def _execution(self, number: int, output_bytes: int, tools: Header | None) -> Execution:
        display_bytes = self._config.get("display_bytes", _DEFAULT_DISPLAY_BYTES)
        execution = Execution(self._channel, number, output_bytes, display_bytes)
        if tools is not None:
            execution.calls = tool_calls.Calls(self._channel, number, tools)
        return execution

    def _hand_over(
        self, context: Context, execution: Execution, task: Header, source: bytes
    ) -> None:
        connection = context.idle_connection
        assert connection is not None  # noqa: S101  for the type checker only
        if task["stdin"] == "stream":
            execution.feed = Feed(self._loop)  # its pipe is made by the context
        context.idle_connection = None
        context.execution = execution
        context.handing = HandOver(context.name, context.pid, connection, execution.feed)
        context.stdout.begin(execution.id, execution.stdout)
        context.stderr.begin(execution.id, execution.stderr)
        try:
            context.handing.begin(task, source)
        except Refusal:
            self._withdraw(context)
            raise

    def _withdraw(self, context: Context) -> None:
        """Take back an execution that was not handed over, or not completely."""
        execution, context.execution = context.execution, None
        if execution is not None:
            execution.withdraw()
        context.stdout.hold()
        context.stderr.hold()

    def interrupt(self, name: str) -> None:
        """Send SIGINT to a context that is running something; ignore an idle one."""
        context = self._by_name.get(name)
        if context is not None and context.execution is not None:
            context.execution.is_interrupted = True
            processes.signal_group(context.pid, signal.SIGINT)

    def job(self, number: int) -> ContextJob | None:
        """Return the running execution of this number."""
        for context in self._by_name.values():
            if context.execution is not None and context.execution.id == number:
                return ContextJob(context, context.execution)
        return None

    def leaders(self) -> dict[int, int]:
        """Return the pid of each context that is at work, by request."""
        return {
            each.execution.id: each.pid
            for each in self._by_pid.values()
            if each.execution is not None
        }

    def reseed(self) -> None:
        """Have the contexts in Python that wait for work seed their random generators anew."""
        for each in self._by_name.values():
            if each.language == "python" and each.idle_connection is not None:
                each.idle_connection.send({"op": "reseed"})

    def answer(self, request: Request) -> None:
        """Pass the answer to a tool call on; its execution may be over."""
        job = self.job(request.id)
        if job is not None:
            job.answer(request)

    def close(self, name: str, request: int) -> None:
        """Kill a context; the request is answered when it is gone."""
        context = self._find(name)
        context.closings.append(request)
        context.kill()

    def copy(self, request: Request) -> None:
        """Have an idle context copied, or made a copy."""
        if self._copies is None:
            from cellwall.guest.init.copying import Copies

            self._copies = Copies(self._channel, self._config)
        self._copies.begin(request, self._find)

    def cancel_copy(self, request: int) -> None:
        """End a copying that the host no longer waits for."""
        if self._copies is not None:
            self._copies.cancel(request)

    def cancel_copies(self) -> None:
        """End all copying: its host is gone, and with it what would answer or read."""
        if self._copies is not None:
            self._copies.cancel_all()

    def listing(self) -> list[Header]:
        """Return name, language and state of each context."""
        return [
            {"name": each.name, "language": each.language, "state": each.state}
            for each in self._by_name.values()
        ]

    def _find(self, name: str) -> Context:
        context = self._by_name.get(name)
        if context is None and name in self._missing:
            raise self._missing[name]
        if context is None:
            raise Refusal("no_context", f"context {name!r}: there is none; create it first")
        return context

    # -- what contexts say ---------------------------------------------------------------------

    def _on_connection(self, pid: int, connection: ContextConnection) -> None:
        context = self._by_pid.get(pid)
        if context is None and self._listener.are_named:
            # gVisor names the thread that sent the credentials.
            context = self._by_pid.get(processes.leader_of(pid))
        if context is None:
            connection.close()
            return
        context.connections = [each for each in context.connections if each.is_open]
        if len(context.connections) >= _MOST_CONNECTIONS:
            # The oldest gives way: caller code that hoards connections must not keep its own
            # context from reporting that it has ended.
            oldest = context.connections.pop(0)
            oldest.drain()
            oldest.close()
        for earlier in tuple(context.connections):
            earlier.drain()  # earlier messages must be processed first
        self._listen(context, connection)
        connection.hear()  # as a rule the first frame is there already: one wake-up less

    def _listen(self, context: Context, connection: ContextConnection) -> None:
        context.connections.append(connection)
        connection.on_broken = context.kill
        connection.on_frame = lambda connection, header, body: self._on_frame(
            context, connection, header, body
        )

    def _on_frame(
        self, context: Context, connection: ContextConnection, header: Header, body: bytes
    ) -> None:
        context.drain()
        try:
            self._hear(context, connection, header, body)
        except ContextBroken:
            context.kill()

    def _hear(
        self, context: Context, connection: ContextConnection, header: Header, body: bytes
    ) -> None:
        event = header.get("ev")
        execution = context.execution
        if event == "idle":
            self._on_idle(context, connection)
        elif event == "call":
            self._on_call(context, connection, header, body)
        elif event == "input":
            self._on_input(context, connection, header)
        elif self._copies is not None and self._copies.hear(context, connection, header):
            return
        elif execution is None:
            # A thread that a cell left behind may display something after its cell is over. There
            # is no request to which it could belong.
            if event not in ("display", "error", "value"):
                raise ContextBroken
        elif event == "display":
            execution.show(header, body)
        elif event in ("error", "value"):
            execution.tell_once(event, header, body)
        elif event == "end":
            execution.conclude(header)
        else:
            raise ContextBroken

    def _on_input(self, context: Context, connection: ContextConnection, header: Header) -> None:
        handing = context.handing
        if handing is None or context.execution is None or not handing.is_on(connection):
            raise ContextBroken
        try:
            handing.give_input(header)
        except WrongWord:
            raise ContextBroken from None
        except OSError as error:
            handing.take_back(error)

    def _refuse(self, number: int, refusal: Refusal) -> None:
        self._channel.send(
            {"ev": "fail", "id": number, "code": refusal.code, "message": refusal.message}
        )

    def _on_call(
        self, context: Context, connection: ContextConnection, header: Header, body: bytes
    ) -> None:
        handing = context.handing
        is_first = connection is context.idle_connection or (
            handing is not None and handing.is_on(connection)
        )
        if connection not in context.connections or is_first:
            raise ContextBroken  # a call has a connection of its own
        context.connections.remove(connection)
        execution = context.execution
        if execution is None or execution.is_over:
            tool_calls.refuse(connection, "ended", "no execution is under way")
        elif execution.calls is None:
            tool_calls.refuse(connection, "unknown", "this execution has no tools")
        else:
            execution.calls.begin(connection, header.get("tool"), body)

    def _on_idle(self, context: Context, connection: ContextConnection) -> None:
        execution = context.execution
        if execution is not None and context.handing is not None and context.handing.failure:
            self._withdraw(context)
            self._refuse(execution.id, context.handing.failure)
        elif execution is not None:
            if not execution.is_over or execution.is_program:
                raise ContextBroken
            if execution.is_interrupted:
                # The signal may still be on its way, and must not reach the next cell. The context
                # has seen the signal by the time it answers this.
                execution.is_interrupted = False
                connection.send(_SAY_IDLE)
                return
            context.execution = None
            context.stdout.hold()
            context.stderr.hold()
            execution.finish(None)
        context.idle_connection = connection
        if self._copies is not None:
            self._copies.note_idle(context)
        if not context.was_ready:
            context.was_ready = True
            if context.birth is not None:
                self._channel.send(
                    {"ev": "reply", "id": context.birth, "name": context.name, "pid": context.pid}
                )
            if self.on_ready is not None:
                self.on_ready(context.name)

    # -- its end -------------------------------------------------------------------------------

    def on_exit(self, pid: int, end: Exit) -> bool:
        """Handle the end of a process; return True if it was a context."""
        context = self._by_pid.get(pid)
        if context is None:
            return self._copies is not None and self._copies.on_exit(pid, end)
        if self._copies is not None:
            self._copies.on_context_exit(context)
        # Its last messages may still be in a kernel queue, even on a connection not yet accepted.
        self._listener.drain()
        for connection in tuple(context.connections):
            connection.drain()
            connection.close()
        last_words = b"" if context.was_ready else context.stderr.take(_MOST_LAST_WORDS)
        context.drain()
        del self._by_pid[pid]
        del self._by_name[context.name]
        execution = context.execution
        if end.signal != signal.SIGKILL or (execution is not None and execution.is_program):
            self._conclude(context, end, last_words, 0)
        else:
            # Only a limit, its owner or the context itself kills a context: its processes go too.
            since = None if execution is None else execution.since
            self._families.end(pid, since, partial(self._conclude, context, end, last_words))
        return True

    def _conclude(self, context: Context, end: Exit, last_words: bytes, remains: int) -> None:
        context.drain()
        self._sinks.add(context.stdout)
        self._sinks.add(context.stderr)
        self._end_execution(context, end, remains)
        self._answer_waiting(context, end, last_words.decode("utf-8", "replace").strip())

    def _end_execution(self, context: Context, end: Exit, remains: int) -> None:
        """Report how its work ended, or refuse it if the context exited before it began."""
        execution, handing = context.execution, context.handing
        if execution is None:
            return
        progress = execution.progress
        if handing is not None and handing.is_complete and not progress.has_begun:
            progress.advance(RUNNING)
        if end.signal is None and handing is not None and not progress.has_begun:
            self._withdraw(context)
            self._refuse(execution.id, handing.refusal())
        else:
            execution.finish(end, remains)

    def _answer_waiting(self, context: Context, end: Exit, last_words: str) -> None:
        for request in context.closings:
            self._channel.send({"ev": "reply", "id": request})
        if context.was_ready:
            return
        how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
        message = f"context {context.name!r}: ended by {how} before it was ready"
        if last_words:
            message += f"; it said: {last_words}"
        if context.birth is None and end.signal == signal.SIGKILL:
            raise ProcessLookupError(errno.ESRCH, message)  # killed from outside, not by init
        if context.birth is None:
            raise RuntimeError(message)
        code = "not_found" if end.exit_code == available.EXIT_MISSING else "internal"
        self._channel.send({"ev": "fail", "id": context.birth, "code": code, "message": message})
