"""The switch by which the servers of tests are behind a gateway (`fronted`)."""

from __future__ import annotations

import os

VARIABLE = "CELLWALL_TEST_GATEWAY"
"""`1`: every server of `kit.servers` is a node with a gateway in front."""


def is_fronted() -> bool:
    """Whether servers of tests are behind a gateway."""
    return os.environ.get(VARIABLE) == "1"
