"""The host's side of one fork-server: start it, ask it for sandboxes, notice its end.

asyncio, called by `runtimes.jail`. Not the guest channel and not policy. The invariant: a
`Spawned` whose posture was not compared is never handed out as a sandbox; whoever fails half way
kills what was made. What comes back from fork-server and child is read with bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
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
from typing import Any, NamedTuple, TypeVar

from cellwall.jail import cgroups, exhaustion, fds, owner, plan, posture
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken

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


class Berth(NamedTuple):
    """Cgroups a worker will move itself to, and the open files through which it does."""

    groups: cgroups.Groups
    entrances: tuple[int, ...]

    def close(self) -> None:
        """Close the files; the directories stay."""
        fds.close_all(self.entrances)


@dataclass(slots=True)
class Worker:
    """One process of a fork-server that clones sandboxes, one after the other."""

    control: socket.socket
    purpose: str
    pid: int
    """On the host."""
    started: int | None
    groups: cgroups.Groups | None = None
    """Where it is now: the cgroups of the next sandbox, which is born into them."""
    berth: Berth | None = None
    """Where it goes by itself once it has cloned that one; None where the host has to move it."""

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return self.started is None or owner.start_time(self.pid) != self.started

    def move(self, groups: cgroups.Groups) -> None:
        """Put the worker into other cgroups; raise if it is gone, or its pid somebody else's."""
        if self.is_gone:
            raise SandboxBroken("fork-server: a worker is gone before it could be moved")
        try:
            groups.join(self.pid)
        except HostUnsupported as error:
            if error.errno != errno.ESRCH:
                raise
            raise SandboxBroken("fork-server: a worker ended while it was moved") from error
        self.groups = groups

    def let_go(self) -> list[cgroups.Groups]:
        """Forget where it is and where it would go; returns the directories, to be removed."""
        held = [] if self.groups is None else [self.groups]
        if self.berth is not None:
            held.append(self.berth.groups)
            self.berth.close()
        self.groups = self.berth = None
        return held

    def arrive(self) -> None:
        """It says that it has gone to its berth.

        SECURITY: the kernel is asked, because the worker imported packages that nobody reviewed,
        and nothing of ours may be in a sandbox's cgroups when caller code comes.
        """
        if self.berth is None:
            return
        found = cgroups.places(posture.read_text(f"/proc/{self.pid}/cgroup"))
        if not self.berth.groups.expected_lines() <= found:
            raise SandboxBroken("fork-server: a worker has not left a sandbox's cgroups")
        self.groups = self.berth.groups
        self.berth.close()
        self.berth = None


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
    """One running fork-server with its workers."""

    def __init__(self, settings: Settings, facts: plan.HostFacts) -> None:
        """Start nothing yet."""
        self.settings = settings
        self.facts = facts
        self.forks = 0
        self.started_at = 0.0
        self.preload: Mapping[str, Any] = {}
        self.pid = 0
        self._boot: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: dict[str, asyncio.LifoQueue[Worker]] = {
            purpose: asyncio.LifoQueue() for purpose in settings.workers
        }
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
        """Start boot, wait for "ready"; raises HostUnsupported with the step that failed."""
        try:
            self._launch()
        except OSError as error:
            raise exhaustion.shortage(error.errno, "start a fork-server", error) or error from error
        self.started_at = asyncio.get_running_loop().time()
        try:
            await self._wait_started()
            self.workers = self._find_workers()
        except BaseException:
            await self.aclose()
            raise
        for worker in self.workers:
            self.give_back(worker)

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

    async def _wait_started(self) -> None:
        if self._control is None:
            raise SandboxBroken("fork-server: not started")
        while True:
            try:
                message, received = await _receive(self._control, _PRELOAD_TIMEOUT_S)
            except (fds.ControlClosed, TimeoutError) as error:
                raise HostUnsupported(
                    "fork-server",
                    f"start the fork-server: it ended without a word ({error})",
                    remedy=_REMEDY,
                ) from error
            fds.close_all(received)
            event = _field(message, "event", str)
            if event == "forked" and not self.pid:
                self.pid = self._checked_pid(_field(message, "pid", int))
            elif event == "ready" and self.pid:
                self.preload = _field(message, "preload", dict)
                return
            else:
                raise self._failure(message)

    @staticmethod
    def _failure(message: Mapping[str, Any]) -> CellwallError:
        step, problem = _field(message, "step", str), _field(message, "error", str)
        number = message.get("errno")
        return exhaustion.shortage(number, step, problem) or HostUnsupported(
            "jail", f"{step}: {problem}{message.get('detail', '')}", remedy=_REMEDY, errno=number
        )

    def _checked_pid(self, pid: int) -> int:
        """SECURITY: what is said to be the fork-server must be the child of our boot process:
        its children are moved into cgroups, and must never be processes of the host's."""
        if self._boot is None or pid not in posture.children(self._boot.pid):
            raise SandboxBroken(f"fork-server: process {pid} is not the one that boot started")
        return pid

    def _find_workers(self) -> list[Worker]:
        """The workers as the kernel lists them, in the order in which they were forked."""
        pids = posture.children(self.pid)
        if len(pids) != len(self._sockets):
            raise SandboxBroken(
                f"fork-server: it has {len(pids)} processes instead of {len(self._sockets)}"
            )
        purposes = [each for each, count in self.settings.workers.items() for _ in range(count)]
        return [
            Worker(sock, purpose, pid, owner.start_time(pid))
            for sock, purpose, pid in zip(self._sockets, purposes, pids, strict=True)
        ]

    async def take_worker(self, purpose: str) -> Worker:
        """Wait for an idle worker; whoever takes it gives it back, whatever happens."""
        worker = await self._idle[purpose].get()
        if self._broken:
            self.give_back(worker)  # whoever else waits must hear of it, too
            raise SandboxBroken(f"fork-server: {self._broken}")
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
            raise exhaustion.shortage(error.errno, "clone a sandbox", error) or error from error
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
            raise exhaustion.shortage(
                number, "clone a sandbox", message.get("error")
            ) or HostUnsupported(
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
            raise exhaustion.shortage(number, "clone a sandbox", error) or error from error
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
            raise exhaustion.shortage(error.errno, step, error) or error from error
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
        self._control, self._sockets, self._boot = None, [], None

    async def aclose(self) -> None:
        """Close the control socket: the fork-server ends and the kernel kills its sandboxes."""
        for sock in (self._control, *self._sockets):
            if sock is not None:
                sock.close()
        self._control, self._sockets = None, []
        boot, self._boot = self._boot, None
        if boot is not None:
            loop = asyncio.get_running_loop()
            try:
                await asyncio.wait_for(loop.run_in_executor(None, boot.wait), 5.0)
            except TimeoutError:
                boot.kill()
                await loop.run_in_executor(None, boot.wait)


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
