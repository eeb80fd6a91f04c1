"""Stage C for a sandbox of one program: the only Python process in it is the program's own.

This is the worker's half; `forkserver` calls `Maker.make`, as it calls `sandbox_init` for other
sandboxes. The cloned child shares the memory of the worker, which stands still meanwhile. The child
makes the same calls in the same order as a copy of the worker would, but as machine code
(`machine_code`) from a list. Then it forks the context, a copy of this worker, and becomes a small
program that reaps and tells the host how the context ended. The steps:

    5e.1  die with the worker; put output at 1 and 2; close all but channel and small program
    5e.2  as 5d.3 to 5d.5 of `sandbox_init`: user, mounts, own cgroup namespace, lockdown
    5e.3  open an input of its own; listen for the context's messages, at an address that Landlock
          lets it connect to; send the listener to the host, which this does not wake; lower the
          limit of descriptors
    5e.4  fork the context, which waits at the channel for its program
    5e.5  execute the small program; it says "L" to the host, which reads the posture of init and
          of the context, and sends nothing before it has compared

SECURITY: the list is made before any sandbox of its shape, from the plan alone, and nothing is read
between the clone and the end of the lockdown. Nothing that the worker remembers comes from a
caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple

from cellwall.jail.fast import machine_code, syscall_script
from cellwall.jail.fast.syscall_script import Call, Fork, Script, Step
from cellwall.jail.plan import plan
from cellwall.jail.protocol import environment
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import Prepared, SyscallError, do_all

CHANNEL_FD, _STDOUT_FD, _STDERR_FD = RECEIVED = (3, 4, 5)
"""Descriptors that a worker receives first, in this order. The small program has its channel at the
same number."""
_FREE_FD = 4
"""Lowest free descriptor once output lies at 1 and 2."""
_PROGRAM_FD = 63
"""Descriptor of the small program's file, in a worker and in the child until it executes it."""
_LAST_FD = 2**32 - 1
ADDRESS = "\0cellwall"
"""Abstract address to which a context connects. Each sandbox has a network namespace of its own, so
the name can always be the same."""
_BACKLOG = 64
_AT_EMPTY_PATH = 0x1000
_MFD_EXEC = 0x10
_DYING_S = 1.0
"""Most seconds that a killed process may need for its end."""
_SIGACTION_BYTES, _SIGSET_BYTES = 32, 8
_MESSAGE = struct.Struct("=QI4xQQQQi4xQQQiii4xc")
"""struct msghdr, its one struct iovec at 56, its one struct cmsghdr at 72, its one byte at 96."""

Context = Callable[[str, int, Dict[str, Any], Optional[Dict[str, str]]], NoReturn]


class Ready:
    """Two lists: the child's, and the one of the context before it goes on in Python."""

    __slots__ = ("child", "context")

    def __init__(self, child: Script, context: Script) -> None:
        self.child = child
        self.context = context


def prepare(locking: Tuple[Prepared, ...], last: Tuple[Prepared, ...]) -> Ready:
    """Build the lists around the calls that every sandbox of a shape makes.

    `last` is done after the listener has been sent.
    """
    address = struct.pack("=H", socket.AF_UNIX) + ADDRESS.encode()
    nothing = (ctypes.c_void_p * 1)(None)
    default = bytes(_SIGACTION_BYTES)
    child: Tuple[Step, ...] = (
        process.prepare_parent_death_signal(signal.SIGKILL),
        Call("dup2", (_STDOUT_FD, 1), "stdout", 1),
        Call("dup2", (_STDERR_FD, 2), "stderr", 2),
        Call("close_range", (_FREE_FD, _PROGRAM_FD - 1, 0), "close descriptors"),
        Call("close_range", (_PROGRAM_FD + 1, _LAST_FD, 0), "close more descriptors"),
        Call("fcntl", (CHANNEL_FD, fcntl.F_SETFD, 0), "keep the channel"),
        *locking,
        Call("open", (os.devnull.encode(), os.O_RDONLY), "open /dev/null", _FREE_FD),
        Call("dup2", (_FREE_FD, 0), "stdin", 0),
        process.prepare_close(_FREE_FD),
        Call("socket", (socket.AF_UNIX, socket.SOCK_STREAM, 0), "listener: socket", _FREE_FD),
        Call("bind", (_FREE_FD, address, len(address)), "listener: bind"),
        Call("listen", (_FREE_FD, _BACKLOG), "listener: listen"),
        Call(
            "sendmsg", _handing_over(_FREE_FD), "listener: hand it over", len(machine_code.LISTENER)
        ),
        process.prepare_close(_FREE_FD),
        *last,
        # A worker ignores its children's ends, and an ignored signal stays ignored across
        # execve(2).
        Call("rt_sigaction", (signal.SIGCHLD, default, 0, _SIGSET_BYTES), "hear of children"),
        Fork(),
        Call("close_range", (0, 2, 0), "close the program's descriptors"),
        Call("execveat", (_PROGRAM_FD, b"", nothing, nothing, _AT_EMPTY_PATH), "execute init"),
    )
    context: Tuple[Step, ...] = (
        *syscall_script.rseq_again(),
        Call("close_range", (_FREE_FD, _LAST_FD, 0), "context: close descriptors"),
        process.prepare_dumpable(),
        Call("setpgid", (0, 0), "context: setpgid"),
        Call("chdir", (plan.HOME.encode(),), "context: chdir"),
    )
    return Ready(Script(child), Script(context))


def _handing_over(fd: int) -> Tuple[object, ...]:
    """Return the arguments of sendmsg(2) for one descriptor, on the channel and with one word."""
    message = ctypes.create_string_buffer(_MESSAGE.size)
    start = ctypes.addressof(message)
    header = (0, 0, start + 56, 1, start + 72, 24, 0)
    rights = (20, socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)
    _MESSAGE.pack_into(message, 0, *header, start + 96, 1, *rights, machine_code.LISTENER)
    return CHANNEL_FD, message, socket.MSG_NOSIGNAL


class Maker:
    """Makes sandboxes of one program in one worker, one after the other."""

    def __init__(
        self, namespaces: int, context: Context, write_maps: Callable[[int, int], None]
    ) -> None:
        """Prepare the machine code and the small program. Raises OSError.

        `context` is called in each context and never returns. It gets the address to connect to,
        the channel, the guest's settings, and an environment of its own or None. `write_maps` gives
        a process, by its pid, a uid.
        """
        self._context = context
        self._walker = syscall_script.Walker(namespaces)
        self._write_maps = write_maps
        self._dumpable = (process.prepare_dumpable(),)
        self.pidfd_cell = self._walker.pidfd_cell
        _hold_program()

    def make(
        self,
        ready: Ready,
        guest: Dict[str, Any],
        uid: int,
        *,
        is_told: bool,
    ) -> None:
        """Make one sandbox. Raises OSError if it could not be cloned or its id maps not be written.

        `check` raises `SyscallError` if a step of the child itself failed.
        """
        # The child shares our memory, and its change of user made our /proc files root's.
        do_all(self._dumpable)
        pid = self._walker.clone(ready.child, ready.context)
        try:
            self._write_maps(pid, uid)
        except OSError as error:
            is_dead = bool(select.select([self.pidfd_cell.value], [], [], _DYING_S)[0])
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd_cell.value, signal.SIGKILL)
            self._walker.wait()  # until it is dead: it uses our memory
            if is_dead:  # it was killed, and /proc files of a dead process are root's
                raise OSError(errno.ESRCH, f"id map: {error}") from error
            raise OSError(error.errno, f"id map: {error}") from error
        if self._walker.wait():
            _become_context(self._context, guest, is_told)

    def check(self) -> None:
        """Raise `SyscallError` with the step that failed in the latest child, if one did."""
        self._walker.check()


def _become_context(context: Context, guest: Dict[str, Any], is_told: bool) -> NoReturn:
    try:
        told = environment.read(CHANNEL_FD) if is_told else None
        context(ADDRESS, CHANNEL_FD, guest, told)
    finally:
        os._exit(1)  # SECURITY: whatever happens, a copy never goes on as a worker


def is_possible() -> bool:
    """Try what every worker needs: code for this processor, and memory and a memfd to execute.

    The environment of the engine may refuse each (`vm.memfd_noexec`, a container's filter). Then a
    sandbox of one program has a full init, as others do.
    """
    if not machine_code.IS_KNOWN:
        return False
    try:
        machine_code.cloner()
        made = _executable_memfd()
    except OSError:
        return False
    os.close(made)
    return True


def _executable_memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("init", flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("init", flags)  # before Linux 6.3 each one is executable


def _hold_program() -> None:
    """Put the small program at its descriptor, sealed and not readable inside.

    A process that executes a file it may not read cannot be inspected by other processes of its
    user: `would_dump` in the kernel's fs/exec.c. The program also requests that itself.
    """
    made = _executable_memfd()
    try:
        os.write(made, machine_code.init_program())
        os.fchmod(made, 0o111)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
        opened = os.open(f"/proc/self/fd/{made}", os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(made)  # a file that is open for writing cannot be executed
    held = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _PROGRAM_FD)
    os.close(opened)
    if held != _PROGRAM_FD:
        raise SyscallError(errno.EBADFD, f"hold the small program: descriptor {held}")
