"""The host's side of one fork-server: start it, have it clone sandboxes, detect its end.

Runs on asyncio in the engine process; `runtimes.jail.runtime` calls it. It is not the guest
channel, not policy, and it does not follow a child after the clone (`child`). The invariant: a
method that fails half way kills what it had started.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cellwall.jail.inspect import posture
from cellwall.jail.plan import plan
from cellwall.jail.processes import clone_request
from cellwall.jail.protocol import environment, fds
from cellwall.linux import owner_label
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken, UsageError
from cellwall.model.shortage import shortage
from cellwall.runtimes.jail.child import REMEDY, Child, checked
from cellwall.runtimes.jail.starting.launch import Launched, Settings, launch
from cellwall.runtimes.jail.worker import Worker
from cellwall.runtimes.shared.replies import error_number, member, receive

_PRELOAD_TIMEOUT_S = 120.0
_PRELOAD_STEP = "fork-server: preload"
_TEMPLATE_REMEDY = "change its preload list or its packages in templates.toml and build it again"
_STEP_TIMEOUT_S = 20.0
_OTHERS_ENDED = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ESRCH})
"""Error numbers of a set-up step that mean that a process it rehearsed with has ended. The host
lacks nothing then, and another fork-server will not fail in the same way."""
_START_DESCRIPTORS = 8
"""Number of free descriptors that one start needs. Before the clone these are both ends of the
channel and of two pipes; after it one end of each, a pidfd and a listener. One more is for the work
area and one to read files with."""


_left: list[subprocess.Popen[bytes]] = []
"""Processes that go on without this one: nothing waits for them."""


class _NotSent(Exception):
    """A request could not be sent to a worker; `meant` is the error to raise to the caller."""

    def __init__(self, meant: CellwallError) -> None:
        super().__init__(str(meant))
        self.meant = meant


class _Ends(NamedTuple):
    """The channel and the pipes that a sandbox is started with."""

    ours: socket.socket
    theirs: socket.socket
    outputs: list[int]
    """File descriptors of the host's ends of stdout and stderr; empty if the sandbox keeps both
    itself."""
    inputs: list[int]
    """File descriptors of the sandbox's ends of those pipes."""
    standby: socket.socket | None = None
    """The host's end of the standby line, if there is one."""
    their_standby: socket.socket | None = None

    @classmethod
    def opened(cls, own_environment: Mapping[str, str] | None, *, is_alone: bool) -> _Ends:
        """Open the channel, and the pipes if the sandbox runs alone. Raises as `_channel` does."""
        ours, theirs = _channel(own_environment)
        pipes: list[tuple[int, int]] = []
        try:
            while is_alone and len(pipes) < 2:
                pipes.append(os.pipe())
        except OSError as error:
            ends = cls(ours, theirs, *_sides(pipes))
            ends.close_theirs()
            ends.close_ours()
            raise shortage(error.errno, "clone a sandbox", error) or error from error
        return cls(ours, theirs, *_sides(pipes))

    def with_standby(self) -> _Ends:
        """Return the same with a standby line; close all if there can be none."""
        try:
            standby, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            self.close_theirs()
            self.close_ours()
            raise shortage(error.errno, "clone a sandbox", error) or error from error
        return self._replace(standby=standby, their_standby=theirs)

    def given(self, mounts: Sequence[int], move_files: Sequence[int]) -> list[int]:
        """Return the descriptors that a worker is sent, in the order that it expects."""
        standby = () if self.their_standby is None else (self.their_standby.fileno(),)
        return [self.theirs.fileno(), *mounts, *standby, *self.inputs, *move_files]

    def close_ours(self) -> None:
        """Close the host's ends, for a sandbox that could not be started."""
        self.ours.close()
        if self.standby is not None:
            self.standby.close()
        fds.close_all(self.outputs)

    def close_theirs(self) -> None:
        """Close the sandbox's ends; the sandbox has its own copies."""
        self.theirs.close()
        if self.their_standby is not None:
            self.their_standby.close()
        fds.close_all(self.inputs)


class Root(NamedTuple):
    """The root that a sandbox is started with."""

    shape: plan.Shape
    mounts: Sequence[int] = ()
    """The detached mount of an image's tree, if it has one; the caller keeps the descriptor."""
    program: bytes = b""
    """The seccomp filter, if it is not the fork-server's."""


def _sides(pipes: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [reading for reading, _ in pipes], [writing for _, writing in pipes]


def _channel(own_environment: Mapping[str, str] | None) -> tuple[socket.socket, socket.socket]:
    """Open the host's end and the sandbox's end of a channel.

    If `own_environment` is given, it is sent into the channel.
    """
    try:
        told = None if own_environment is None else environment.packed(own_environment)
    except ValueError as error:
        raise UsageError(f"env: {error}", remedy="put what is large into a file") from None
    with contextlib.ExitStack() as made:
        try:
            _check_room()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            made.enter_context(ours)
            made.enter_context(theirs)
            if told is not None:
                environment.send(ours, told)
        except OSError as error:
            raise shortage(error.errno, "clone a sandbox", error) or error from error
        made.pop_all()
    return ours, theirs


def _check_room() -> None:
    """Raise OSError (EMFILE, ENFILE) unless enough descriptors are free for one start."""
    taken: list[int] = []
    try:
        while len(taken) < _START_DESCRIPTORS:
            taken.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    finally:
        for fd in taken:
            os.close(fd)


class ForkServer:
    """One running fork-server with its workers.

    The workers for programs are forked first. What sessions need is imported afterwards: when a
    session is first asked for, or a moment after the start. So a program never waits for that
    import.
    """

    def __init__(
        self, settings: Settings, facts: plan.HostFacts, launched: Launched | None = None
    ) -> None:
        """`launched`: its processes, if they are on their way already."""
        self._launched = launched
        self.settings = settings
        self.facts = facts
        self.forks = 0
        self.started_at = 0.0
        self.preload: Mapping[str, Any] = {}
        self.pid = 0
        self._boot: subprocess.Popen[bytes] | None = None
        self._first = -1
        """Pidfd of the fork-server's first process; -1 if there is none."""
        self._control: socket.socket | None = None
        self._idle: dict[str, asyncio.LifoQueue[Worker | None]] = {
            purpose: asyncio.LifoQueue() for purpose in settings.workers
        }
        """Idle workers by purpose. None in a queue means that it will get no more workers."""
        self._failure: CellwallError | None = None
        """The reason why there are no workers for sessions."""
        self._is_whole = False
        self._wanted = asyncio.Event()
        self._sockets: list[socket.socket] = []
        self.workers: list[Worker] = []
        self._broken = ""

    @property
    def is_usable(self) -> bool:
        """Whether sandboxes can be forked from this fork-server."""
        return self._control is not None and not self._broken and not self._has_hung_up()

    def _has_hung_up(self) -> bool:
        """Whether the fork-server's end of the control socket is closed.

        The kernel closes it before anything else when the process ends.
        """
        if self._control is None:
            return True
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLRDHUP)
        if poller.poll(0):
            self.lose("it has ended")
        return bool(self._broken)

    async def start(self) -> None:
        """Start boot and wait until there are workers for programs.

        Raises HostUnsupported with the step that failed, or SandboxBroken if the fork-server ended
        meanwhile.
        """
        try:
            self._launch()
        except fds.ControlClosed as error:
            raise SandboxBroken("start the fork-server: boot has ended", remedy=REMEDY) from error
        except OSError as error:
            raise shortage(error.errno, "start a fork-server", error) or error from error
        self.started_at = asyncio.get_running_loop().time()
        try:
            message = await self._wait_for("programs")
            self.preload = member(message, "preload", dict)
            self._find_workers(self.settings.workers["program"])
        except BaseException:
            await self.aclose()
            raise
        for worker in self.workers:
            self.give_back(worker)

    async def complete(self, after_s: float) -> list[Worker]:
        """Make it ready for sessions: on the first demand, at the latest after `after_s` seconds.

        Returns the workers for sessions; the caller places them and then gives them back. Raises as
        `start` does; an error is also raised in every call that waits for a worker for a session.
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
        except HostUnsupported as error:  # it lives, and so do its programs
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
        """End the wait in `complete` at once."""
        self._wanted.set()

    def refuse_sessions(self, error: CellwallError) -> None:
        """Have every present and later wait for a session worker raise `error`."""
        self._failure = error
        self._idle["session"].put_nowait(None)

    def _launch(self) -> None:
        launched, self._launched = self._launched, None
        self._boot, self._control, self._sockets = launched or launch(self.settings, self.facts)

    async def _wait_for(self, wanted: str) -> dict[str, Any]:
        """Wait for the message of event `wanted`; the event `forked` may come before it."""
        if self._control is None:
            raise SandboxBroken("fork-server: not started")
        while True:
            try:
                message, received = await receive(self._control, _PRELOAD_TIMEOUT_S)
            except (fds.ControlClosed, TimeoutError) as error:
                # If the host lacks something, a message names the step and the errno. Without a
                # message the fork-server was killed or crashed.
                raise SandboxBroken(
                    f"start the fork-server: it ended without a word ({error})", remedy=REMEDY
                ) from error
            fds.close_all(received)
            event = member(message, "event", str)
            if event == "forked" and not self.pid:
                self.pid = self._checked_pid(member(message, "pid", int))
                self._first = os.pidfd_open(self.pid)  # not reaped, so not reused
            elif event == wanted and self.pid:
                return message
            else:
                raise self._failed(message)

    @staticmethod
    def _failed(message: Mapping[str, Any]) -> CellwallError:
        step, problem = member(message, "step", str), member(message, "error", str)
        number = error_number(message)
        if number in _OTHERS_ENDED:
            return SandboxBroken(f"{step}: {problem}: a process of the fork-server was killed")
        what = f"{step}: {problem}{message.get('detail', '')}"
        if (lack := shortage(number, step, problem)) is not None:
            return lack
        if not number and step.startswith(_PRELOAD_STEP):  # the template's own problem, on any host
            return HostUnsupported("template", what, remedy=_TEMPLATE_REMEDY, errno=number)
        return HostUnsupported("jail", what, remedy=REMEDY, errno=number)

    def _checked_pid(self, pid: int) -> int:
        """Check the pid that the fork-server reports.

        SECURITY: it must be the child of our boot process. The children of this pid are moved into
        cgroups, and a process of the host must never be moved there.
        """
        if self._boot is None or pid not in posture.children(self._boot.pid):
            raise SandboxBroken(f"fork-server: process {pid} is not the one that boot started")
        return pid

    def _find_workers(self, count: int) -> None:
        """Record the first `count` workers; the kernel lists them in the order of their forks."""
        try:
            pids = posture.children(self.pid)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise SandboxBroken("fork-server: it has ended under its own start") from error
        if len(pids) != count:
            raise SandboxBroken(f"fork-server: it has {len(pids)} processes instead of {count}")
        purposes = [each for each, number in self.settings.workers.items() for _ in range(number)]
        known = len(self.workers)
        if pids[:known] != [each.pid for each in self.workers]:
            raise SandboxBroken("fork-server: a worker has ended")
        self.workers += [
            Worker(sock, purpose, pid, owner_label.start_time(pid))
            for sock, purpose, pid in list(zip(self._sockets, purposes, pids, strict=False))[known:]
        ]

    async def take_worker(self, purpose: str) -> Worker:
        """Wait for an idle worker. The caller must give it back in every case."""
        if purpose == "session":
            self.want_sessions()
        worker = await self._idle[purpose].get()
        if worker is None or self._broken:
            self._idle[purpose].put_nowait(worker)  # every other waiting call must see it, too
            no_sessions = self._failure if worker is None else None
            raise no_sessions or SandboxBroken(f"fork-server: {self._broken}")
        return worker

    async def settle(self, worker: Worker) -> None:
        """Have a worker move itself into the cgroups of its first sandbox."""
        try:
            fds.send(worker.control, clone_request.MOVE, worker.move_files)
            await receive(worker.control, _STEP_TIMEOUT_S)
        except (fds.ControlClosed, OSError, TimeoutError) as error:
            raise SandboxBroken(f"fork-server: a worker is gone ({error})") from error
        worker.confirm_moved()

    def give_back(self, worker: Worker) -> None:
        """Make the worker available to another sandbox."""
        self._idle[worker.purpose].put_nowait(worker)

    def check_alive(self) -> None:
        """Raise if the boot process has ended: the fork-server and its sandboxes end with it."""
        if self._boot is None or self._boot.poll() is not None:
            self.lose("it has ended")
            raise SandboxBroken(f"fork-server: {self._broken}")

    def lose(self, why: str) -> None:
        """Fork nothing more here: a worker has ended, or is not in the right cgroups."""
        self._broken = self._broken or why

    async def spawn(
        self,
        worker: Worker,
        *,
        root: Root,
        uid: int,
        guest: Mapping[str, Any],
        start: str,
        own_environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Have a worker clone a child into new namespaces and into the worker's own cgroups.

        Afterwards the worker moves itself into its `next_cgroups`, if it has any. `own_environment`
        replaces the fork-server's environment; UsageError if it is too large.
        """
        ends = _Ends.opened(own_environment, is_alone=start == clone_request.ALONE)
        ends = ends.with_standby() if guest.get("has_standby") else ends
        is_told = own_environment is not None
        request = clone_request.encoded(
            root.shape, uid, guest, start, is_told=is_told, program=root.program
        )
        try:
            self._send(worker, request, ends, root.mounts)
            message, received = await receive(worker.control, _STEP_TIMEOUT_S)
            number = None if received else error_number(message)
        except _NotSent as error:  # the request did not reach the worker, which is unchanged
            ends.close_ours()
            raise error.meant from error
        except BaseException as error:
            ends.close_ours()
            self.lose(f"{type(error).__name__}: {error}")
            if isinstance(error, (fds.ControlClosed, OSError, TimeoutError)):
                raise SandboxBroken(f"fork-server: a worker is gone ({error})") from error
            raise
        if not received:
            ends.close_ours()
            if number in _OTHERS_ENDED:
                raise SandboxBroken(f"clone a sandbox: it was killed ({message.get('error')})")
            raise shortage(number, "clone a sandbox", message.get("error")) or HostUnsupported(
                "namespaces",
                f"clone a sandbox: {message.get('error')}",
                remedy=REMEDY,
                errno=number,
            )
        try:
            pid = checked(received)
        except BaseException as error:
            # SECURITY: the fork-server holds a pidfd of the engine, to detect its end. A process
            # that it hands over is killed on the slightest doubt, so that must never be a process
            # of the host.
            fds.close_all(received)
            ends.close_ours()
            self.lose(str(error))
            raise
        self.forks += 1
        child = Child(pid, received[0], ends.ours, ends.outputs, standby=ends.standby)
        try:
            worker.confirm_moved()
        except BaseException as error:
            child.discard()
            self.lose(str(error))
            number = error.errno if isinstance(error, OSError) else None
            raise shortage(number, "clone a sandbox", error) or error from error
        return child

    @staticmethod
    def _send(worker: Worker, request: bytes, ends: _Ends, mounts: Sequence[int]) -> None:
        """Send a request. Raises `_NotSent` if the host is out of descriptors or memory."""
        try:
            fds.send(worker.control, request, ends.given(mounts, worker.move_files))
        except OSError as error:
            short = shortage(error.errno, "clone a sandbox", error)
            raise error if short is None else _NotSent(short) from error
        finally:
            # Closed before the answer arrives, so that a number is free for the answer's
            # descriptor.
            ends.close_theirs()

    def holds_of(self, worker: Worker) -> tuple[int, ...]:
        """Return the descriptors whose end ends the sandboxes that `worker` makes."""
        control = () if self._control is None else (self._control.fileno(),)
        return (worker.control.fileno(), *control)

    def leave(self) -> None:
        """Close the sockets, of which another process has copies; the fork-server goes on."""
        if self._boot is not None:
            _left.append(self._boot)
        for sock in (self._control, *self._sockets):
            if sock is not None:
                sock.close()
        for worker in self.workers:
            if worker.next_cgroups is not None:
                worker.next_cgroups.close()
        self._let_go_of_first()
        self._control, self._sockets, self._boot = None, [], None

    def abandon(self) -> None:
        """Close the fork-server's descriptors in a forked child; the parent keeps its own."""
        for sock in (self._control, *self._sockets):
            if sock is not None:
                sock.close()
        for worker in self.workers:
            worker.release()
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
                # It may be importing, and would not notice the end for a second. Boot reaps it.
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
