"""Landlock: the three system calls, and one function that shuts a process in its own tree.

Not a policy: stage C says which paths may be read and which written. Network rules are left
out on purpose, the sandbox's own network namespace is that boundary.

SECURITY: a right that is not in `handled_access_fs` is allowed everywhere, so every right the
ABI has is handled and rules only add. A right added to a constant below must go into `_HANDLED`
for its ABI first. Objects opened before `restrict` keep what they could do.
See landlock(7) and Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import TYPE_CHECKING

from cellwall.jail.linux import libc

if TYPE_CHECKING:
    from collections.abc import Sequence

    PathOrFd = str | int

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
"""What a rule on something that is no directory may carry; more is EINVAL."""

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


def create_ruleset(handled_fs: int, scoped: int) -> int:
    """Return the descriptor of a ruleset that denies `handled_fs` until rules allow it.

    `scoped` needs ABI 6; older kernels take the longer structure as long as its tail is zero.
    """
    attribute = _RULESET.pack(handled_fs, 0, scoped)
    step = "Landlock: create ruleset (use no newer ABI than abi() reports)"
    return libc.syscall(_CREATE_RULESET, attribute, len(attribute), 0, step=step)


def add_path_rule(ruleset_fd: int, path_fd: int, rights: int) -> None:
    """Allow `rights` on what `path_fd` names and, for a directory, on all beneath it."""
    step = f"Landlock: allow {rights:#x} beneath fd {path_fd} (rights must be handled, and fit)"
    attribute = _PATH_BENEATH.pack(rights, path_fd)
    libc.syscall(_ADD_RULE, ruleset_fd, _RULE_PATH_BENEATH, attribute, 0, step=step)


def restrict_self(ruleset_fd: int) -> None:
    """Put this thread, and all it starts, under the ruleset; there is no way back."""
    step = "Landlock: restrict self (set no_new_privs first)"
    libc.syscall(_RESTRICT_SELF, ruleset_fd, 0, step=step)


def restrict(
    read_exec: Sequence[PathOrFd],
    write: Sequence[PathOrFd],
    *,
    abi: int,
    devices: Sequence[PathOrFd] = (),
    listing: Sequence[PathOrFd] = (),
) -> int:
    """Shut this process in the named trees and return the ABI that was really applied.

    `read_exec` may be read and executed, `write` also changed in every way but by making device
    nodes, `devices` read, written and sent ioctls (terminals: from ABI 5 on even `isatty` on a
    newly opened one needs that); below `listing` directories may be listed, files not opened (a
    rule reaches all beneath, so naming "/" shows every name there is). From ABI 6 on, abstract
    unix sockets and signals reach no further than the processes restricted together. `abi` is
    what `abi()` returned; 0 restricts nothing and returns 0, which the posture then shows.

    What it does not protect: chdir, stat, chmod, chown and utimes are no Landlock rights yet.
    An abstract socket that was bound before this call lies outside the scope.
    """
    used = min(abi, NEWEST_ABI)
    if used < 1:
        return 0
    handled = handled_rights(used)
    ruleset_fd = create_ruleset(handled, _scopes(used))
    try:
        trees = ((read_exec, _READ_EXEC), (write, _WRITE), (devices, _DEVICE), (listing, READ_DIR))
        for names, rights in trees:
            for name in names:
                _allow(ruleset_fd, name, rights & handled)
        restrict_self(ruleset_fd)
    finally:
        os.close(ruleset_fd)
    return used


def _scopes(abi: int) -> int:
    return SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0


def _allow(ruleset_fd: int, name: PathOrFd, rights: int) -> None:
    if isinstance(name, int):
        _allow_fd(ruleset_fd, name, rights)
        return
    fd = os.open(name, os.O_PATH | os.O_CLOEXEC)
    try:
        _allow_fd(ruleset_fd, fd, rights)
    finally:
        os.close(fd)


def _allow_fd(ruleset_fd: int, fd: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= _ON_FILES
    add_path_rule(ruleset_fd, fd, rights)
