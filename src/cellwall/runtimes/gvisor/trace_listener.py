"""Trace listener: count the forks that a sandbox's own kernel refused; cgroups cannot see them.

gVisor sends the events of its trace points to a socket of the engine: one datagram for each end of
a call that makes a process. The limit itself is an rlimit inside. SECURITY: the messages come from
outside the program's reach but are read as if they did not: bounded, and used only as a count that
can turn a bad end into the verdict `processes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from pathlib import Path
from typing import Any

from cellwall.linux import owner_label

FLAG = "pod-init-config"
"""Flag of `runsc`; versions without it send nothing, and only the host's own count remains."""
_POINTS = ("syscall/clone/exit", "syscall/fork/exit", "syscall/vfork/exit")
_CLONE3 = "syscall/sysno/435/exit"
_HEADER = struct.Struct("<HHI")
"""Length of this header, kind of message, messages dropped so far."""
_EXIT_FIELD = _ERRNO_FIELD = 2
_MESSAGE_BYTES = 4096
_MOST_AT_ONCE = 256
_SUFFIX = ".sock"


class Witness:
    """One listening socket, then the one connection of the sandbox's kernel."""

    def __init__(self, folder: Path) -> None:
        """Listen below `folder`, under a name that carries this process's owner label."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.name = owner_label.new_label() + _SUFFIX
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._line: socket.socket | None = None
        self._is_greeted = False
        self.refused = 0
        """Number of forks and threads that the sandbox's kernel refused at the process limit."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._loop = asyncio.get_running_loop()
        # Through the descriptor: the path of a state directory may be too long for a socket.
        try:
            self._listener.bind(self._path)
            self._listener.listen(1)
        except OSError:
            self._listener.close()
            os.close(self._folder)
            raise
        self._loop.add_reader(self._listener.fileno(), self._on_call)

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self._folder}/{self.name}"

    def configuration(self) -> dict[str, Any]:
        """Return the trace configuration for `runsc`, which starts in `folder`: a name suffices."""
        sinks = [{"name": "remote", "config": {"endpoint": self.name}}]
        points = [{"name": name} for name in (*_POINTS, _CLONE3)]
        return {"trace_session": {"name": "Default", "points": points, "sinks": sinks}}

    def _on_call(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._line, _ = self._listener.accept()
            self._line.setblocking(False)
            self._stop_listening()
            self._loop.add_reader(self._line.fileno(), self.hear)

    def hear(self) -> None:
        """Read the messages that have arrived; never blocks."""
        for _ in range(_MOST_AT_ONCE):
            if self._line is None:
                return
            try:
                message = self._line.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._hang_up()
            elif self._is_greeted:
                self.refused += refusal(message) == errno.EAGAIN
            else:
                self._greet(message)

    def _greet(self, message: bytes) -> None:
        """Answer the first message, a version, with the same version: every version is accepted."""
        self._is_greeted = True
        assert self._line is not None  # noqa: S101 - `hear` looked
        with contextlib.suppress(OSError):
            self._line.send(message)

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._folder)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._loop.remove_reader(self._line.fileno())
            self._line.close()
            self._line = None

    def close(self) -> None:
        """Close the sockets; idempotent."""
        self._stop_listening()
        self._hang_up()

    def abandon(self) -> None:
        """Close the descriptors without touching an event loop; for a forked child."""
        if self._listener.fileno() >= 0:
            self._listener.close()
            os.close(self._folder)
        if self._line is not None:
            self._line.close()
            self._line = None


def sweep(folder: Path) -> int:
    """Remove the sockets of engines that are gone; return their number."""
    removed = 0
    for path in folder.glob(f"*{_SUFFIX}"):
        if owner_label.is_dead(path.name.removesuffix(_SUFFIX)):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def refusal(message: bytes) -> int:
    """Return the errno a call ended with; 0 for success and for what cannot be read."""
    if len(message) < _HEADER.size:
        return 0
    length, _kind, _dropped = _HEADER.unpack_from(message)
    ended = _field(message[length:], _EXIT_FIELD)
    found = _field(ended, _ERRNO_FIELD) if isinstance(ended, bytes) else 0
    return found if isinstance(found, int) else 0


def _field(data: bytes, wanted: int) -> int | bytes:
    """Return a varint or length-delimited field of a protocol buffer; 0 if it is absent."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(data, position)
            if key >> 3 == wanted:
                return value
        elif kind == 2:
            size, position = _varint(data, position)
            if key >> 3 == wanted:
                return data[position : position + size]
            position += size
        else:
            return 0  # the requested messages have no other kind
    return 0


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, position
