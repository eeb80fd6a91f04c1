"""Moments: as text (RFC 3339, UTC, milliseconds), and on the clock that retention is counted by."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Return seconds since the epoch as `2026-11-21T20:47:16.123Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BOOTED_AT = time.time() - _since_boot()


def steady() -> float:
    """Return seconds since the epoch, unaffected by steps of the wall clock while the server runs.

    The values are for comparison with each other, also across restarts; people are shown the wall
    clock.
    """
    return _BOOTED_AT + _since_boot()
