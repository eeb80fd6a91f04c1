"""Transport of a caller's environment into its sandbox: through its channel, ahead of all else.

Has both halves: the host sends it before any process is inside (`fork_server`), init reads it once
it is locked down (`sandbox_init`). SECURITY: it does not pass through a fork-server or a worker.
Everything that those ever had in memory, live or freed, is in the memory of every later sandbox, of
any tenant.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Dict, Mapping

MOST_BYTES = 65_536
"""Most bytes of an environment as JSON. A socket takes them in one go before a process reads
(`net.core.wmem_default` is 208 KiB)."""
_LENGTH = struct.Struct("=I")


def packed(environment: Mapping[str, str]) -> bytes:
    """Return the bytes for the channel; raise ValueError above `MOST_BYTES`."""
    text = json.dumps(dict(environment)).encode()
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text)} bytes are more than {MOST_BYTES}")
    return _LENGTH.pack(len(text)) + text


def send(channel: socket.socket, data: bytes) -> None:
    """Put the bytes into the channel without waiting; OSError if there is no room."""
    if channel.send(data, socket.MSG_DONTWAIT) != len(data):
        raise BlockingIOError("channel: no room for an environment; raise net.core.wmem_default")


def read(fd: int) -> Dict[str, str]:
    """Read the environment and nothing more; EOFError if the host is gone."""
    (length,) = _LENGTH.unpack(_exactly(fd, _LENGTH.size))
    found: Dict[str, str] = json.loads(_exactly(fd, length))
    return found


def _exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            raise EOFError("channel: it ended before the environment was there")
        data += piece
    return data
