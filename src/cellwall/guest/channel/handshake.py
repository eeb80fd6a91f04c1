"""The first words between host, init and context: which they are, ready, idle, go."""

from __future__ import annotations

import sys

from cellwall.guest.channel.frames import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 1
IDLE = encode({"ev": "idle"})
GO = encode({"op": "go"})
"""Begin with what was held; the only thing that is said to a sandbox that holds something."""


def ready(contexts: list[str]) -> dict[str, Any]:
    """The first thing that the host hears of an init."""
    python = sys.version.partition(" ")[0]
    return {"ev": "ready", "id": 0, "protocol": PROTOCOL, "python": python, "contexts": contexts}


USUAL_CONTEXTS = ["main"]
