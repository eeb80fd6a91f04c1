"""Lockdown of a sandbox: session, limits, ids, capabilities, no_new_privs, Landlock, seccomp.

Prepared in the fork-server (`prepare`), done by `sandbox_init` once the mounts stand, before a byte
of the caller is read. SECURITY: the order matters; each function says what it does, why, the man
page, and what it does not protect. Any failure raises and the sandbox does not start.
"""

from __future__ import annotations

import resource
import signal
from typing import List, NamedTuple, Tuple

from cellwall.jail.plan.steps import Lockdown
from cellwall.linux import seccomp
from cellwall.linux.syscalls import landlock, process
from cellwall.linux.syscalls.libc import Prepared

_OPEN_FILES = resource.RLIMIT_NOFILE


class Ready(NamedTuple):
    """A lockdown whose calls a fork only has to make."""

    become_user: Tuple[Prepared, ...]
    privileges: Tuple[Prepared, ...]
    files: Tuple[Prepared, ...]
    filter: Tuple[Prepared, ...]
    descriptors: Tuple[Prepared, ...]
    """Limit of open files, set last of all; see `set_descriptor_limit`."""


def prepare(lock: Lockdown, program: bytes, last_capability: int, free_fd: int) -> Ready:
    """Prepare every call; `free_fd` is the lowest free descriptor when they are made."""
    privileges = new_session(lock) + set_rlimits(lock) + drop_privileges(lock, last_capability)
    files = restrict_files(lock, free_fd)
    filtering, last = filter_syscalls(program), set_descriptor_limit(lock)
    return Ready(become_user(lock), privileges, files, filtering, last)


def become_user(lock: Lockdown) -> Tuple[Prepared, ...]:
    """Leave every group and become the sandbox's user. setresuid(2), setgroups(2).

    Why here: files made later must belong to the user; unmapped ids cannot make files at all.
    Capabilities in the sandbox's user namespace survive, because the old id was not its root.
    Protects only file ownership and signals; the rest follows. Rootless, the caller's groups stay
    (setgroups is denied there); the sandbox's root holds nothing that they open.
    """
    calls: List[Prepared] = [process.prepare_no_dumps()]
    if lock.clear_groups:
        calls.append(process.prepare_no_groups())
    calls += process.prepare_ids(0, 0) if lock.builds_as_root else _ids(lock)
    return tuple(calls)


def _ids(lock: Lockdown) -> Tuple[Prepared, ...]:
    return process.prepare_ids(lock.uid, lock.gid)


def new_session(lock: Lockdown) -> Tuple[Prepared, ...]:
    """Leave the terminal of the starting process. setsid(2); TIOCSTI needs a shared one."""
    return process.prepare_session(lock.umask)


def set_rlimits(lock: Lockdown) -> Tuple[Prepared, ...]:
    """Set limits for each process. setrlimit(2). Does not bound the tree: cgroups do."""
    return tuple(
        process.prepare_rlimit(*limit) for limit in lock.rlimits if limit[0] != _OPEN_FILES
    )


def set_descriptor_limit(lock: Lockdown) -> Tuple[Prepared, ...]:
    """Set the limit of open files, after everything else and before anything forks.

    SECURITY: it is also the number of descriptors of this user that may be in transit between
    processes before a send of one more is refused (`too_many_unix_fds` in the kernel). What a
    sandbox's set-up sends must not depend on what other sandboxes of that user have in transit.
    """
    return tuple(
        process.prepare_rlimit(*limit) for limit in lock.rlimits if limit[0] == _OPEN_FILES
    )


def drop_privileges(lock: Lockdown, last_capability: int) -> Tuple[Prepared, ...]:
    """Give up every capability that the plan does not keep, for ever. capabilities(7).

    SECURITY: securebits first (needs CAP_SETPCAP), bounding before permitted (the same), and
    no_new_privs after them so that a set-uid file of the root gives nothing either. The death
    signal comes last because a change of credentials clears it. Root inside an image has the usual
    securebits: the programs that it starts are root, and what they become loses its capabilities.
    """
    bits = () if lock.capabilities else (process.prepare_securebits(process.SECUREBITS_LOCKED),)
    return (
        *bits,
        *process.prepare_drop_bounding(last_capability, lock.capabilities),
        process.prepare_clear_ambient(),
        *(_ids(lock) if lock.builds_as_root else ()),
        process.prepare_capabilities(lock.capabilities),
        process.prepare_no_new_privs(),
        process.prepare_parent_death_signal(signal.SIGKILL),
    )


def restrict_files(lock: Lockdown, free_fd: int) -> Tuple[Prepared, ...]:
    """Lock files a second time: read and execute in the root, write in the work area. landlock(7).

    Does not protect the network (its namespace does) or what the mounts already hide.
    """
    return landlock.prepare(
        lock.read_exec,
        lock.write,
        abi=lock.landlock_abi,
        devices=lock.devices,
        listing=lock.listing,
        free_fds=(free_fd, free_fd + 1),
    )


def filter_syscalls(program: bytes) -> Tuple[Prepared, ...]:
    """Allow only listed system calls for this process and all it starts. seccomp(2)."""
    return (seccomp.prepare(program),)
