"""Limits that a foreign request asks for, against what the operator permits.

The server's own routes lower a limit to its ceiling and say so in the answer; foreign answers have
no place for that. The invariant: a limit that this server would lower is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.model.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1024 * 1024


def permitted(wanted: Mapping[str, float], most: Limits) -> dict[str, float]:
    """Return the limits; `UsageError` names one that is out of bounds or above its ceiling."""
    for name, value in wanted.items():
        ceiling = getattr(most, name)
        if value > ceiling:
            raise UsageError(
                f"limits.{name}: {value:g} is above this server's ceiling of {ceiling:g}",
                remedy="ask for less, or let the operator raise it",
            )
    Limits().with_changes(dict(wanted))
    return dict(wanted)


def wall(seconds: float, most: Limits) -> dict[str, float]:
    """Return the limits of a program that may run for `seconds`, with CPU time for all of it."""
    processors = max(1.0, Limits().cpus)
    return permitted({"wall_s": seconds, "cpu_s": min(seconds * processors, most.cpu_s)}, most)


def mebibytes(size_bytes: float) -> int:
    """Return a size in MiB, rounded up."""
    return math.ceil(size_bytes / MIB)
