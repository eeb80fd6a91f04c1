"""Landlock: the three system calls, prepared so that they shut a process in its own tree.

It is not a policy: stage C says which paths may be read and which written. Network rules are left
out on purpose; the sandbox's own network namespace is that boundary.

SECURITY: a right that is not in `handled_access_fs` is allowed everywhere, so every right the ABI
has is handled and rules only add. A right added to a constant below must go into `_HANDLED` for its
ABI first. Objects opened before the calls keep what they could do. See landlock(7) and
Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING

from cellwall.linux.syscalls import libc, process

if TYPE_CHECKING:
    from collections.abc import Sequence

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15

SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
SCOPE_SIGNAL = 1 << 1

_HANDLED: dict[int, int] = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
"""The rights each ABI added (4, 6 and 7 added none for files)."""

NEWEST_ABI = 7
"""The newest ABI whose rights are listed here; a later kernel is used as if it had this one."""

_READ_EXEC = EXECUTE | READ_FILE | READ_DIR
_WRITE = ((1 << 15) - 1) & ~(MAKE_CHAR | MAKE_BLOCK)
_DEVICE = READ_FILE | WRITE_FILE | READ_DIR | TRUNCATE | IOCTL_DEV
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that a rule on a non-directory may carry; more is EINVAL."""

# The same numbers on every architecture.
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_RULESET = struct.Struct("=QQQ")  # the second field is network rights
_PATH_BENEATH = struct.Struct("=Qi")


def abi() -> int:
    """Return the Landlock ABI of the running kernel, 0 where it is absent or switched off."""
    step = "probe Landlock ABI"
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION, step=step)
    except OSError as error:
        # EPERM: an outer container's seccomp profile that does not know Landlock.
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def handled_rights(abi: int) -> int:
    """Return every file-system right that `abi` knows."""
    rights = 0
    for since, added in _HANDLED.items():
        if since <= abi:
            rights |= added
    return rights


def prepare(
    read_exec: Sequence[str],
    write: Sequence[str],
    *,
    abi: int,
    devices: Sequence[str],
    listing: Sequence[str],
    free_fds: tuple[int, int],
) -> tuple[libc.Prepared, ...]:
    """Prepare the calls that shut a process in the named trees.

    `read_exec` may be read and executed. `write` may also be changed in every way except by making
    device nodes. `devices` may be read, written and sent ioctls (terminals: from ABI 5 on even
    `isatty` on a newly opened one needs that). Below `listing` directories may be listed, but files
    not opened (a rule reaches all beneath, so naming "/" shows every name there is). From ABI 6 on,
    abstract unix sockets and signals reach no further than the processes restricted together. `abi`
    is what `abi()` returned; below 1 nothing is restricted, which the posture then shows.
    `free_fds` are the lowest free descriptors when the calls are made; a call that gets another one
    fails.

    It does not protect against chdir, stat, chmod, chown and utimes, which are no Landlock rights
    yet. An abstract socket that was bound before this call lies outside the scope.
    """
    used = min(abi, NEWEST_ABI)
    if used < 1:
        return ()
    handled = handled_rights(used)
    attribute = _RULESET.pack(handled, 0, _scopes(used))
    words = (attribute, ctypes.c_size_t(len(attribute)), ctypes.c_uint(0))
    step = "Landlock: create ruleset (use no newer ABI than abi() reports)"
    ruleset_fd, path_fd = free_fds
    calls = [_prepared(_CREATE_RULESET, words, step, ruleset_fd)]
    trees = ((read_exec, _READ_EXEC), (write, _WRITE), (devices, _DEVICE), (listing, READ_DIR))
    for names, rights in trees:
        for name in names:
            calls += _prepare_rule(name, rights & handled, ruleset_fd, path_fd)
    step = "Landlock: restrict self (set no_new_privs first)"
    calls.append(_prepared(_RESTRICT_SELF, (ctypes.c_int(ruleset_fd), ctypes.c_uint(0)), step))
    calls.append(process.prepare_close(ruleset_fd))
    return tuple(calls)


def _prepare_rule(name: str, rights: int, ruleset_fd: int, path_fd: int) -> list[libc.Prepared]:
    """Allow `rights` on `name` and, for a directory, on all beneath it."""
    if os.path.exists(name) and not os.path.isdir(name):
        rights &= _ON_FILES
    flags = ctypes.c_int(os.O_PATH | os.O_CLOEXEC)
    opened = libc.Prepared(
        libc.LIBC.open, (os.fsencode(name), flags), f"Landlock: open {name}", 0, path_fd
    )
    attribute = _PATH_BENEATH.pack(rights, path_fd)
    words = (
        ctypes.c_int(ruleset_fd),
        ctypes.c_int(_RULE_PATH_BENEATH),
        attribute,
        ctypes.c_uint(0),
    )
    step = f"Landlock: allow {rights:#x} beneath {name} (rights must be handled, and fit)"
    return [opened, _prepared(_ADD_RULE, words, step), process.prepare_close(path_fd)]


def _prepared(
    number: int, words: tuple[object, ...], step: str, expected: int = -1
) -> libc.Prepared:
    return libc.Prepared(libc.LIBC.syscall, (ctypes.c_long(number), *words), step, 0, expected)


def _scopes(abi: int) -> int:
    return SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0
