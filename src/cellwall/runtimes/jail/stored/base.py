"""Base: what images of sessions are compared with."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StandsStill(Protocol):
    """A sandbox that is never used, and that counts as one of its fork-server."""

    async def aclose(self) -> None:
        """End it."""


class Base(NamedTuple):
    """The memory of a fresh session of a fork-server, which its images are compared with."""

    fd: int
    """Descriptor of a file that has no name; no sandbox gets it, or a duplicate."""
    maps: bytes
    """Its /proc/PID/maps."""
    standing: StandsStill | None = None
    """A sandbox that is like it for good."""
