"""A program that starts as another user than init's: fork, ids, exec.

Not posix_spawn, which changes no ids. The invariant: the child runs nothing of the caller's before
it has the user's ids, and leaves by exec or `_exit`.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from cellwall.guest.channel.errors import refusal_from
from cellwall.guest.files.accounts import Account
from cellwall.guest.process import processes
from cellwall.guest.process.programs import SIGNALS_TO_RESET

_FIRST_FREE_FD = 10
_DESCRIPTORS = range(4)
"""Input, outputs and script of a command: its user must be able to open them once more."""


class Program(NamedTuple):
    """What is executed; `actions` are those of posix_spawn(3), for its descriptors."""

    path: str
    argv: Sequence[str]
    env: Mapping[str, str]
    actions: Iterable[Sequence[Any]]


def spawn_as(account: Account, program: Program) -> int:
    """Start a program in a session of its own, in this directory; return its pid.

    Raises Refusal.
    """
    step = f"start {program.argv[0]!r} as {account.name!r}"
    told, tell = os.pipe2(os.O_CLOEXEC)
    try:
        pid = processes.fork_quietly()
    except OSError as error:
        os.close(told)
        os.close(tell)
        raise refusal_from(error, step) from None
    if pid == 0:
        _become(account, program, tell)
    os.close(tell)
    with open(told, "rb") as file:
        failed = file.read(16)
    if failed:
        os.waitpid(pid, 0)
        raise refusal_from(OSError(int(failed), ""), step)
    return pid


def _become(account: Account, program: Program, tell: int) -> NoReturn:
    """Be the program in the child, or say which error it is."""
    try:
        gc.freeze()  # no object that has a descriptor may be finalised
        tell = fcntl.fcntl(tell, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
        for each in SIGNALS_TO_RESET:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        for kind, number, *rest in program.actions:
            _connect(kind, number, rest)
        for number in _DESCRIPTORS:
            _give(number, account)
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        os.execve(program.path, list(program.argv), dict(program.env))  # noqa: S606 - no shell is meant
    except OSError as error:
        os.write(tell, str(error.errno).encode())
    finally:
        os._exit(127)


def _connect(kind: int, number: int, rest: Sequence[Any]) -> None:
    """Do one action; DUP2's second word is the new number, OPEN's first."""
    if kind == os.POSIX_SPAWN_OPEN:
        path, flags, mode = rest
        opened, target = os.open(path, flags, mode), number
    else:
        opened, target = number, rest[0]
    os.dup2(opened, target)
    os.set_inheritable(target, True)


def _give(number: int, account: Account) -> None:
    """Make a pipe or terminal of the command its user's, as login(1) does."""
    try:
        kind = os.fstat(number).st_mode
    except OSError:  # it has none of that number
        return
    if stat.S_ISFIFO(kind) or os.isatty(number):
        os.fchown(number, account.uid, account.gid)
