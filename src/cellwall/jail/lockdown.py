"""The taking away: session, limits, ids, capabilities, no_new_privs, Landlock, seccomp.

Called by `inside` once the mounts stand, before a byte of the caller is read. SECURITY: the order
is the point; each function says what, why, man page, and what it does not protect. Any failure
raises and the sandbox does not start.
"""

from __future__ import annotations

import os
import resource
from typing import Tuple

from cellwall.jail import seccomp
from cellwall.jail.linux import landlock, process
from cellwall.jail.linux.libc import Prepared, do_all
from cellwall.jail.steps import Lockdown


def become_user(lock: Lockdown) -> None:
    """Leave every group and become the sandbox's user. setresuid(2), setgroups(2).

    Why here: files made later must belong to the user; unmapped ids cannot make files at all.
    Capabilities in the sandbox's user namespace survive, because the old id was not its root.
    Does not protect: anything but file ownership and signals; the rest follows. Rootless the
    caller's groups stay (setgroups is denied there); the root holds nothing that they open.
    """
    process.forbid_dumps()
    if lock.clear_groups:
        os.setgroups([])
    os.setresgid(lock.gid, lock.gid, lock.gid)
    os.setresuid(lock.uid, lock.uid, lock.uid)


def new_session(lock: Lockdown) -> None:
    """Leave the terminal of whoever started us. setsid(2); TIOCSTI needs a shared one."""
    os.setsid()
    os.umask(lock.umask)
    os.chdir("/")


def set_rlimits(lock: Lockdown) -> None:
    """Per-process limits. setrlimit(2). Does not bound the tree: cgroups do."""
    for number, soft, hard in lock.rlimits:
        resource.setrlimit(number, (soft, hard))


def drop_privileges(bounding: Tuple[Prepared, ...]) -> None:
    """Give up every capability for ever. capabilities(7).

    SECURITY: securebits first (needs CAP_SETPCAP), bounding before permitted (the same), and
    no_new_privs last so that a set-uid file of the root gives nothing either.
    """
    process.set_securebits(process.SECUREBITS_LOCKED)
    do_all(bounding)
    process.clear_ambient()
    process.drop_capabilities()
    process.set_no_new_privs()


def restrict_files(lock: Lockdown) -> None:
    """Second lock on files: read and execute in the root, write in the work area. landlock(7).

    Does not protect the network (its namespace does) or what the mounts already hide.
    """
    if lock.landlock_abi:
        landlock.restrict(
            lock.read_exec,
            lock.write,
            abi=lock.landlock_abi,
            devices=lock.devices,
            listing=lock.listing,
        )


def filter_syscalls(program: bytes) -> None:
    """Allow-list of system calls for this process and all it starts. seccomp(2)."""
    seccomp.install(program)
