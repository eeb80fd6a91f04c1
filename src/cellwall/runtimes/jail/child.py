"""A child that a fork-server cloned, until it is a sandbox.

Runs on asyncio in the engine process. Asking for the clone is in `fork_server`, and what the child
may do in `posture`. The invariants: a fork-server hands over one child of its own, or nothing; a
`Child` whose posture was not compared is never handed out as a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
from dataclasses import dataclass, field

from cellwall.jail.fast import machine_code
from cellwall.jail.inspect import posture
from cellwall.jail.protocol import fds
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.shortage import shortage
from cellwall.runtimes.shared.replies import error_number, wait_readable

_WORD_TIMEOUT_S = 20.0
_FLAGS, _THREADS = 6, 17
"""Indices into the result of `posture.read_stat`: flags and num_threads."""
_PF_EXITING = 4
"""PF_EXITING in include/linux/sched.h."""
REMEDY = "run `cellwall doctor`; it checks each step and names the command that fixes it"


@dataclass(slots=True)
class Child:
    """A child that is not yet a sandbox: its pid and pidfd, the host's end of its channel."""

    pid: int
    pidfd: int
    channel: socket.socket
    outputs: list[int] = field(default_factory=list)
    """File descriptors of the host's ends of its stdout and stderr, if any. Code that takes them
    over empties this list."""
    standby: socket.socket | None = None
    """The host's end of its standby line, on which another server may take it over."""
    hangs_on: tuple[int, ...] = ()
    """Descriptors whose end would be its end, too: the control sockets of the worker and the
    fork-server that made it, and the lock of their ids."""
    _ended: asyncio.Future[None] | None = field(default=None, repr=False)
    _is_killed: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether init has not ended; until then no other process can get its pid."""
        if self.pidfd < 0:
            return False
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return not poller.poll(0)

    def kill(self) -> None:
        """SIGKILL the pid namespace's init: the kernel kills the rest. Do nothing once closed."""
        if self.pidfd < 0 or self._is_killed:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def watch(self) -> asyncio.Future[None]:
        """Return a future that is done when init, and so the whole tree, is gone."""
        if self._ended is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            loop.add_reader(self.pidfd, self._on_end)
        return self._ended

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def leave(self) -> None:
        """Stop watching; it goes on without this process."""
        if self._ended is not None and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self.pidfd)

    def discard(self) -> None:
        """Kill and close a child that never became a sandbox."""
        self.kill()
        if self._ended is not None and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self.pidfd)
        self.channel.close()
        if self.standby is not None:
            self.standby.close()
        for fd in (self.pidfd, *self.outputs):
            os.close(fd)
        self.outputs.clear()


def pid_of(pidfd: int) -> int:
    """The host's pid of a pidfd, from /proc/self/fdinfo (pidfd_open(2)); -1 when it is gone."""
    _, found, rest = posture.read_text(f"/proc/self/fdinfo/{pidfd}").partition("\nPid:")
    return int(rest.split(None, 1)[0]) if found else -1


def _is_in_other_pid_namespace(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def _is_leaving(pid: int) -> bool:
    """Whether a process has only one thread, which is exiting.

    See proc_pid_stat(5), which every user can read. From then until its end, newer kernels let only
    root read its namespaces.
    """
    fields = posture.read_stat(pid)
    if len(fields) <= _THREADS or fields[_THREADS] != "1":
        return False
    return bool(int(fields[_FLAGS]) & _PF_EXITING)


def _has_ended(pidfd: int) -> bool:
    """Whether `pidfd` is a pidfd whose process is dead. poll(2), pidfd_open(2)."""
    try:
        link = os.readlink(f"/proc/self/fd/{pidfd}")
    except OSError:
        return False
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return "pidfd" in link and bool(poller.poll(0))


def checked(received: list[int]) -> int:
    """Return the host's pid of a child just cloned, -1 if it is already dead and gone."""
    is_ours = len(received) == 1
    try:
        pid = pid_of(received[0])
        is_ours = is_ours and _is_in_other_pid_namespace(pid)
    except OSError as error:
        step = "fork-server: look at the child it cloned"
        raise shortage(error.errno, step, error) or error from error
    # A child that is dead or exiting cannot be harmed; its channel says what ended it: `hear`.
    if is_ours or (len(received) == 1 and (_is_leaving(pid) or _has_ended(received[0]))):
        return pid
    raise SandboxBroken("fork-server: it answered with a process that is no sandbox's")


async def hear(child: Child, word: bytes) -> None:
    """Wait for `word` from a child's own set-up; raise if the child reports a failed step."""
    child.channel.setblocking(False)
    await wait_readable(child.channel.fileno(), _WORD_TIMEOUT_S)
    first = child.channel.recv(1)
    if first != word:
        raise _failed(child, first)


async def hear_alone(child: Child, idle: bytes) -> tuple[socket.socket, bool]:
    """Wait for the set-up of a sandbox of one program.

    Returns its listener, and whether its context is idle. The listener comes first, with a word of
    its own. The context says that it is idle in the bytes `idle`, before the last word or after it.
    """
    child.channel.setblocking(False)
    numbers: list[int] = []
    try:
        heard = await _heard_whole(child, idle, numbers)
        whole = machine_code.LISTENER + machine_code.WORD
        is_idle = heard == machine_code.LISTENER + idle + machine_code.WORD
        if len(numbers) != 1 or not (is_idle or heard == whole):
            raise SandboxBroken("sandbox set-up: the child said something else than a child says")
        listener = socket.socket(fileno=numbers[0])
    except BaseException:
        fds.close_all(numbers)
        raise
    listener.setblocking(False)
    if not _is_listener(listener):
        listener.close()
        raise SandboxBroken("sandbox set-up: the child handed over something else")
    return listener, is_idle


async def _heard_whole(child: Child, idle: bytes, numbers: list[int]) -> bytes:
    """Return what the child says up to its last word; add received descriptors to `numbers`.

    Not a byte more is read: what follows that word belongs to the channel.
    """
    heard = said = b""
    while not said.endswith(machine_code.WORD):
        size = len(idle) - len(said) if said and idle.startswith(said) else 1
        try:
            data, received, _, _ = socket.recv_fds(
                child.channel, size or 1, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            await wait_readable(child.channel.fileno(), _WORD_TIMEOUT_S)
            continue
        numbers += received
        heard += data
        said = heard.removeprefix(machine_code.LISTENER)
        word = said.removeprefix(idle)
        if not data or word[:1] == b"E" or len(word) > len(idle):
            raise _failed(child, word[:1], word[1:])
    return heard


def _is_listener(sock: socket.socket) -> bool:
    """Whether `sock` is a listening Unix stream socket.

    SECURITY: a worker has imported unreviewed packages, and could hand over any descriptor.
    """
    is_ours = (sock.family, sock.type) == (socket.AF_UNIX, socket.SOCK_STREAM)
    return is_ours and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _failed(child: Child, first: bytes, more: bytes = b"") -> CellwallError:
    """The error that a child's report describes, or one saying that it made no report."""
    if first != b"E":
        return SandboxBroken("sandbox set-up: the child ended without a word")
    try:
        # A context about to be killed may have added that it is idle; that begins with a zero byte.
        report, _, _ = (more + child.channel.recv(65_536)).partition(b"\0")
        data = json.loads(report)
        step, problem, errno = data["step"], data["error"], error_number(data)
    except (
        BlockingIOError,
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
        SandboxBroken,
    ) as error:
        cut_short = SandboxBroken("sandbox set-up: the child's report was cut short")
        cut_short.__cause__ = error
        return cut_short
    return HostUnsupported("jail", f"sandbox set-up, {step}: {problem}", remedy=REMEDY, errno=errno)
