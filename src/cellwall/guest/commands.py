"""Commands: processes that a caller starts by argument vector, with or without a terminal.

`init.py` owns the table and reports exits to it. No shell and no interpreter is implied, and what
a command prints is counted elsewhere (`pipes.py`).

Spawning never forks init's image (posix_spawn shares it until the exec), so it stays cheap
however large the warm interpreter is. The price: init is in the child's directory for that moment.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from typing import Any, NamedTuple

from cellwall.guest import processes
from cellwall.guest.channel import Channel
from cellwall.guest.loop import Loop
from cellwall.guest.pipes import Feed, Meter, Pump, Sinks
from cellwall.guest.processes import Exit
from cellwall.guest.refusals import Refusal, refusal_from
from cellwall.guest.requests import Request

MOST_COMMANDS = 64
_DEFAULT_OUTPUT_BYTES = 1024 * 1024
_MOST_OUTPUT_BYTES = 2**40
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_WINDOW = struct.Struct("HHHH")
_END_OF_FILE_KEY = b"\x04"

# Python ignores these two and init some more; an exec keeps what is ignored.
_SIGNALS_TO_RESET = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Plan(NamedTuple):
    """What is to be started, checked."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    has_stdin: bool
    window: tuple[int, int] | None
    output_bytes: int


class Command:
    """One started process, its pipes and its budgets."""

    def __init__(self, number: int, pid: int, output_bytes: int) -> None:
        """Pipes are attached by `Commands`, once the process exists."""
        self.id = number
        self.pid = pid
        self.stdout = Meter(output_bytes)
        self.stderr = Meter(output_bytes)
        self.pumps: list[Pump] = []
        self.feed: Feed | None = None
        self.terminal: int | None = None

    def signal(self, number: int) -> None:
        """Signal everything in the command's session."""
        processes.signal_session(self.pid, number)

    def end_input(self) -> None:
        """End of file on its input."""
        if self.feed is None:
            return
        if self.terminal is None:
            self.feed.end()
        else:
            self.feed.write(_END_OF_FILE_KEY)

    def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal; without one there is nothing to tell."""
        if self.terminal is not None:
            set_window(self.terminal, rows, columns)


class Commands:
    """All running commands of this sandbox."""

    def __init__(self, loop: Loop, channel: Channel, sinks: Sinks, config: dict[str, Any]) -> None:
        """`env` of the configuration is the whole environment inside; a request adds to it."""
        self._loop = loop
        self._channel = channel
        self._sinks = sinks
        self._config = config
        self._by_pid: dict[int, Command] = {}

    def job(self, number: int) -> Command | None:
        """The running command of this number."""
        for command in self._by_pid.values():
            if command.id == number:
                return command
        return None

    def start(self, request: Request) -> None:
        """Start a process; `started` follows, or a refusal."""
        if len(self._by_pid) >= MOST_COMMANDS:
            raise Refusal("busy", f"start: {MOST_COMMANDS} commands run; end one first")
        plan = self._plan(request)
        if plan.window is not None:
            command = self._start_on_terminal(request.id, plan, plan.window)
        else:
            command = self._start_on_pipes(request.id, plan)
        self._by_pid[command.pid] = command
        self._channel.send({"ev": "started", "id": command.id, "pid": command.pid})

    def _plan(self, request: Request) -> Plan:
        argv = request.words("argv")
        if not argv or not argv[0]:
            raise Refusal("invalid", "start: argv is empty; name a program")
        return Plan(
            argv,
            os.path.join(self._config["home"], request.text("cwd", ".")),
            {**self._config["env"], **request.environment("env")},
            request.choice("stdin", ("none", "stream")) == "stream",
            request.terminal("pty"),
            request.integer("output_bytes", _DEFAULT_OUTPUT_BYTES, high=_MOST_OUTPUT_BYTES),
        )

    def _start_on_pipes(self, number: int, plan: Plan) -> Command:
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for _ in range(2):
                read_fd, write_fd = os.pipe()
                ours.append(read_fd)
                theirs.append(write_fd)
            actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
                (os.POSIX_SPAWN_DUP2, theirs[0], 1),
                (os.POSIX_SPAWN_DUP2, theirs[1], 2),
            ]
            if plan.has_stdin:
                read_fd, write_fd = os.pipe()
                ours.append(write_fd)
                theirs.append(read_fd)
                actions.append((os.POSIX_SPAWN_DUP2, read_fd, 0))
            else:
                actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
            command = Command(number, spawn(plan, actions), plan.output_bytes)
        except BaseException:
            _close_all(ours)
            raise
        finally:
            _close_all(theirs)
        self._attach(command, ours[0], "stdout", command.stdout)
        self._attach(command, ours[1], "stderr", command.stderr)
        if plan.has_stdin:
            command.feed = Feed(self._loop, ours[2])
        return command

    def _start_on_terminal(self, number: int, plan: Plan, window: tuple[int, int]) -> Command:
        try:
            terminal, other_side = os.openpty()
        except OSError as error:
            raise refusal_from(error, "start: open a terminal") from None
        try:
            set_window(terminal, *window)
            # The leader of a session gets the first terminal it opens as its controlling one.
            actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
                (os.POSIX_SPAWN_OPEN, 0, os.ttyname(other_side), os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ]
            command = Command(number, spawn(plan, actions), plan.output_bytes)
        except BaseException:
            os.close(terminal)
            raise
        finally:
            os.close(other_side)
        # Epoll keeps one entry per descriptor, so reading and writing need one each.
        command.feed = Feed(self._loop, os.dup(terminal))
        command.terminal = terminal
        self._attach(command, terminal, "stdout", command.stdout)
        return command

    def _attach(self, command: Command, fd: int, event: str, meter: Meter) -> None:
        pump = Pump(self._loop, self._channel, fd, event)
        pump.begin(command.id, meter)
        command.pumps.append(pump)

    def on_exit(self, pid: int, end: Exit) -> bool:
        """A process ended; True if it was a command."""
        command = self._by_pid.pop(pid, None)
        if command is None:
            return False
        for pump in command.pumps:
            pump.drain()
            if command.terminal is not None:
                pump.close()  # a hang-up, as for any terminal that is closed
            else:
                self._sinks.add(pump)
        cut = {"stdout": command.stdout.cut, "stderr": command.stderr.cut, "display": 0, "stdin": 0}
        if command.feed is not None:
            cut["stdin"] = command.feed.dropped
            command.feed.close()
        self._channel.send(
            {
                "ev": "done",
                "id": command.id,
                "exit_code": end.exit_code,
                "signal": end.signal,
                "alive": False,
                "raised": False,
                "cut": cut,
                "rusage": end.rusage,
            }
        )
        return True


def spawn(plan: Plan, actions: list[tuple[int, ...] | tuple[int, int, str, int, int]]) -> int:
    """Start the program in a session of its own; its pid. Raises Refusal."""
    try:
        os.chdir(plan.cwd)
    except OSError as error:
        raise refusal_from(error, f"start: enter {plan.cwd!r}") from None
    try:
        return os.posix_spawn(
            find_program(plan.argv[0], plan.env.get("PATH", _DEFAULT_PATH)),
            plan.argv,
            plan.env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS_TO_RESET,
        )
    except OSError as error:
        raise refusal_from(error, f"start {plan.argv[0]!r}") from None
    finally:
        os.chdir("/")


def find_program(name: str, path: str) -> str:
    """The file to execute, by the rules of a shell. Raises Refusal."""
    if "/" in name:
        return name
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    raise Refusal("not_found", f"start {name!r}: no such program in PATH={path}")


def set_window(terminal: int, rows: int, columns: int) -> None:
    """Set a terminal's size; the kernel tells its foreground processes."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, _WINDOW.pack(rows, columns, 0, 0))


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
