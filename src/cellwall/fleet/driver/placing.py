"""Placing: which node gets the next program. Pure.

By the driver's own counts of what it has given, never by reports: those are older. The driver's own
machine first, as long as one of its places is free, because its answers cross no network; then the
less loaded of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

WINDOW = 3
"""Number of items that a node may have been given, as a multiple of those that it does together.

The others wait there, so that it never idles while a letter travels, and that a letter of Ray's,
which costs some 5 ms of processor time at both ends, brings several results. More than that would
only be in doubt when the machine is lost.
"""


@dataclass(frozen=True, slots=True)
class Room:
    """A node as a place for a program."""

    name: str
    load: int
    """Number of items that it has been given, without results."""
    at_once: int
    """Number of programs that it does together."""
    is_near: bool
    """Whether it is on the driver's machine."""

    @property
    def is_free(self) -> bool:
        """Whether it may be given another one."""
        return self.load < WINDOW * self.at_once

    @property
    def share(self) -> float:
        """Load as a share of its places."""
        return self.load / self.at_once


def choose(rooms: Sequence[Room], pick: Callable[[Sequence[Room], int], list[Room]]) -> Room | None:
    """Return the room for the next program, None if none is free; `pick` is `random.sample`."""
    free = [room for room in rooms if room.is_free]
    for room in free:
        if room.is_near and room.load < room.at_once:
            return room
    if not free:
        return None
    return min(pick(free, min(2, len(free))), key=lambda room: room.share)
