"""The first messages between host, init and context: ready, idle and go."""

from __future__ import annotations

import sys

from cellwall.guest.channel.frames import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 1
IDLE = encode({"ev": "idle"})
GO = encode({"op": "go"})
"""Frame that starts a held execution; a sandbox that holds one accepts nothing else."""


def ready(contexts: list[str]) -> dict[str, Any]:
    """Return the header of the first event that an init sends to the host."""
    python = sys.version.partition(" ")[0]
    return {"ev": "ready", "id": 0, "protocol": PROTOCOL, "python": python, "contexts": contexts}


USUAL_CONTEXTS = ["main"]
