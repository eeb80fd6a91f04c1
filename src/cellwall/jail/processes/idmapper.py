"""Makes detached mounts of images' roots, each with the ids of one sandbox.

A process of its own on the host, with the engine's rights (root), because it makes user namespaces:
each is made by a child of one thread. It reads what the engine sends and nothing else; it opens no
path. The invariant: a mount that it hands over is read-only, nosuid, nodev, and every file in it
belongs to an id of the sandbox, or to none.

    request   {"first": N, "count": N, "base": N} and an open directory: ids of its files from
              `base` on, `count` of them, are shown as the host's ids from `first` on
    answer    {} and the mount, or {"error": text, "errno": number}
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

_ATTRIBUTES = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV


def main(arguments: List[str]) -> None:
    """Serve on socket `CONTROL_FD` until its other end is closed; never return."""
    control = socket.socket(fileno=int(arguments[0]))
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
