"""Latency rows: a fresh sandbox and a live context, in units of the floor beside them.

Not throughput. Called by `runner`. Invariant: ours and the floor alternate sample by sample, so
that a noisy neighbour hits both; "parked" samples begin only once the pool is full again.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.bench import bare
from cellwall.apps.bench.figures import Figure, p50, p95, ratio_of_medians
from cellwall.apps.engines import wait_parked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cellwall.engine.engine import Engine
    from cellwall.model.execution import Execution

PLAIN = "print(1)"
WITH_PACKAGES = "import numpy, pandas; print(1)"
_BETWEEN_S = 60.0


class BenchError(Exception):
    """A run that should have been right was not; the figure would mean nothing."""


def checked(execution: Execution) -> Execution:
    """Return `execution` if it printed 1, else raise."""
    if not execution.ok or execution.stdout != "1\n":
        raise BenchError(
            f"{execution.verdict.value}: {'; '.join(execution.outcome.notes)} "
            f"{execution.stderr[-300:]!r} {execution.stdout[:60]!r}"
        )
    return execution


def bare_argv(python: str, code: str) -> tuple[str, ...]:
    """Return the command that runs `code` without any of us."""
    return (python, "-c", code)


async def warm(engine: Engine, options: dict[str, Any]) -> None:
    """Have the template's fork-server there, whole: what it imports for sessions is no sample's."""
    checked(await engine.run(PLAIN, **options))
    await engine.wait_settled()


async def fresh(
    engine: Engine, key: str, code: str, options: dict[str, Any], samples: int, *, parked: bool
) -> Figure:
    """Measure `engine.run` of `code` in a fresh sandbox."""

    async def sample() -> float:
        if parked:
            await wait_parked(engine)
        begun = time.perf_counter()
        execution = await engine.run(code, **options)
        took = time.perf_counter() - begun
        checked(execution)
        return took

    await warm(engine, options)
    return await _interleaved(engine, key, sample, samples)


async def live_context(engine: Engine, options: dict[str, Any], samples: int) -> Figure:
    """Measure the next execution in a context that is already there."""
    sandbox = await engine.create_sandbox(**options)
    try:

        async def sample() -> float:
            begun = time.perf_counter()
            execution = await sandbox.run(PLAIN)
            took = time.perf_counter() - begun
            checked(execution)
            return took

        return await _interleaved(engine, "live_context", sample, samples)
    finally:
        await sandbox.close()


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


async def _interleaved(
    engine: Engine, key: str, sample: Callable[[], Awaitable[float]], samples: int
) -> Figure:
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(3):  # page caches, lazily imported modules
        await sample()
        bare.once(bare.FLOOR)
    for _ in range(samples):
        ours.append(await sample())
        # Nothing of ours may run beside the floor: no clean-up, no refill, and no loop.
        await wait_parked(engine)
        floor.append(bare.once(bare.FLOOR))
    return Figure(
        key,
        ratio_of_medians(ours, floor),
        f"{p50(ours) * 1e3:.2f} ms p50, {p95(ours) * 1e3:.2f} ms p95; "
        f"F = {p50(floor) * 1e3:.2f} ms; {samples} samples",
        {"ours_ms": _milliseconds(ours), "floor_ms": _milliseconds(floor)},
    )


def _milliseconds(samples: list[float]) -> dict[str, float]:
    return {"p50": round(p50(samples) * 1e3, 3), "p95": round(p95(samples) * 1e3, 3)}
