"""Makes detached mounts of images' roots, each with the ids of one sandbox.

A process of its own on the host, with the engine's rights (root), because it makes user namespaces:
each is made by a child of one thread. It reads what the engine sends and nothing else. The
invariant: a mount that it hands over is read-only, nosuid, nodev, and every file in it belongs to
an id of the sandbox, or to none.

    request   {"first": N, "count": N, "base": N} and an open directory: ids of its files from
              `base` on, `count` of them, are shown as the host's ids from `first` on
    request   {"tree": path}: its files have the sandbox's ids (an ordinary user's)
    answer    {} and the mount, or {"error": text, "errno": number}

The kernel maps the ids of a mount for the host's root alone. An ordinary user's process is told so
(`OWN_NAMESPACES`) and enters a user and a mount namespace of its own, where it may copy mounts, but
only those that it finds there: so it opens the tree by its path, which only the engine's user can
change.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import List

from cellwall.jail.processes import id_namespaces
from cellwall.jail.protocol import fds
from cellwall.linux.syscalls import mounts, process
from cellwall.linux.syscalls.libc import SyscallError

OWN_NAMESPACES = "own-namespaces"
_ATTRIBUTES = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV


def main(arguments: List[str]) -> None:
    """Serve on `CONTROL_FD [own-namespaces]` until its other end is closed; never return."""
    control = socket.socket(fileno=int(arguments[0]))
    if arguments[1:] == [OWN_NAMESPACES]:
        process.unshare(process.CLONE_NEWUSER | process.CLONE_NEWNS)
        mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
    process.do(process.prepare_parent_death_signal(signal.SIGKILL))
    fds.keep_only([control.fileno()])
    known = id_namespaces.Namespaces()
    try:
        while True:
            _serve(control, known)
    except fds.ControlClosed:
        os._exit(0)


def _serve(control: socket.socket, known: id_namespaces.Namespaces) -> None:
    said, received = fds.receive_message(control)
    made: List[int] = []
    try:
        if "tree" in said:
            made.append(mounts.cloned_with(str(said["tree"]), _ATTRIBUTES))
        else:
            (directory,) = received
            ids = (int(said["base"]), int(said["first"]), int(said["count"]))
            made.append(mounts.cloned_mapped(directory, known.of((ids,)), _ATTRIBUTES))
    except SyscallError as error:
        fds.send_message(control, {"error": str(error), "errno": error.errno})
    except OSError as error:
        problem = f"make a user namespace: {error}"
        fds.send_message(control, {"error": problem, "errno": error.errno})
    else:
        fds.send_message(control, {}, made)
    finally:
        fds.close_all([*received, *made])


if __name__ == "__main__":
    main(sys.argv[1:])
