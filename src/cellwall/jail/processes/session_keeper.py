"""Session keeper: holds the descriptors that keep sandboxes alive while their server restarts.

Runs as `python -I -S guest.pyz session_keeper SOCKET_FD GRACE_S`, started by `session_keeping` in
the engine. One thread, no privileges that it uses, no secret, no store: it only has descriptors and
opaque records. It reads nothing that a sandbox says. Engines label their cgroups with its pid, and
fork-servers take its pidfd as their lifeline, so its end is the end of every sandbox. The
invariant: it serves one process of its own user at a time, and it is gone `GRACE_S` seconds after
that process, or at once if nothing is kept.

A message is one SEQPACKET datagram, the answer is another one:

    put NAME RECORD   with descriptors: keep them under that name, in place of what was kept there;
                      without: replace only the record. The first descriptor is init's pidfd
    take NAME         answers the record, with copies of the descriptors; they stay kept
    list              answers the names
    drop NAME         forget; closes the descriptors
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from cellwall.jail.protocol import fds

MOST_KEPT = 2000
MOST_NAME_BYTES = 64
MOST_RECORD_BYTES = 65_536 - 128
"""Maximum bytes of a record: with operation and name it is one message of 64 KiB."""
CREDENTIALS = struct.Struct("3i")
"""Result of SO_PEERCRED, unix(7): pid, uid, gid."""
_WAITING = 8

Answer = Tuple[bytes, List[int]]


class Refused(Exception):
    """A request that is not carried out; its text is the answer."""


class Kept(NamedTuple):
    """What is kept of one sandbox."""

    record: bytes
    descriptors: List[int]


class Keeper:
    """The table of what is kept, and the one connection that may change it."""

    def __init__(self, listener: socket.socket, grace_s: float) -> None:
        """Accept servers from `listener`."""
        self._listener = listener
        self._grace_s = grace_s
        self._server: Optional[socket.socket] = None
        self._kept: Dict[bytes, Kept] = {}
        self._dead: Dict[int, bytes] = {}
        """Names of the sandboxes that have ended meanwhile, by their pidfd."""
        self._alone_since = time.monotonic()
        self._poller = select.poll()
        self._poller.register(listener, select.POLLIN)

    def run(self) -> None:
        """Serve until there is no server and nothing to keep, or the grace is over."""
        while self._server is not None or time.monotonic() < self._alone_since + self._grace_s:
            found = {fd for fd, _ in self._poller.poll(self._patience_ms())}
            # The listener last: the server before it may have left a moment ago.
            for fd in sorted(found, key=self._is_listener):
                if self._is_listener(fd):
                    self._accept()
                elif self._server is not None and fd == self._server.fileno():
                    self._serve(self._server)
                else:
                    self._note_end(fd)

    def _is_listener(self, fd: int) -> bool:
        return fd == self._listener.fileno()

    def _patience_ms(self) -> Optional[float]:
        if self._server is not None:
            return None
        return max(1.0, 1000 * (self._alone_since + self._grace_s - time.monotonic()))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the caller has left
            connection, _ = self._listener.accept()
            try:
                self._check(connection)
            except Refused as refusal:
                with contextlib.suppress(fds.ControlClosed, OSError):
                    fds.send(connection, b"no " + str(refusal).encode())
                connection.close()
                return
            fds.send(connection, b"ok ")
            connection.setblocking(False)
            self._server = connection
            self._poller.register(connection, select.POLLIN)

    def _check(self, connection: socket.socket) -> None:
        """SECURITY: what is kept is power over sandboxes, so it is given to our own user only."""
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, uid, _ = CREDENTIALS.unpack(found)
        if uid != os.geteuid():
            raise Refused("another user's sessions are kept here")
        if self._server is not None:
            raise Refused("another server has the sessions")

    def _serve(self, server: socket.socket) -> None:
        received: List[int] = []
        try:
            data, received = fds.receive(server)
            text, descriptors = self._answer(data, received)
        except BlockingIOError:
            return
        except (fds.ControlClosed, OSError):
            self._leave()
            return
        except (Refused, ValueError) as refusal:
            fds.close_all(received)
            text, descriptors = b"no " + str(refusal).encode(), []
        try:
            fds.send(server, text, descriptors)
        except (fds.ControlClosed, OSError):
            self._leave()

    def _answer(self, data: bytes, received: List[int]) -> Answer:
        operation, name, record = [*data.split(b" ", 2), b"", b""][:3]
        if operation == b"put":
            return self._put(name, record, received)
        if received:
            raise Refused("descriptors come with `put` only")
        if operation == b"list":
            return b"ok " + b" ".join(self._kept), []
        if name not in self._kept:
            raise Refused("nothing of that name is kept")
        if operation == b"take":
            return b"ok " + self._kept[name].record, self._kept[name].descriptors
        if operation == b"drop":
            self._drop(name)
            return b"ok ", []
        raise Refused("there is no such operation")

    def _put(self, name: bytes, record: bytes, received: List[int]) -> Answer:
        before = self._kept.get(name)
        if not 0 < len(name) <= MOST_NAME_BYTES or len(record) > MOST_RECORD_BYTES:
            raise Refused("the name or the record is too large")
        if before is None and (not received or len(self._kept) >= MOST_KEPT):
            raise Refused("there are no descriptors with it, or too many sessions are kept")
        if not received and before is not None:
            self._kept[name] = Kept(record, before.descriptors)
            return b"ok ", []
        if before is not None:
            self._drop(name)
        self._kept[name] = Kept(record, received)
        self._poller.register(received[0], select.POLLIN)
        return b"ok ", []

    def _drop(self, name: bytes) -> None:
        pidfd, *_ = descriptors = self._kept.pop(name).descriptors
        if self._dead.pop(pidfd, None) is None:
            self._poller.unregister(pidfd)
        fds.close_all(descriptors)

    def _note_end(self, pidfd: int) -> None:
        """Remember that a sandbox has ended; a server that is here drops it itself."""
        for name, kept in self._kept.items():
            if kept.descriptors[0] == pidfd:
                self._poller.unregister(pidfd)
                self._dead[pidfd] = name
                break
        if self._server is None:
            self._drop_dead()

    def _drop_dead(self) -> None:
        for name in list(self._dead.values()):
            self._drop(name)
        if not self._kept:
            self._grace_s = 0.0

    def _leave(self) -> None:
        """Begin to wait for the next server."""
        if self._server is not None:
            self._poller.unregister(self._server)
            self._server.close()
            self._server = None
        self._alone_since = time.monotonic()
        self._drop_dead()


def main(arguments: List[str]) -> None:
    """Run `SOCKET_FD GRACE_S` in the background; the socket is bound. Never return."""
    if os.fork():  # so that the server, which it outlives, has no child that it must wait for
        os._exit(0)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(listener.fileno(), False)
    listener.listen(_WAITING)  # by this process, so that SO_PEERCRED names it to its servers
    listener.setblocking(False)
    Keeper(listener, float(arguments[1])).run()
    os._exit(0)
