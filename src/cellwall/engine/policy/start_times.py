"""Start times: how long recent sandbox starts took, by runtime.

Only starts count: the claim of a parked sandbox is not one, and time spent waiting for a turn is
not included. Kept in memory; each engine has its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_KEPT = 100
"""Number of the latest starts of each runtime that count: those of an hour ago say little about
now."""


@dataclass(frozen=True, slots=True)
class Started:
    """Measured start times of one runtime."""

    count: int
    """Number of latest starts measured."""
    p50_ms: float
    """Median in milliseconds, from the start call to a sandbox that is ready."""

    def as_json(self) -> dict[str, float]:
        """Return plain JSON."""
        return {"count": self.count, "p50_ms": round(self.p50_ms, 3)}


class Starts:
    """The latest start times of one engine."""

    def __init__(self) -> None:
        self._took_s: dict[str, deque[float]] = {}

    @contextmanager
    def timing(self, runtime: str) -> Iterator[None]:
        """Measure the block as a start, unless it fails."""
        began = time.perf_counter()
        yield
        took_s = time.perf_counter() - began
        self._took_s.setdefault(runtime, deque(maxlen=_KEPT)).append(took_s)

    def of(self, runtime: str) -> Started | None:
        """Return the measured start times of `runtime`; None without any."""
        took_s = self._took_s.get(runtime)
        if not took_s:
            return None
        from statistics import median  # it imports as long as a program runs

        return Started(len(took_s), median(took_s) * 1000)
