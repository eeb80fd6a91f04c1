"""Lists of system calls for `machine_code`, made of prepared calls, and the class that runs them.

No policy: `jail.fast.single_program` decides the calls and their order. The layout of records and
of the state is that of `cloner.x86_64.S`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import signal
import struct
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from cellwall.jail.fast import machine_code
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import LIBC, Prepared, SyscallError

FIRST_CHILD = 2
"""Pid of the first process that a pid namespace's init forks."""
_NUMBERS: Dict[str, int] = {
    **{"write": 1, "open": 2, "close": 3, "rt_sigaction": 13, "ioctl": 16, "dup2": 33},
    **{
        "socket": 41,
        "sendmsg": 46,
        "bind": 49,
        "listen": 50,
        "fcntl": 72,
        "chdir": 80,
        "mkdir": 83,
    },
    **{
        "symlink": 88,
        "chmod": 90,
        "chown": 92,
        "umask": 95,
        "setpgid": 109,
        "setsid": 112,
        "setgroups": 116,
    },
    **{"setresuid": 117, "setresgid": 119, "setfsuid": 122, "setfsgid": 123, "prctl": 157},
    **{"setrlimit": 160, "chroot": 161, "mount": 165},
    **{"unshare": 272, "execveat": 322, "rseq": 334, "close_range": 436},
}
"""Numbers on x86_64 (arch/x86/entry/syscalls/syscall_64.tbl), under libc's names."""
_RECORD = struct.Struct("=9Q")
"""A record: number, six arguments, the one good result (all ones: any), an errno that is no
failure."""
_MOST = 2**64 - 1
_END, _FORK = _MOST, _MOST - 1
"""Values that stand in the place of a call's number."""
_STATE_WORDS = 13
_ARGUMENTS, _CHILD, _CONTEXT, _GO, _FAILED, _RESULT = 7, 8, 9, 10, 11, 12
"""Indices of words of the state; the seven words before them hold registers. `_GO` is two halves:
the child waits until the lower is not 0, the caller until the upper is not."""
_TID_BYTE = _GO * 8 + 4
_CLONE_VM = 0x100
_STACK_BYTES = 16 * 1024
_ARCH_GET_FS = 0x1003
_SYS_ARCH_PRCTL = 158
_RSEQ_SIGNATURE = 0x53053053
_RSEQ_BYTES = 32


class Call(NamedTuple):
    """A system call by its name, with plain arguments."""

    name: str
    arguments: Tuple[object, ...]
    step: str
    expected: int = -1
    tolerated: int = 0


class Fork(NamedTuple):
    """Fork: the new process goes on with the list for contexts, and then in the caller's code."""

    step: str = "fork the context"


Step = Union[Prepared, Call, Fork]


class Script:
    """A list of calls, with everything that their arguments point to."""

    def __init__(self, calls: Sequence[Step]) -> None:
        """Encode `calls`. Raises KeyError if a call has no number in `_NUMBERS`."""
        self._kept: List[object] = []
        self._steps = [call.step for call in calls]
        records = [self._record(call) for call in calls]
        end = _RECORD.pack(_END, *(0,) * 8)
        self._records = ctypes.create_string_buffer(b"".join((*records, end)))
        self.address = ctypes.addressof(self._records)
        """Address of the first record."""

    def step_at(self, address: int) -> str:
        """Return the name of the step whose record lies at `address`."""
        return self._steps[(address - self.address) // _RECORD.size]

    def _record(self, call: Step) -> bytes:
        if isinstance(call, Fork):
            # As fork(3) does: the thread id that libc remembers is written anew.
            tid = process.tid_address()
            kept = process.CLONE_CHILD_SETTID | process.CLONE_CHILD_CLEARTID if tid else 0
            return _RECORD.pack(_FORK, signal.SIGCHLD | kept, 0, 0, tid, 0, 0, FIRST_CHILD, 0)
        name, arguments = _called(call)
        number = self._word(arguments[0]) if name == "syscall" else _NUMBERS[name]
        words = [self._word(each) for each in (arguments[1:] if name == "syscall" else arguments)]
        words += [0] * (6 - len(words))
        return _RECORD.pack(number, *words, call.expected & _MOST, call.tolerated)

    def _word(self, value: object) -> int:
        """Return an argument as the value of a register; keep what it points to alive."""
        self._kept.append(value)
        if isinstance(value, bytes):
            return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0
        if isinstance(value, ctypes.Array):
            return ctypes.addressof(value)
        value = getattr(value, "value", value)  # of a c_int and similar types
        if isinstance(value, int):
            return value & _MOST
        pointed = getattr(value, "_obj", None)  # of a byref
        return 0 if pointed is None else ctypes.addressof(pointed)


def _called(call: Union[Prepared, Call]) -> Tuple[str, Tuple[object, ...]]:
    name = call.name if isinstance(call, Call) else call.function.__name__
    return name, call.arguments


class Walker:
    """Clones children that walk scripts; for a process with one thread."""

    def __init__(self, namespaces: int) -> None:
        """Map the code and prepare clone3 for these namespaces. Raises SyscallError."""
        self._code = machine_code.cloner()
        self._state = (ctypes.c_uint64 * _STATE_WORDS)()
        self._here = ctypes.c_void_p(ctypes.addressof(self._state))
        self._stack = mmap.mmap(-1, _STACK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._child: Optional[Script] = None
        self.pidfd_cell = ctypes.c_int(-1)
        """Cell where the kernel puts each child's pidfd; the caller of `clone` owns that
        descriptor."""
        self._args = args = process.CloneArgs()
        args.flags = namespaces | _CLONE_VM | process.CLONE_PIDFD | process.CLONE_CHILD_CLEARTID
        args.exit_signal = signal.SIGCHLD
        args.pidfd = ctypes.addressof(self.pidfd_cell)
        args.child_tid = ctypes.addressof(self._state) + _TID_BYTE
        args.stack = ctypes.addressof(ctypes.c_char.from_buffer(self._stack))
        args.stack_size = _STACK_BYTES
        self._state[_ARGUMENTS] = ctypes.addressof(args)

    def clone(self, child: Script, context: Script) -> int:
        """Clone a child that does nothing before `wait`; return its pid. Raises SyscallError."""
        self._child = child
        state = self._state
        state[_CHILD], state[_CONTEXT], state[_FAILED] = child.address, context.address, 0
        state[_GO] = 1 << 32
        pid = self._code.clone(self._here)
        if pid < 0:
            raise SyscallError(-pid, "clone3")
        return pid

    def wait(self) -> bool:
        """Let the child go on. False once it has left the caller's memory; True in the fork."""
        return bool(self._code.wait(self._here))

    def check(self) -> None:
        """Raise SyscallError if one of the child's own calls failed."""
        where = self._state[_FAILED]
        if not where or self._child is None:
            return
        result = ctypes.c_int64(self._state[_RESULT]).value
        step = self._child.step_at(where)
        if result < 0:
            raise SyscallError(-result, step)
        raise SyscallError(errno.EBADFD, f"{step}: {result} is not what was expected")


def rseq_again() -> Tuple[Call, ...]:
    """Register libc's area for restartable sequences again. rseq(2).

    The fork of a child that shared our memory has none registered, and libc would read a wrong CPU
    number from it.
    """
    try:
        offset = ctypes.c_ssize_t.in_dll(LIBC, "__rseq_offset").value
        size = ctypes.c_uint.in_dll(LIBC, "__rseq_size").value
    except ValueError:
        return ()  # older than glibc 2.35, which has no such area
    base = ctypes.c_uint64()
    if not size or LIBC.syscall(_SYS_ARCH_PRCTL, _ARCH_GET_FS, ctypes.byref(base)):
        return ()
    words = (base.value + offset, _RSEQ_BYTES, 0, _RSEQ_SIGNATURE)
    return (Call("rseq", words, "context: rseq", tolerated=errno.ENOSYS),)
