"""Throughput rows: fresh sandboxes per second from eight callers, against bare Python.

Called by `runner`. Invariant: a closed loop with the same number of callers on both sides, in
alternating stretches; only runs whose answer was right count.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.timings import checked, warm
from cellwall_bench import bare
from cellwall_bench.figures import Figure

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine

CALLERS = 8
STRETCHES = 3


async def sustained(
    engine: Engine,
    key: str,
    code: str,
    options: dict[str, Any],
    argv: tuple[str, ...],
    stretch_s: float,
) -> Figure:
    """Measure runs of `code` per second, and the command `argv` without any of us beside it."""
    ours: list[float] = []
    floor: list[float] = []
    await warm(engine, options)
    await _per_second(engine, code, options, 0.5)
    for _ in range(STRETCHES):
        floor.append(bare.per_second(argv, CALLERS, stretch_s))
        ours.append(await _per_second(engine, code, options, stretch_s))
    rate, bare_rate = sum(ours) / STRETCHES, sum(floor) / STRETCHES
    return Figure(
        key,
        rate / bare_rate,
        f"{rate:.0f}/s against {bare_rate:.1f}/s; {CALLERS} callers, "
        f"{STRETCHES} stretches of {stretch_s:g} s each",
        {"ours_per_s": [round(x, 1) for x in ours], "bare_per_s": [round(x, 1) for x in floor]},
    )


async def _per_second(
    engine: Engine, code: str, options: dict[str, Any], duration_s: float
) -> float:
    done = 0
    begun = time.perf_counter()
    end = begun + duration_s

    async def call() -> None:
        nonlocal done
        while time.perf_counter() < end:
            checked(await engine.run(code, **options))
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(call())
    return done / (time.perf_counter() - begun)
