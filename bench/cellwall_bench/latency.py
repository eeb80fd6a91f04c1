"""Latency rows: a fresh sandbox and a live context, in units of the floor beside them.

Not throughput. Called by `runner`. Invariant: ours and the floor alternate sample by sample, so
that a noisy neighbour hits both.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import wait_parked
from cellwall.apps.timings import PLAIN, Samples, checked
from cellwall_bench.figures import Figure, p50, p95, ratio_of_medians

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cellwall.engine.engine import Engine

_BETWEEN_S = 60.0


def bare_argv(python: str, code: str) -> tuple[str, ...]:
    """Return the command that runs `code` without any of us."""
    return (python, "-c", code)


def as_figure(key: str, taken: Samples) -> Figure:
    """Return the row `key` of samples that were taken in turns with the floor."""
    ours, floor = taken.ours, taken.floor
    return Figure(
        key,
        taken.ratio,
        f"{taken.ours_ms:.2f} ms p50, {p95(ours) * 1e3:.2f} ms p95; "
        f"F = {taken.floor_ms:.2f} ms; {len(ours)} samples",
        {"ours_ms": _milliseconds(ours), "floor_ms": _milliseconds(floor)},
    )


async def against(
    engine: Engine,
    key: str,
    choice: dict[str, Any],
    samples: int,
    plain: Callable[[], float],
    name: str,
) -> Figure:
    """Measure a program in a fresh sandbox against `plain`, the tool called `name`.

    Both by the seconds to the first output: what comes after it, such as a container's removal, is
    no wait of the caller.
    """
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(samples + 1):
        await asyncio.wait_for(wait_parked(engine), _BETWEEN_S)
        ours.append(await _first_output(engine, choice))
        await asyncio.wait_for(wait_parked(engine), _BETWEEN_S)
        floor.append(await asyncio.to_thread(plain))
    del ours[0], floor[0]  # page caches, and with a pool the first one finds nothing parked
    return Figure(
        key,
        ratio_of_medians(ours, floor),
        f"{p50(ours) * 1e3:.0f} ms p50, {p95(ours) * 1e3:.0f} ms p95; "
        f"`{name}` = {p50(floor) * 1e3:.0f} ms; {samples} samples",
    )


async def _first_output(engine: Engine, choice: dict[str, Any]) -> float:
    seen: list[float] = []
    begun = time.perf_counter()
    checked(await engine.run(PLAIN, on_event=lambda _: seen.append(time.perf_counter()), **choice))
    return seen[0] - begun


async def next_cell(engine: Engine, key: str, choice: dict[str, Any], samples: int) -> Figure:
    """Measure the next execution in a context that is already there, in milliseconds."""
    async with await engine.create_sandbox(**choice) as sandbox:
        took: list[float] = []
        for _ in range(samples + 3):
            begun = time.perf_counter()
            checked(await sandbox.run(PLAIN))
            took.append((time.perf_counter() - begun) * 1e3)
    return Figure(key, p50(took[3:]), f"{p95(took[3:]):.1f} ms p95; {samples} samples")


def _milliseconds(samples: Sequence[float]) -> dict[str, float]:
    return {"p50": round(p50(samples) * 1e3, 3), "p95": round(p95(samples) * 1e3, 3)}
