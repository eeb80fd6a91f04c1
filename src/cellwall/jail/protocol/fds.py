"""Ownership of descriptors, and the messages that carry them.

Control messages between the host and the fork-server are single SEQPACKET datagrams: a JSON object
or a request (`clone_request`), and up to sixteen descriptors. SECURITY: descriptors cross only
here; `keep_only` is what stands between a leaked host descriptor and a sandbox (runc
CVE-2024-21626).
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

_MAX_MESSAGE = 65_536
_MAX_FDS = 16
_INT = struct.Struct("i")
_SPACE = socket.CMSG_SPACE(_MAX_FDS * _INT.size)
_unpacked = [struct.Struct(f"{count}i").unpack_from for count in range(_MAX_FDS + 2)]
"""Unpackers by number of descriptors; the kernel gives one more than were asked for if it can align
it."""
# Plain numbers: arithmetic of enum members calls a dozen Python functions each time.
_CLOEXEC, _NOSIGNAL = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_NOSIGNAL)
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
HIGHEST = 2**31 - 1


class ControlClosed(Exception):
    """The other end of a control socket is gone."""


class Message(NamedTuple):
    """A control message, as sendmsg(2) takes it."""

    data: List[bytes]
    ancillary: List[Tuple[int, int, Any]]


def prepare(data: bytes, numbers: Any = None) -> Message:  # noqa: ANN401 - a buffer, or None
    """Prepare a message, to be sent once or again and again.

    `numbers` is a buffer of C ints, the descriptors: its content at the time of sending counts.
    """
    ancillary = [] if numbers is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
    return Message([data], ancillary)


def send_prepared(sock: socket.socket, message: Message) -> None:
    """Send one message; raises OSError, ControlClosed when the peer is gone."""
    data, ancillary = message
    try:
        sock.sendmsg(data, ancillary, _NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ControlClosed(str(error)) from error


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send data and descriptors; raises as `send_prepared` does."""
    send_prepared(sock, prepare(data, array.array("i", fds) if fds else None))


def send_message(sock: socket.socket, message: Dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one JSON object; raises as `send_prepared` does."""
    send(sock, json.dumps(message, separators=(",", ":")).encode(), fds)


def receive_message(sock: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Receive one message; raises as `receive` does, and ValueError if it is no JSON object."""
    data, fds = receive(sock)
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        close_all(fds)
        raise ValueError("control message: not a JSON object")
    return message, fds


def receive(sock: socket.socket) -> Tuple[bytes, List[int]]:
    """Receive a message; descriptors arrive close-on-exec. ControlClosed at the end."""
    try:
        data, ancillary, flags, _ = sock.recvmsg(_MAX_MESSAGE, _SPACE, _CLOEXEC)
    except ConnectionResetError as error:
        raise ControlClosed(str(error)) from error
    fds: List[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += _unpacked[len(payload) // _INT.size](payload)
    if not data:
        close_all(fds)
        raise ControlClosed("end of stream")
    if flags & _CUT:
        close_all(fds)
        raise ValueError(
            "control message: larger than both ends agreed on, or no descriptor was free"
        )
    return data, fds


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors of this process."""
    for fd in fds:
        os.close(fd)


def keep_only(kept: Iterable[int], *, first: int = 3) -> None:
    """Close every descriptor from `first` on except `kept`; the kernel walks them, not /proc."""
    low = first
    for fd in sorted(set(kept)):
        if fd >= low:
            os.closerange(low, fd)
            low = fd + 1
    os.closerange(low, HIGHEST)


def as_document(text: str) -> int:
    """Hand a document to the next program without a file or argv: an inheritable memfd."""
    return _filled(os.memfd_create("config", 0), text)


def as_sent_document(text: str) -> int:
    """Hand a document to a process that runs: a sealed memfd, which no program of ours inherits."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    fd = _filled(os.memfd_create("config", flags), text)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def as_nameless_file(text: str, folder: str) -> int:
    """Do the same where the filter may refuse a memfd: an inheritable file without a name."""
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.set_inheritable(fd, True)
    return _filled(fd, text)


def _filled(fd: int, text: str) -> int:
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
