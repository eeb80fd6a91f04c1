"""Messages between the engine and the egress proxy, over one SOCK_SEQPACKET socket.

The engine asks: `add` (with the listeners' descriptors), `policy`, `drop`, `usage`, `ping`, and
`packages` (with the descriptors of a folder and maybe of a file of certificates); each question has
a number, and its answer the same one, with an `error` and maybe a `remedy`. The proxy reports
connections without being asked, many in one message.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from cellwall.model.errors import UsageError

MOST_BYTES = 131_072
"""Most bytes of one message; a socket takes twice that (`net.core.wmem_default`)."""
MOST_DESCRIPTORS = 8


def packed(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message; `UsageError` if a policy with secrets is too long."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"network: policy and secrets take {len(data)} bytes, of {MOST_BYTES}",
            remedy="give fewer rules, or wider ones, and fewer or shorter secrets",
        )
    return data


def receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message and its descriptors; None at the end. Raises BlockingIOError."""
    data, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_DESCRIPTORS)
    return (json.loads(data) if data else None), list(descriptors)
