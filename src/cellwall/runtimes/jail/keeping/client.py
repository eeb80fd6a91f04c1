"""The engine's end of the session keeper: start one or find it, put, take and drop.

Runs in the engine process. What the keeper holds, and for how long, is in
`jail.processes.session_keeper`; what an engine puts there is in `record`. Calls block for
the answer of a process that does nothing else: a tenth of a millisecond. The invariant: a
descriptor that could not be handed over, or was received too much, is closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cellwall.jail.processes.session_keeper import CREDENTIALS, MOST_RECORD_BYTES
from cellwall.jail.protocol import fds
from cellwall.model.errors import Conflict, HostUnsupported, SandboxBroken, UsageError

GRACE_S = 60.0
"""Seconds for which a keeper waits for the next server."""
_NAME = "keeper.sock"
_ANSWER_S = 5.0
_START_S = 10.0
_PAUSE_S = 0.02
_REMEDY = "look for a process `session_keeper` of this user; its end is the end of its sandboxes"


class Taken(NamedTuple):
    """What was kept of one sandbox; the caller owns the descriptors."""

    record: bytes
    descriptors: list[int]


class KeeperClient:
    """One connection to a keeper, which serves no other process meanwhile."""

    def __init__(self, sock: socket.socket, pid: int, pidfd: int) -> None:
        """Use `connect`."""
        self._sock = sock
        self.pid = pid
        self.pidfd = pidfd

    @classmethod
    def connect(cls, folder: Path, bundle: Path, grace_s: float = GRACE_S) -> KeeperClient:
        """Return a connection to the keeper of `folder`; start one if there is none.

        Only one engine may call this for a folder at a time. Raises Conflict if another process
        has the keeper's sessions, HostUnsupported if none can be started.
        """
        found = cls.find(folder)
        if found is not None:
            return found
        try:
            _start(folder, bundle, grace_s)
        except OSError as error:
            raise HostUnsupported(
                "session keeper", f"start a session keeper: {error}", remedy=_REMEDY
            ) from error
        until = time.monotonic() + _START_S
        while (found := cls.find(folder)) is None:
            if time.monotonic() > until:
                raise HostUnsupported(
                    "session keeper", "session keeper: it does not answer", remedy=_REMEDY
                )
            time.sleep(_PAUSE_S)
        return found

    @classmethod
    def find(cls, folder: Path) -> KeeperClient | None:
        """Return a connection to the keeper of `folder`; None if none runs.

        SECURITY: what it is told keeps sandboxes alive, so it must be a process of our own user.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as opened:
            opened.callback(sock.close)
            sock.settimeout(_ANSWER_S)
            try:
                with _short(folder) as path:
                    sock.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            pid, uid, _ = CREDENTIALS.unpack(found)
            if uid != os.geteuid():
                raise UsageError(
                    f"session keeper: {folder / _NAME} belongs to a process of user {uid}",
                    remedy="give --state-dir a directory of your own",
                )
            pidfd = os.pidfd_open(pid)
            opened.callback(os.close, pidfd)
            client = cls(sock, pid, pidfd)
            client._hear()  # it lives, so the pid is not another process's
            opened.pop_all()
        return client

    @property
    def is_gone(self) -> bool:
        """Whether the keeper has ended, and with it every sandbox and fork-server."""
        return self.pidfd < 0 or bool(select.select([self.pidfd], [], [], 0)[0])

    def put(self, name: str, record: bytes, descriptors: Sequence[int] = ()) -> None:
        """Have it keep the descriptors, the first of which is init's pidfd, and the record.

        Without descriptors it replaces the record. Raises UsageError above its size.
        """
        if len(record) > MOST_RECORD_BYTES:
            raise UsageError(
                f"session keeper: a record of {len(record)} bytes is above {MOST_RECORD_BYTES}",
                remedy="give the sandbox fewer contexts, or a shorter network policy",
            )
        self._ask(b"put " + name.encode() + b" " + record, descriptors)

    def take(self, name: str) -> Taken:
        """Return what is kept under that name; it stays kept."""
        return self._ask(b"take " + name.encode())

    def names(self) -> list[str]:
        """Return the names of what is kept."""
        return self._ask(b"list").record.decode().split()

    def drop(self, name: str) -> None:
        """Have it forget a sandbox. Does nothing once it is gone: then nothing is kept."""
        with contextlib.suppress(SandboxBroken, Conflict):
            self._ask(b"drop " + name.encode())

    def _ask(self, data: bytes, descriptors: Sequence[int] = ()) -> Taken:
        try:
            fds.send(self._sock, data, descriptors)
        except (fds.ControlClosed, OSError) as error:
            raise _gone(error) from error
        return self._hear()

    def _hear(self) -> Taken:
        try:
            answer, received = fds.receive(self._sock)
        except (fds.ControlClosed, OSError, ValueError) as error:
            raise _gone(error) from error
        word, _, rest = answer.partition(b" ")
        if word != b"ok":
            fds.close_all(received)
            raise Conflict(f"session keeper: {rest.decode(errors='replace')}", remedy=_REMEDY)
        return Taken(rest, received)

    def close(self) -> None:
        """Leave; the keeper begins to wait for the next server. Idempotent."""
        self._sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _gone(error: Exception) -> SandboxBroken:
    return SandboxBroken(f"session keeper: it is gone ({error})", remedy="restart the server")


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Yield a path of the keeper's socket that is short enough for unix(7), however long it is."""
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{held}/{_NAME}"
    finally:
        os.close(held)


def _start(folder: Path, bundle: Path, grace_s: float) -> None:
    """Start a keeper on a socket that only our user may connect to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        with _short(folder) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # a dead keeper's
            before = os.umask(0o177)
            try:
                sock.bind(path)
            finally:
                os.umask(before)
        # It has no parent that could wait for it: it is to outlive this process.
        subprocess.run(
            _command(sys.executable, bundle, sock.fileno(), grace_s),
            pass_fds=[sock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
            check=True,
        )


def _command(python: str, bundle: Path, number: int, grace_s: float) -> list[str]:
    words = [python, "-I", "-S", "-E", str(bundle), "session_keeper"]
    return [*words, str(number), str(grace_s)]
