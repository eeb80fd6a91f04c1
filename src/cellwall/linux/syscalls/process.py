"""clone3, namespaces, credentials, capabilities, prctl: the calls that Python's `os` lacks.

No policy: `jail.plan.plan` decides which namespaces and which capabilities. Numbers are those of
x86_64 and aarch64 where they agree (all calls added since Linux 5.1), else looked up by machine.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from typing import Tuple

from cellwall.linux.syscalls.libc import LIBC, Prepared, check, do_all

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_CHILD_SETTID = 0x01000000

_MACHINE = os.uname().machine
_SYS_CLONE3 = 435
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}.get(_MACHINE, -1)
_SYS_CAPGET = {"x86_64": 125, "aarch64": 90}.get(_MACHINE, -1)
_CAPABILITIES_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3, ourselves

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_TID_ADDRESS = 40
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_ADDR_NO_RANDOMIZE = 0x0040000

SECUREBITS_LOCKED = 0b11101111
"""NOROOT, NO_SETUID_FIXUP, KEEP_CAPS off but locked, NO_CAP_AMBIENT_RAISE: each with its lock."""

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_LOOPBACK_UP = struct.pack("=16sH14x", b"lo", _IFF_UP)


class CloneArgs(ctypes.Structure):
    """`struct clone_args` of clone3(2)."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    ]


def tid_address() -> int:
    """Address where glibc keeps this thread's id, so that a raw clone updates it as fork(3) would.

    0 on kernels built without CONFIG_CHECKPOINT_RESTORE. Then the child's cached id is stale, which
    only `abort(3)` and robust mutexes of init itself would notice.
    """
    address = ctypes.c_uint64()
    if LIBC.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) != 0:
        return 0
    return int(address.value)


class Cloner:
    """clone3(2), into new namespaces or none, repeated with arguments made once.

    Why not os.fork + unshare: one call creates the process inside its pid namespace, with a pidfd.
    Only for single-threaded processes. CPython's fork hooks do not run: with one thread, no lock
    can be held by another, so there is nothing for them to repair, and they touch hundreds of
    pages. They run as usual for what the child forks with os.fork.
    """

    def __init__(self, flags: int, *, exit_signal: int) -> None:
        self._step = f"clone3 flags={flags:#x}"
        self.pidfd_cell = ctypes.c_int(-1)
        """Cell where the kernel puts each child's pidfd."""
        self._args = args = CloneArgs()
        args.flags = flags | CLONE_PIDFD
        args.pidfd = ctypes.addressof(self.pidfd_cell)
        args.exit_signal = exit_signal
        tid = tid_address()
        if tid:
            args.flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
            args.child_tid = tid
        self._words = (_SYS_CLONE3, ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))

    def clone(self) -> int:
        """Clone; return the child's pid in the caller, 0 in the child. Raises SyscallError."""
        return check(int(LIBC.syscall(*self._words)), self._step)

    @property
    def pidfd(self) -> int:
        """Pidfd of the latest child, close-on-exec; the caller owns it."""
        return self.pidfd_cell.value


def unshare(flags: int) -> None:
    """Give this process new namespaces. unshare(2)."""
    do_all((prepare_unshare(flags),))


def _prepare_prctl(option: int, arg: int, step: str, arg3: int = 0) -> Prepared:
    words = (ctypes.c_int(option), ctypes.c_ulong(arg), ctypes.c_ulong(arg3), _ZERO, _ZERO)
    return Prepared(LIBC.prctl, words, f"prctl {step}")


_ZERO = ctypes.c_ulong(0)


def prepare_no_new_privs() -> Prepared:
    """Make execve never grant privileges, for ever. PR_SET_NO_NEW_PRIVS(2const)."""
    return _prepare_prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def prepare_no_dumps() -> Prepared:
    """Keep same-uid processes out of our /proc files and memory. PR_SET_DUMPABLE(2const)."""
    return _prepare_prctl(_PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")


def prepare_dumpable() -> Prepared:
    """Let same-uid processes inspect this process again. PR_SET_DUMPABLE(2const)."""
    return _prepare_prctl(_PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def prepare_parent_death_signal(signal: int) -> Prepared:
    """Have the kernel send `signal` when our parent thread dies; cleared by credential changes."""
    return _prepare_prctl(_PR_SET_PDEATHSIG, signal, "PR_SET_PDEATHSIG")


def prepare_securebits(bits: int) -> Prepared:
    """Set and lock the securebits. capabilities(7)."""
    return _prepare_prctl(_PR_SET_SECUREBITS, bits, "PR_SET_SECUREBITS")


def last_capability() -> int:
    """Return the highest capability number this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def prepare_drop_bounding(last: int, kept: int = 0) -> Tuple[Prepared, ...]:
    """Drop every capability up to `last` from the bounding set, except those of the mask `kept`."""
    return tuple(
        _prepare_prctl(_PR_CAPBSET_DROP, number, f"PR_CAPBSET_DROP {number}")
        for number in range(last + 1)
        if not kept >> number & 1
    )


def prepare_clear_ambient() -> Prepared:
    """Clear the ambient set."""
    return _prepare_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, "PR_CAP_AMBIENT_CLEAR_ALL")


def prepare_capabilities(mask: int) -> Prepared:
    """Make `mask` the effective and permitted sets, and empty the inheritable one. capset(2)."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    sets = struct.pack("=6I", low, low, 0, high, high, 0)
    return Prepared(
        LIBC.syscall, (ctypes.c_long(_SYS_CAPSET), _CAPABILITIES_HEADER, sets), "capset"
    )


def prepare_no_groups() -> Prepared:
    """Leave every supplementary group. setgroups(2)."""
    return Prepared(LIBC.setgroups, (ctypes.c_size_t(0), None), "setgroups")


def prepare_ids(uid: int, gid: int) -> Tuple[Prepared, ...]:
    """Set all three group and user ids. setresgid(2), setresuid(2)."""
    group, user = ctypes.c_uint(gid), ctypes.c_uint(uid)
    return (
        Prepared(LIBC.setresgid, (group, group, group), f"setresgid {gid}"),
        Prepared(LIBC.setresuid, (user, user, user), f"setresuid {uid}"),
    )


def prepare_file_ids(wanted: int, before: int) -> Tuple[Prepared, ...]:
    """Make files as `wanted` from now on instead of as `before`. setfsuid(2), setfsgid(2).

    The calls never fail; they return the previous id. So each one checks the call before it.
    """
    number = ctypes.c_uint(wanted)
    return (
        Prepared(LIBC.setfsgid, (number,), f"setfsgid {wanted}", 0, before),
        Prepared(LIBC.setfsuid, (number,), f"setfsuid {wanted}", 0, before),
    )


def prepare_root(path: str) -> Tuple[Prepared, ...]:
    """Make `path` the root, and enter it. chroot(2), chdir(2)."""
    return (
        Prepared(LIBC.chroot, (os.fsencode(path),), f"chroot {path}"),
        Prepared(LIBC.chdir, (b"/",), "chdir /"),
    )


def prepare_session(umask: int) -> Tuple[Prepared, ...]:
    """Lead a new session from `/` with `umask`. setsid(2)."""
    return (
        Prepared(LIBC.setsid, (), "setsid"),
        Prepared(LIBC.umask, (ctypes.c_uint(umask),), "umask"),
        Prepared(LIBC.chdir, (b"/",), "chdir /"),
    )


def prepare_rlimit(number: int, soft: int, hard: int) -> Prepared:
    """Set one limit of this process. setrlimit(2)."""
    limit = struct.pack("=QQ", soft, hard)
    return Prepared(LIBC.setrlimit, (ctypes.c_int(number), limit), f"setrlimit {number} {hard}")


def prepare_unshare(flags: int) -> Prepared:
    """Give this process new namespaces. unshare(2)."""
    return Prepared(LIBC.unshare, (ctypes.c_int(flags),), f"unshare flags={flags:#x}")


def do(call: Prepared) -> None:
    """Make one prepared call now."""
    do_all((call,))


def loopback_up() -> None:
    """Bring `lo` of this network namespace up. netdevice(7). Raises SyscallError.

    A fresh `lo` has no flag but IFF_LOOPBACK, which the kernel keeps by itself, so there is nothing
    to read first.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        words = (ctypes.c_int(opened.fileno()), ctypes.c_ulong(_SIOCSIFFLAGS), _LOOPBACK_UP)
        check(LIBC.ioctl(*words), "ioctl SIOCSIFFLAGS lo")


def prepare_join(namespace: int, kind: int) -> Tuple[Prepared]:
    """Move this process into a namespace of that CLONE_NEW kind. setns(2)."""
    words = (ctypes.c_int(namespace), ctypes.c_int(kind))
    return (Prepared(LIBC.setns, words, f"setns {kind:#x}"),)


def lowest_free_fd() -> int:
    """Return the descriptor that the next open will get."""
    fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
    os.close(fd)
    return fd


def prepare_close(fd: int) -> Prepared:
    """Close a descriptor. close(2)."""
    return Prepared(LIBC.close, (ctypes.c_int(fd),), f"close {fd}")


def prepare_new_file(path: str, content: bytes, mode: int, free_fd: int) -> Tuple[Prepared, ...]:
    """Make a file that does not exist yet and write it. open(2), write(2)."""
    flags = ctypes.c_int(os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    fd, size = ctypes.c_int(free_fd), ctypes.c_size_t(len(content))
    name = os.fsencode(path)
    return (
        Prepared(LIBC.open, (name, flags, ctypes.c_uint(mode)), f"create {path}", 0, free_fd),
        Prepared(LIBC.write, (fd, content, size), f"write {path}", 0, len(content)),
        prepare_close(free_fd),
    )


def prepare_held_file(
    path: str, content: ctypes.Array[ctypes.c_char], mode: int, fds: Tuple[int, int]
) -> Tuple[Prepared, ...]:
    """Make a new file of what `content` is then, and keep it open. open(2), write(2), fcntl(2).

    `fds`: the lowest free descriptor, and the number at which the file stays open for writing.
    """
    free_fd, held = fds
    flags = ctypes.c_int(os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    fd, size = ctypes.c_int(free_fd), ctypes.c_size_t(len(content))
    opening = (os.fsencode(path), flags, ctypes.c_uint(mode))
    holding = (fd, ctypes.c_int(fcntl.F_DUPFD_CLOEXEC), ctypes.c_int(held))
    return (
        Prepared(LIBC.open, opening, f"make {path}", 0, free_fd),
        Prepared(LIBC.write, (fd, content, size), f"write {path}", 0, len(content)),
        Prepared(LIBC.fcntl, holding, f"hold {path}", 0, held),
        prepare_close(free_fd),
    )


def prepare_random(target: ctypes.Array[ctypes.c_ubyte]) -> Prepared:
    """Fill `target` with random bytes. getrandom(2)."""
    words = (target, ctypes.c_size_t(len(target)), ctypes.c_uint(0))
    return Prepared(LIBC.getrandom, words, "getrandom", 0, len(target))


def prepare_setting(path: str, value: str, free_fd: int) -> Tuple[Prepared, ...]:
    """Write a setting of the kernel. open(2), write(2)."""
    content = value.encode("ascii")
    flags, fd = ctypes.c_int(os.O_WRONLY | os.O_CLOEXEC), ctypes.c_int(free_fd)
    written = (fd, content, ctypes.c_size_t(len(content)))
    return (
        Prepared(LIBC.open, (os.fsencode(path), flags), f"open {path}", 0, free_fd),
        Prepared(LIBC.write, written, f"write {value} to {path}", 0, len(content)),
        prepare_close(free_fd),
    )


def choose_layouts(*, at_random: bool) -> None:
    """Have later programs of this process and its children laid out at random, or all alike.

    personality(2), ADDR_NO_RANDOMIZE.
    """
    check(LIBC.personality(0 if at_random else _ADDR_NO_RANDOMIZE), "personality")


def set_effective_uid(uid: int) -> None:
    """Act as `uid` on files and as an owner, and stay as capable as before. capabilities(7).

    The kernel empties the effective set when the effective id stops being 0. The permitted set
    stays, because the real id stays, and this function fills the effective set from it.
    """
    os.seteuid(uid)
    header = ctypes.create_string_buffer(_CAPABILITIES_HEADER)
    data = ctypes.create_string_buffer(24)  # two of (effective, permitted, inheritable)
    check(int(LIBC.syscall(ctypes.c_long(_SYS_CAPGET), header, data)), "capget")
    _, low, low_kept, _, high, high_kept = struct.unpack("=6I", data.raw)
    raised = struct.pack("=6I", low, low, low_kept, high, high, high_kept)
    check(int(LIBC.syscall(ctypes.c_long(_SYS_CAPSET), header, raised)), "capset")


def set_hostname(name: str) -> None:
    """Name this uts namespace."""
    raw = name.encode("ascii")
    check(LIBC.sethostname(raw, ctypes.c_size_t(len(raw))), "sethostname")
