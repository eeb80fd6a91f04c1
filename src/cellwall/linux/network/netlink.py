"""Netlink: build messages to the kernel's network parts, send them, and read the answers.

Knows the framing of netlink(7) and rtnetlink(7) and of nf_tables' batches, and no policy. Layouts
and numbers are those of <linux/netlink.h>, <linux/rtnetlink.h> and <linux/netfilter/nf_tables.h>.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

_REQUEST, _ACK, _CREATE, _EXCL, _APPEND = 0x1, 0x4, 0x400, 0x200, 0x800
_ERROR = 2
NESTED = 0x8000
"""Bit of an attribute's kind whose value is attributes; `NLA_F_NESTED`."""
_HEADER = struct.Struct("=IHHII")
_ANSWER_BYTES = 65_536
_ANSWER_S = 5.0
"""Seconds after which a kernel that does not answer is an error; it answers within the call."""
_NF_TABLES = 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that holds others."""
    return attribute(kind | NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """Return an attribute with a text, which ends with a NUL."""
    return attribute(kind, value.encode() + b"\0")


def be32(kind: int, value: int) -> bytes:
    """Return an attribute with a number of 32 bits in network order."""
    return attribute(kind, struct.pack(">i", value))


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """Return a message with its header."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


NEW_LINK, NEW_ADDRESS, NEW_ROUTE, NEW_RULE = 16, 20, 24, 32
"""`RTM_NEW…`: requests that make a device, an address, a route, a rule of routing."""


def new(kind: int, body: bytes, *, exists: bool = False) -> bytes:
    """Return a request of one of these kinds; what it makes must not exist yet, or must."""
    flags = _REQUEST | _ACK | (0 if exists else _CREATE | _EXCL)
    return message(kind, flags, 1, body)


def nf_tables_batch(parts: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return one transaction of nf_tables: all of it holds afterwards, or nothing.

    Each part is the number of a request (`NFT_MSG_…`), the protocol family and the attributes.
    """
    frame = struct.pack(">BBH", 0, 0, _NF_TABLES)
    found: list[bytes] = [message(_BATCH_BEGIN, _REQUEST, 0, frame)]
    for sequence, (kind, family, attributes) in enumerate(parts, 1):
        flags = _REQUEST | _ACK | _CREATE | _APPEND
        body = struct.pack(">BBH", family, 0, 0) + attributes
        found.append(message(_NF_TABLES << 8 | kind, flags, sequence, body))
    found.append(message(_BATCH_END, _REQUEST, 0, frame))
    return b"".join(found)


def transact(protocol: int, request: bytes, answers: int, step: str) -> None:
    """Send `request` in the calling thread's namespace and wait for its acknowledgements.

    Raises OSError with the kernel's error and `step`, or TimeoutError if an answer is missing.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as link:
        link.settimeout(_ANSWER_S)
        link.bind((0, 0))
        link.send(request)
        while answers > 0:
            for number in _errors(link.recv(_ANSWER_BYTES)):
                if number:
                    raise OSError(number, f"{step}: {os.strerror(number)}")
                answers -= 1


def _errors(datagram: bytes) -> Iterable[int]:
    """Yield the error number of each acknowledgement in a datagram; 0 for success."""
    at = 0
    while at + _HEADER.size <= len(datagram):
        length, kind, _, _, _ = _HEADER.unpack_from(datagram, at)
        if kind == _ERROR:
            yield -struct.unpack_from("=i", datagram, at + _HEADER.size)[0]
        at += max(_HEADER.size, length + (-length % 4))
