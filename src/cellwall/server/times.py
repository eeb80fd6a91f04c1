"""Moments as text: RFC 3339, UTC, milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Return seconds since the epoch as `2026-11-21T20:47:16.123Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
