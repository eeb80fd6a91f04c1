"""Commands: processes that a caller starts by argument vector, with or without a terminal.

`init/main.py` owns the table and reports exits to it. No shell and no interpreter is implied, and
output is counted elsewhere (`pipes.py`).

Spawning never forks init's image (posix_spawn shares it until the exec), so it stays cheap however
large the warm interpreter is. The price: init is in the child's directory for that moment.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from functools import partial
from typing import Any, NamedTuple, Tuple, Union

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.channel.frames import Header
from cellwall.guest.channel.loop import Loop
from cellwall.guest.channel.pipes import Feed, Meter, Pump, Sinks
from cellwall.guest.channel.requests import Request
from cellwall.guest.channel.streams import MOST_GRANTED_BYTES, Stream
from cellwall.guest.files.accounts import Account, account
from cellwall.guest.init.families import Families, now_ticks
from cellwall.guest.init.spawn_as import Program, spawn_as
from cellwall.guest.process import processes
from cellwall.guest.process.processes import Exit
from cellwall.guest.process.programs import DEFAULT_PATH, SIGNALS_TO_RESET, find_program

MOST_COMMANDS = 64
_DEFAULT_OUTPUT_BYTES = 1024 * 1024
_MOST_OUTPUT_BYTES = 2**40
_DEFAULT_WINDOW_BYTES = 256 * 1024
_SIZE = struct.Struct("HHHH")
_END_OF_FILE_KEY = b"\x04"
_SCRIPT_FD = 3
_ANY_SHELL = "/bin/sh"
_Action = Union[Tuple[int, ...], Tuple[int, int, str, int, int]]


class Plan(NamedTuple):
    """The checked description of a command to start."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    has_stdin: bool
    size: tuple[int, int] | None
    script: bytes
    """Bytes that the command reads from descriptor 3; empty if it has none."""
    is_merged: bool
    """Whether stderr shares stdout's pipe, so that the order of both is kept."""
    output_bytes: int
    window_bytes: int
    account: Account | None
    """Whose the process is; None: init's user's."""


class Command:
    """One started process, its pipes and its budgets."""

    def __init__(self, number: int, pid: int, output_bytes: int) -> None:
        """`Commands` attaches the pipes once the process exists."""
        self.id = number
        self.pid = pid
        self.stdout = Meter(output_bytes)
        self.stderr = Meter(output_bytes)
        self.pumps: list[Pump] = []
        self.feed: Feed | Stream | None = None
        self.script: Feed | None = None
        self.terminal: Terminal | None = None
        self.since: int | None = None

    def signal(self, number: int) -> None:
        """Signal everything in the command's session."""
        processes.signal_session(self.pid, number)

    def processor_us(self) -> int | None:
        """Return the processor time of the command's first process, in µs."""
        return processes.processor_ns(self.pid) // 1000

    def end_input(self) -> None:
        """End the input of the command."""
        if self.terminal is not None:
            self.terminal.stream.write(_END_OF_FILE_KEY)
        elif isinstance(self.feed, Feed):
            self.feed.end()

    def resize(self, rows: int, columns: int) -> None:
        """Resize the command's terminal, if it has one."""
        if self.terminal is not None:
            set_size(self.terminal.fd, rows, columns)

    def grant(self, count: int) -> None:
        """Let a terminal send `count` bytes more; other output is metered instead."""
        if self.terminal is not None:
            self.terminal.stream.grant(count)

    def wait_for_host(self) -> None:
        """Send no output, and take no grant for any, until another host takes it on."""
        for pump in self.pumps:
            pump.wait_for_host()
        if self.terminal is not None:
            self.terminal.stream.void_grants()

    def go_on(self, window_bytes: int) -> None:
        """Go on for another host; a terminal may send `window_bytes`."""
        for pump in self.pumps:
            pump.go_on()
        if self.terminal is not None:
            self.terminal.stream.grant_anew(window_bytes)

    def end_output(self) -> int:
        """Send a terminal's remaining output and close it; return how much input it never took."""
        if self.terminal is None:
            return 0
        self.terminal.stream.drain()
        self.terminal.stream.stop()
        os.close(self.terminal.fd)  # hangs up, as for any terminal that is closed
        return self.terminal.stream.dropped


class Terminal(NamedTuple):
    """Init's side of a pseudo-terminal, and the stream over it."""

    fd: int
    stream: Stream


class Commands:
    """All running commands of this sandbox."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        sinks: Sinks,
        config: dict[str, Any],
        families: Families,
    ) -> None:
        """`env` of the configuration is the whole environment inside; a request adds to it."""
        self._families = families
        self._loop = loop
        self._channel = channel
        self._sinks = sinks
        self._config = config
        self._by_pid: dict[int, Command] = {}
        self._ends: dict[int, Header] = {}
        """Last events of the latest commands, which another host may not have got."""

    def job(self, number: int) -> Command | None:
        """Return the running command of this number."""
        for command in self._by_pid.values():
            if command.id == number:
                return command
        return None

    def leaders(self) -> dict[int, int]:
        """Return the pid of each running command, by request."""
        return {each.id: each.pid for each in self._by_pid.values()}

    def wait_for_host(self) -> None:
        """Have what runs wait with its output for another host, which takes it on or ends it."""
        for command in self._by_pid.values():
            command.wait_for_host()

    def take_on(self, request: Request) -> tuple[Header, bytes]:
        """Go on with a command for another host, or send its last event again."""
        number = request.integer("of")
        window_bytes = request.integer("window", low=0, high=MOST_GRANTED_BYTES)
        command, end = self.job(number), self._ends.get(number)
        if command is not None:
            command.go_on(window_bytes)
            return {"pid": command.pid, "has_terminal": command.terminal is not None}, b""
        if end is None:
            raise Refusal("not_found", f"take_on: {number} is no command")
        self._channel.send(end)
        return {"pid": 0, "has_terminal": False}, b""

    def start(self, request: Request) -> None:
        """Start a process; `started` follows, or a refusal."""
        if len(self._by_pid) >= MOST_COMMANDS:
            raise Refusal("busy", f"start: {MOST_COMMANDS} commands run; end one first")
        plan = self._plan(request)
        since = now_ticks()  # before a process exists that could have children
        if plan.size is not None:
            command = self._start_on_terminal(request.id, plan, plan.size)
        else:
            command = self._start_on_pipes(request.id, plan)
        self._by_pid[command.pid] = command
        self._families.lead(command.pid)
        command.since = self._families.begin(command.id, command.pid, since)
        self._channel.send({"ev": "started", "id": command.id, "pid": command.pid})

    def _plan(self, request: Request) -> Plan:
        argv = request.words("argv")
        if not argv or not argv[0]:
            raise Refusal("invalid", "start: argv is empty; name a program")
        if request.flag("any_shell", default=False) and not os.path.exists(argv[0]):
            argv[0] = _ANY_SHELL
        account = self._account(request.text("user", ""))
        own = {} if account is None else account.environment()
        return Plan(
            argv,
            os.path.join(self._config["home"], request.text("cwd", ".")),
            {**self._config["env"], **own, **request.environment("env")},
            request.choice("stdin", ("none", "stream")) == "stream",
            request.terminal("pty"),
            request.body,
            request.flag("merge_stderr"),
            request.integer("output_bytes", _DEFAULT_OUTPUT_BYTES, high=_MOST_OUTPUT_BYTES),
            request.integer("window", _DEFAULT_WINDOW_BYTES, high=MOST_GRANTED_BYTES),
            account,
        )

    def _account(self, word: str) -> Account | None:
        """Return the account of a command's user; None if that is init's. Raises Refusal."""
        if not word:
            return None
        found = account(word)
        own = os.geteuid()
        if own == found.uid and ":" not in word:
            return None
        if own != 0:
            raise Refusal("permission", f"start: user {own} of this sandbox cannot become {word!r}")
        return found

    def _start_on_pipes(self, number: int, plan: Plan) -> Command:
        ends = _Ends()
        try:
            outputs = (
                [ends.read_from(1, 2)] if plan.is_merged else [ends.read_from(1), ends.read_from(2)]
            )
            stdin = ends.write_to(0) if plan.has_stdin else -1
            if not plan.has_stdin:
                ends.actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
            script = ends.write_to(_SCRIPT_FD) if plan.script else -1
            command = Command(number, spawn(plan, ends.actions), plan.output_bytes)
        except BaseException:
            _close_all(ends.ours)
            raise
        finally:
            _close_all(ends.theirs)
        meters = (("stdout", command.stdout), ("stderr", command.stderr))
        for fd, (event, meter) in zip(outputs, meters):
            self._attach(command, fd, event, meter)
        if plan.has_stdin:
            command.feed = Feed(self._loop, stdin)
        if plan.script:
            self._hand_over(command, script, plan.script)
        return command

    def _start_on_terminal(self, number: int, plan: Plan, size: tuple[int, int]) -> Command:
        try:
            terminal, other_side = os.openpty()
        except OSError as error:
            raise refusal_from(error, "start: open a terminal") from None
        ends = _Ends()
        ends.ours.append(terminal)
        ends.theirs.append(other_side)
        try:
            set_size(terminal, *size)
            # The leader of a session gets the first terminal it opens as its controlling one.
            ends.actions += [
                (os.POSIX_SPAWN_OPEN, 0, os.ttyname(other_side), os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ]
            script = ends.write_to(_SCRIPT_FD) if plan.script else -1
            command = Command(number, spawn(plan, ends.actions), plan.output_bytes)
        except BaseException:
            _close_all(ends.ours)
            raise
        finally:
            _close_all(ends.theirs)
        stream = Stream(self._loop, self._channel, terminal, number, "stdout")
        command.feed, command.terminal = stream, Terminal(terminal, stream)
        stream.invite()
        stream.begin_reading(plan.window_bytes)
        if plan.script:
            self._hand_over(command, script, plan.script)
        return command

    def _hand_over(self, command: Command, fd: int, script: bytes) -> None:
        command.script = Feed(self._loop, fd)
        command.script.write(script)
        command.script.end()

    def _attach(self, command: Command, fd: int, event: str, meter: Meter) -> None:
        pump = Pump(self._loop, self._channel, fd, event)
        pump.begin(command.id, meter)
        command.pumps.append(pump)

    def on_exit(self, pid: int, end: Exit) -> bool:
        """Handle the end of a process; return True if it was a command."""
        command = self._by_pid.pop(pid, None)
        if command is None:
            return False
        if end.signal == signal.SIGKILL:
            # A limit killed it, or its owner did: the processes it started go too.
            self._families.end(pid, command.since, partial(self._conclude, command, end))
        else:
            self._conclude(command, end, 0)
        return True

    def _conclude(self, command: Command, end: Exit, remains: int) -> None:
        for pump in command.pumps:
            pump.drain()
            self._sinks.add(pump)
        if command.script is not None:
            command.script.close()
        cut = {"stdout": command.stdout.cut, "stderr": command.stderr.cut, "display": 0, "stdin": 0}
        if isinstance(command.feed, Feed):
            cut["stdin"] = command.feed.dropped
            command.feed.close()
        else:
            cut["stdin"] = command.end_output()
        done = {
            "ev": "done",
            "id": command.id,
            "exit_code": end.exit_code,
            "signal": end.signal,
            "alive": False,
            "raised": False,
            "cut": cut,
            "rusage": end.rusage,
            "remains": remains,
        }
        self._note_end(command.id, done)
        self._channel.send(done)

    def _note_end(self, number: int, done: Header) -> None:
        if self._config.get("standby_fd", -1) < 0:
            return  # no other host comes
        self._ends[number] = done
        if len(self._ends) > MOST_COMMANDS:
            del self._ends[next(iter(self._ends))]


class _Ends:
    """Pipes between init and a command about to start: init's ends, its ends, and its fd numbers.

    They are connected in the order in which they are made; descriptor 3 comes last, because a pipe
    may have that number.
    """

    def __init__(self) -> None:
        self.ours: list[int] = []
        self.theirs: list[int] = []
        self.actions: list[_Action] = []

    def read_from(self, *numbers: int) -> int:
        """Return init's end of a pipe to which the command writes as descriptors `numbers`."""
        read_fd, write_fd = os.pipe()
        self._keep(read_fd, write_fd, numbers)
        return read_fd

    def write_to(self, number: int) -> int:
        """Return init's end of a pipe from which the command reads as descriptor `number`."""
        read_fd, write_fd = os.pipe()
        self._keep(write_fd, read_fd, (number,))
        return write_fd

    def _keep(self, ours: int, theirs: int, numbers: tuple[int, ...]) -> None:
        self.ours.append(ours)
        self.theirs.append(theirs)
        self.actions += [(os.POSIX_SPAWN_DUP2, theirs, number) for number in numbers]


def spawn(plan: Plan, actions: list[_Action]) -> int:
    """Start the program in a session of its own and return its pid. Raises Refusal."""
    try:
        os.chdir(plan.cwd)
    except OSError as error:
        raise refusal_from(error, f"start: enter {plan.cwd!r}") from None
    try:
        path = find_program(plan.argv[0], plan.env.get("PATH", DEFAULT_PATH))
        if plan.account is not None:
            return spawn_as(plan.account, Program(path, plan.argv, plan.env, actions))
        return os.posix_spawn(
            path,
            plan.argv,
            plan.env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=SIGNALS_TO_RESET,
        )
    except OSError as error:
        raise refusal_from(error, f"start {plan.argv[0]!r}") from None
    finally:
        os.chdir("/")


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Set a terminal's size; the kernel tells its foreground processes."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
