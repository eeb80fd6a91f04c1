"""A process that opens a sandbox's listeners for an engine that is not root.

An ordinary user has every capability in the user namespaces that the user made, and none outside.
A process with threads cannot enter one, so this one does: it enters the user namespace that owns
the sandbox's network namespace, then that, opens the listeners, sends them back and ends. It is
started with the descriptors of a socket and of the network namespace.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import sys

from cellwall.linux.network.listeners import open_listeners
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import do_all

_NS_GET_USERNS = 0xB701
"""ioctl_ns(2): a descriptor of the user namespace that owns a namespace."""


def main() -> None:
    """Run `SOCKET_FD NAMESPACE_FD`; an error goes into the socket as text, without descriptors."""
    answer = socket.socket(fileno=int(sys.argv[1]))
    namespace = int(sys.argv[2])
    home = os.stat("/proc/self/ns/net").st_ino
    try:
        if os.fstat(namespace).st_ino == home:  # as in `listeners`: never the host's own
            raise PermissionError(1, "enter the sandbox's network namespace: it is the engine's")
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        do_all(process.prepare_join(owner, process.CLONE_NEWUSER))
        do_all(process.prepare_join(namespace, process.CLONE_NEWNET))
        found = open_listeners().sockets()
    except OSError as error:
        answer.sendall(f"{error.errno} {error}".encode())
        return
    rights = array.array("i", [each.fileno() for each in found])
    answer.sendmsg([b"opened"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
