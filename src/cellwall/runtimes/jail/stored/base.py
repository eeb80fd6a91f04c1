"""Base: what images of sessions are compared with."""

from __future__ import annotations

from typing import NamedTuple


class Base(NamedTuple):
    """The memory of a fresh session of a fork-server, which its images are compared with."""

    fd: int
    """Descriptor of a file that has no name; no sandbox gets it, or a duplicate."""
    maps: bytes
    """Its /proc/PID/maps."""
