"""The host's side of one fork-server: start it, ask it for sandboxes, notice its end.

asyncio, called by `runtimes.jail`. Not the guest channel and not policy. The invariant: a
`Spawned` whose posture was not compared is never handed out as a sandbox; whoever fails half way
kills what was made. What comes back from fork-server and child is read with bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from cellwall.jail import fds, owner, plan, posture
from cellwall.jail.worker import Worker
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.shortage import shortage

T = TypeVar("T")
_PRELOAD_TIMEOUT_S = 120.0
_STEP_TIMEOUT_S = 20.0
_START_DESCRIPTORS = 5
"""Two ends of a channel, a pidfd, the work area, and one to read with."""
_REMEDY = "run `cellwall doctor`; it checks each step and names the command that fixes it"


@dataclass(frozen=True, slots=True)
class Settings:
    """How one fork-server is started."""

    guest_path: Path
    template_path: Path
    base_mounts: tuple[str, ...]
    python: str
    """Path of the template's interpreter inside the root."""
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    """What sandboxes have unless their spec says otherwise."""
    preload_environment: Mapping[str, str]
    """What is different while packages are imported."""
    uid_base: int
    uid_count: int
    rootless: bool
    workers: Mapping[str, int]
    """How many processes clone sandboxes, by purpose: `program` and `session`, in this order."""
    seccomp: bytes
    guest_main: str
    guest_preload: str
    guest_reseed: str


@dataclass(slots=True)
class Spawned:
    """A child on its way to being a sandbox: pid on the host, pidfd, the host's channel end."""

    pid: int
    pidfd: int
    channel: socket.socket
    _ended: asyncio.Future[None] | None = field(default=None, repr=False)
    _is_killed: bool = False

    def kill(self) -> None:
        """SIGKILL the pid namespace's init: the kernel kills the rest; nothing once closed."""
        if self.pidfd < 0 or self._is_killed:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def watch(self) -> asyncio.Future[None]:
        """A future that is done when init, and so the whole tree, is gone."""
        if self._ended is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            loop.add_reader(self.pidfd, self._on_end)
        return self._ended

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def discard(self) -> None:
        """Kill and close; for children that never became a sandbox."""
        self.kill()
        if self._ended is not None and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self.pidfd)
        self.channel.close()
        os.close(self.pidfd)


async def _receive(sock: socket.socket, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
    """Wait for one control message; the socket is non-blocking."""
    await _wait_readable(sock.fileno(), timeout_s)
    try:
        return fds.receive_message(sock)
    except ValueError as error:
        raise SandboxBroken(f"fork-server: {error}") from error


def _field(message: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """One field of a message; the fork-server imported packages that nobody reviewed."""
    value = message.get(name)
    if not isinstance(value, kind):
        raise SandboxBroken(f"fork-server: a message without a proper {name!r}")
    return value


async def _wait_readable(fd: int, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, on_ready)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        loop.remove_reader(fd)


@lru_cache(maxsize=256)
def _shape_text(shape: plan.Shape) -> str:
    """What a worker knows a shape by, and reads when it does not know it yet."""
    return json.dumps(asdict(shape))


def pid_of(pidfd: int) -> int:
    """The host's pid of a pidfd, from /proc/self/fdinfo (pidfd_open(2)); -1 when it is gone."""
    _, found, rest = posture.read_text(f"/proc/self/fdinfo/{pidfd}").partition("\nPid:")
    return int(rest.split(None, 1)[0]) if found else -1


def _is_in_other_pid_namespace(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def _check_room() -> None:
    """Raise OSError (EMFILE, ENFILE) unless a start finds the descriptors that it needs."""
    taken: list[int] = []
    try:
        while len(taken) < _START_DESCRIPTORS:
            taken.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    finally:
        for fd in taken:
            os.close(fd)


def _has_ended(pidfd: int) -> bool:
    """Whether it is a pidfd, and its process dead. poll(2), pidfd_open(2)."""
    try:
        link = os.readlink(f"/proc/self/fd/{pidfd}")
    except OSError:
        return False
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return "pidfd" in link and bool(poller.poll(0))


class ForkServer:
    """One running fork-server with its workers.

    Those for programs come first. What sessions need is imported behind them, when somebody wants
    a session or a moment after the start: who only runs a program does not wait for it.
    """

    def __init__(self, settings: Settings, facts: plan.HostFacts) -> None:
        """Start nothing yet."""
        self.settings = settings
        self.facts = facts
        self.forks = 0
        self.started_at = 0.0
        self.preload: Mapping[str, Any] = {}
        self.pid = 0
        self._boot: subprocess.Popen[bytes] | None = None
        self._first = -1
        """A pidfd of the fork-server's first process."""
        self._control: socket.socket | None = None
        self._idle: dict[str, asyncio.LifoQueue[Worker | None]] = {
            purpose: asyncio.LifoQueue() for purpose in settings.workers
        }
        """None: there will be no other one."""
        self._failure: CellwallError | None = None
        """Why there are no workers for sessions."""
        self._is_whole = False
        self._wanted = asyncio.Event()
        self._sockets: list[socket.socket] = []
        self.workers: list[Worker] = []
        self._broken = ""

    @property
    def is_usable(self) -> bool:
        """Whether sandboxes can be forked from it."""
        return self._control is not None and not self._broken and not self._has_hung_up()

    def _has_hung_up(self) -> bool:
        """Whether its end of the control socket is closed: the kernel does that first of all."""
        if self._control is None:
            return True
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLRDHUP)
        if poller.poll(0):
            self.lose("it has ended")
        return bool(self._broken)

    async def start(self) -> None:
        """Start boot, wait until there are workers for programs.

        HostUnsupported with the step that failed; SandboxBroken if it went away under it.
        """
        try:
            self._launch()
        except OSError as error:
            raise shortage(error.errno, "start a fork-server", error) or error from error
        self.started_at = asyncio.get_running_loop().time()
        try:
            message = await self._wait_for("programs")
            self.preload = _field(message, "preload", dict)
            self._find_workers(self.settings.workers["program"])
        except BaseException:
            await self.aclose()
            raise
        for worker in self.workers:
            self.give_back(worker)

    async def complete(self, after_s: float) -> list[Worker]:
        """Have it get ready for sessions once one is wanted, after `after_s` seconds in any case.

        Returns the workers for them: put where they belong, they are given back. Raises as
        `start`; then whoever waits for a worker is told, too.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), after_s)
        known = len(self.workers)
        try:
            if self._control is None:
                raise SandboxBroken("fork-server: it was closed")
            fds.send_message(self._control, {"go": "on"})
            await self._wait_for("ready")
            self._find_workers(len(self._sockets))
        except HostUnsupported as error:  # in its own words: it lives, and so do its programs
            self.refuse_sessions(error)
            raise
        except (CellwallError, OSError, fds.ControlClosed) as error:
            self.lose(f"its workers for sessions did not come: {error}")
            broken = error if isinstance(error, CellwallError) else SandboxBroken(self._broken)
            self.refuse_sessions(broken)
            raise broken from error
        self._is_whole = True
        return self.workers[known:]

    def want_sessions(self) -> None:
        """Have `complete` wait no longer."""
        self._wanted.set()

    def refuse_sessions(self, error: CellwallError) -> None:
        """Tell whoever waits for a worker for sessions, or asks for one, why there is none."""
        self._failure = error
        self._idle["session"].put_nowait(None)

    def _launch(self) -> None:
        """Start boot with its ends of our sockets; raises OSError and keeps nothing then."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

            def pair() -> tuple[socket.socket, int]:
                kept, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.callback(kept.close)
                theirs.callback(given.close)
                kept.setblocking(False)
                return kept, given.fileno()

            control, control_fd = pair()
            pairs = [pair() for _ in range(sum(self.settings.workers.values()))]
            lifeline = os.pidfd_open(os.getpid())
            theirs.callback(os.close, lifeline)
            config = fds.as_document(json.dumps(self._config()))
            theirs.callback(os.close, config)
            worker_fds = [given for _, given in pairs]
            self._boot = self._run_boot([control_fd, config, lifeline, *worker_fds])
            self._control, self._sockets = control, [kept for kept, _ in pairs]
            ours.pop_all()

    def _run_boot(self, inherited: list[int]) -> subprocess.Popen[bytes]:
        control, config, *kept = (str(fd) for fd in inherited)
        interpreter = [sys.executable, "-I", "-S", "-E", str(self.settings.guest_path)]
        return subprocess.Popen(
            [*interpreter, "boot", control, config, *kept],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )

    def _config(self) -> dict[str, Any]:
        settings = self.settings
        facts = self.facts.as_json()
        return {
            "facts": facts,
            "rootless": settings.rootless,
            "template_path": str(settings.template_path),
            "base_mounts": list(settings.base_mounts),
            "guest_path": str(settings.guest_path),
            "python": settings.python,
            "uid_base": settings.uid_base,
            "uid_count": settings.uid_count,
            "environment": {**settings.environment, **settings.preload_environment},
            "forkserver": {
                "facts": facts,
                "preload": list(settings.preload),
                "environment": dict(settings.environment),
                "preload_environment": dict(settings.preload_environment),
                "program_workers": settings.workers["program"],
                "seccomp": settings.seccomp.hex(),
                "guest_main": settings.guest_main,
                "guest_preload": settings.guest_preload,
                "guest_reseed": settings.guest_reseed,
                "python": settings.python,
            },
        }

    async def _wait_for(self, wanted: str) -> dict[str, Any]:
        """The message of that event; `forked` may come before it."""
        if self._control is None:
            raise SandboxBroken("fork-server: not started")
        while True:
            try:
                message, received = await _receive(self._control, _PRELOAD_TIMEOUT_S)
            except (fds.ControlClosed, TimeoutError) as error:
                # What the host lacks has a step and an errno; this was killed, or it crashed.
                raise SandboxBroken(
                    f"start the fork-server: it ended without a word ({error})", remedy=_REMEDY
                ) from error
            fds.close_all(received)
            event = _field(message, "event", str)
            if event == "forked" and not self.pid:
                self.pid = self._checked_pid(_field(message, "pid", int))
                self._first = os.pidfd_open(self.pid)  # boot has not reaped it: it is the same
            elif event == wanted and self.pid:
                return message
            else:
                raise self._failed(message)

    @staticmethod
    def _failed(message: Mapping[str, Any]) -> CellwallError:
        step, problem = _field(message, "step", str), _field(message, "error", str)
        number = message.get("errno")
        return shortage(number, step, problem) or HostUnsupported(
            "jail", f"{step}: {problem}{message.get('detail', '')}", remedy=_REMEDY, errno=number
        )

    def _checked_pid(self, pid: int) -> int:
        """SECURITY: what is said to be the fork-server must be the child of our boot process:
        its children are moved into cgroups, and must never be processes of the host's."""
        if self._boot is None or pid not in posture.children(self._boot.pid):
            raise SandboxBroken(f"fork-server: process {pid} is not the one that boot started")
        return pid

    def _find_workers(self, count: int) -> None:
        """Know the first `count` workers: the kernel lists them in the order of their forks."""
        pids = posture.children(self.pid)
        if len(pids) != count:
            raise SandboxBroken(f"fork-server: it has {len(pids)} processes instead of {count}")
        purposes = [each for each, number in self.settings.workers.items() for _ in range(number)]
        known = len(self.workers)
        if pids[:known] != [each.pid for each in self.workers]:
            raise SandboxBroken("fork-server: a worker has ended")
        self.workers += [
            Worker(sock, purpose, pid, owner.start_time(pid))
            for sock, purpose, pid in list(zip(self._sockets, purposes, pids, strict=False))[known:]
        ]

    async def take_worker(self, purpose: str) -> Worker:
        """Wait for an idle worker; whoever takes it gives it back, whatever happens."""
        if purpose == "session":
            self.want_sessions()
        worker = await self._idle[purpose].get()
        if worker is None or self._broken:
            self._idle[purpose].put_nowait(worker)  # whoever else waits must hear of it, too
            no_sessions = self._failure if worker is None else None
            raise no_sessions or SandboxBroken(f"fork-server: {self._broken}")
        return worker

    async def settle(self, worker: Worker) -> None:
        """Have a worker go to its first berth."""
        try:
            await self._ask(worker.control, {}, worker.berth.entrances if worker.berth else ())
        except (fds.ControlClosed, OSError, TimeoutError) as error:
            raise SandboxBroken(f"fork-server: a worker is gone ({error})") from error
        worker.arrive()

    def give_back(self, worker: Worker) -> None:
        """Let another sandbox have the worker."""
        self._idle[worker.purpose].put_nowait(worker)

    def check_alive(self) -> None:
        """Raise if its boot process has ended: then it ends as well, and its sandboxes with it."""
        if self._boot is None or self._boot.poll() is not None:
            self.lose("it has ended")
            raise SandboxBroken(f"fork-server: {self._broken}")

    def lose(self, why: str) -> None:
        """Fork nothing more from here: a worker is gone, or not where it should be."""
        self._broken = self._broken or why

    async def spawn(
        self,
        worker: Worker,
        *,
        shape: plan.Shape,
        uid: int,
        guest: Mapping[str, Any],
        start: str,
    ) -> Spawned:
        """Have a worker clone a child into new namespaces and into the cgroups it is in itself.

        Then the worker goes on to its berth, if it has one.
        """
        try:
            _check_room()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise shortage(error.errno, "clone a sandbox", error) or error from error
        request = {"shape": _shape_text(shape), "uid": uid, "guest": dict(guest), "start": start}
        entrances = worker.berth.entrances if worker.berth else ()
        try:
            message, received = await self._ask(worker.control, request, entrances, theirs)
        except BaseException as error:
            ours.close()
            self.lose(f"{type(error).__name__}: {error}")
            if isinstance(error, (fds.ControlClosed, OSError, TimeoutError)):
                raise SandboxBroken(f"fork-server: a worker is gone ({error})") from error
            raise
        if not received:
            ours.close()
            number = message.get("errno")
            raise shortage(number, "clone a sandbox", message.get("error")) or HostUnsupported(
                "namespaces",
                f"clone a sandbox: {message.get('error')}",
                remedy=_REMEDY,
                errno=number,
            )
        try:
            pid = self._checked_child(received)
        except BaseException as error:
            # SECURITY: it holds a pidfd of ours, to notice our end. Whatever it hands us is
            # killed on the slightest doubt, so that must never be a process of the host.
            fds.close_all(received)
            ours.close()
            self.lose(str(error))
            raise
        self.forks += 1
        child = Spawned(pid, received[0], ours)
        try:
            worker.arrive()
        except BaseException as error:
            child.discard()
            self.lose(str(error))
            number = error.errno if isinstance(error, OSError) else None
            raise shortage(number, "clone a sandbox", error) or error from error
        return child

    @staticmethod
    def _checked_child(received: list[int]) -> int:
        """The pid on the host of a child just cloned, -1 if it is dead and gone already."""
        is_ours = len(received) == 1
        try:
            pid = pid_of(received[0])
            is_ours = is_ours and _is_in_other_pid_namespace(pid)
        except OSError as error:
            step = "fork-server: look at the child it cloned"
            raise shortage(error.errno, step, error) or error from error
        # One that is dead already cannot be harmed, and what ended it is in its channel: `hear`.
        if not is_ours and (len(received) != 1 or not _has_ended(received[0])):
            raise SandboxBroken("fork-server: it answered with a process that is no sandbox's")
        return pid

    @staticmethod
    async def _ask(
        worker: socket.socket,
        request: Mapping[str, Any],
        entrances: Sequence[int] = (),
        channel: socket.socket | None = None,
    ) -> tuple[dict[str, Any], list[int]]:
        with contextlib.ExitStack() as given:
            # Closed before the answer comes: there is a number free for its descriptor.
            numbers = [] if channel is None else [given.enter_context(channel).fileno()]
            fds.send_message(worker, dict(request), [*numbers, *entrances])
        return await _receive(worker, _STEP_TIMEOUT_S)

    def abandon(self) -> None:
        """In a forked child: close our ends; the parent still has its own."""
        for sock in (self._control, *self._sockets):
            if sock is not None:
                sock.close()
        for worker in self.workers:
            worker.let_go()
        self._let_go_of_first()
        self._control, self._sockets, self._boot = None, [], None

    async def aclose(self) -> None:
        """Close the control socket: the fork-server ends and the kernel kills its sandboxes."""
        for sock in (self._control, *self._sockets):
            if sock is not None:
                sock.close()
        self._control, self._sockets = None, []
        boot, self._boot = self._boot, None
        if boot is not None:
            if not self._is_whole and self._first >= 0:
                # It may be importing, and would not look up for a second. Boot reaps it.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
            loop = asyncio.get_running_loop()
            try:
                await asyncio.wait_for(loop.run_in_executor(None, boot.wait), 5.0)
            except TimeoutError:
                boot.kill()
                await loop.run_in_executor(None, boot.wait)
        self._let_go_of_first()

    def _let_go_of_first(self) -> None:
        if self._first >= 0:
            os.close(self._first)
            self._first = -1


async def hear(child: Spawned, word: bytes) -> None:
    """Wait for one word of a child's own set-up, or raise with the step that failed in it."""
    child.channel.setblocking(False)
    await _wait_readable(child.channel.fileno(), _STEP_TIMEOUT_S)
    first = child.channel.recv(1)
    if first == word:
        return
    if first != b"E":
        raise SandboxBroken("sandbox set-up: the child ended without a word")
    try:
        data = json.loads(child.channel.recv(65_536))
        step, problem, errno = data["step"], data["error"], data.get("errno")
    except (BlockingIOError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SandboxBroken("sandbox set-up: the child's report was cut short") from error
    raise HostUnsupported("jail", f"sandbox set-up, {step}: {problem}", remedy=_REMEDY, errno=errno)
