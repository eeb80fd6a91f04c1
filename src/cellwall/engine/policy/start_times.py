"""How long sandboxes took to start, of late, by runtime.

Only starts: a claim of a parked sandbox is not one, and time spent waiting for a turn is not
counted. Kept in memory; each engine knows its own.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_KEPT = 100
"""Starts of each runtime that count: those of an hour ago say little about now."""


@dataclass(frozen=True, slots=True)
class Started:
    """What was measured of one runtime."""

    count: int
    """How many of the latest starts this is about."""
    p50_ms: float
    """Half of them took at most so many milliseconds, from the wish to a sandbox that is ready."""

    def as_json(self) -> dict[str, float]:
        """Return plain JSON."""
        return {"count": self.count, "p50_ms": round(self.p50_ms, 3)}


class Starts:
    """The latest starts of one engine."""

    def __init__(self) -> None:
        """None yet."""
        self._took_s: dict[str, deque[float]] = {}

    @contextmanager
    def timing(self, runtime: str) -> Iterator[None]:
        """Count what happens inside as a start, unless it fails."""
        began = time.perf_counter()
        yield
        took_s = time.perf_counter() - began
        self._took_s.setdefault(runtime, deque(maxlen=_KEPT)).append(took_s)

    def of(self, runtime: str) -> Started | None:
        """Return what was measured; None if nothing was."""
        took_s = self._took_s.get(runtime)
        return None if not took_s else Started(len(took_s), statistics.median(took_s) * 1000)
