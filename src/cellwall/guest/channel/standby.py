"""Standby line: a second socket to the host, unused until another server takes the sandbox over.

`init/main.py` owns the only one, if its host made one. The first bytes on it come with the end of
the next standby line, and make it the channel: the old one ends, with whatever half frame was under
way in either direction. Nothing is written to it before. That the host still has an end of the old
channel until then keeps init alive meanwhile.
"""

from __future__ import annotations

# The C module under `socket`: the Python class over it makes enum members of every constant.
import _socket
import os
import struct
from collections.abc import Callable

from cellwall.guest.channel.loop import READ, Loop

_INT = struct.Struct("i")
_READ_BYTES = 64 * 1024

OnTaken = Callable[[int, int, bytes], None]
"""Callback that owns two descriptors, of the new channel and of the next standby line (-1: none
came), and gets the bytes that were read."""


class Standby:
    """Waits for a server that takes over."""

    def __init__(self, loop: Loop, on_taken: OnTaken) -> None:
        """Nothing is watched before `open`."""
        self._loop = loop
        self._on_taken = on_taken
        self._fd = -1

    @property
    def is_open(self) -> bool:
        """Whether another server could take over."""
        return self._fd >= 0

    def open(self, fd: int) -> None:
        """Own `fd` and wait for a server on it."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop.watch(fd, READ, self._on_ready)

    def _on_ready(self, _events: int) -> None:
        line = _socket.socket(fileno=self._fd)
        try:
            data, said, _, _ = line.recvmsg(
                _READ_BYTES, _socket.CMSG_SPACE(_INT.size), _socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, said = b"", []
        finally:
            line.detach()
        fd, self._fd = self._fd, -1
        self._loop.forget(fd)
        if data:
            self._on_taken(fd, _only(said), data)
        else:
            os.close(fd)  # no server can take over any more; the channel says when all is over


def _only(said: list[tuple[int, int, bytes]]) -> int:
    """Return the one descriptor in a message's ancillary data; -1 if there is none."""
    for level, kind, payload in said:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            return int(_INT.unpack_from(payload)[0])
    return -1
