"""Rows of pauses: how long one takes, what it costs to go on, and that the paused use nothing.

Called by `runner`. Each sample of a pause is a sandbox's first one, which moves its processes; a
later one is in the detail. A wake begins once the pool is full again, as a claimed start does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import wait_parked
from cellwall.apps.timings import PLAIN, checked
from cellwall_bench.figures import Figure, p50, p95

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cellwall.engine.engine import Engine

_BUSY = "while :; do sleep 0.05; done"
_TICK_S = 2.0


async def _took_ms(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


async def pause(engine: Engine, key: str, choice: dict[str, Any], samples: int) -> Figure:
    """Measure the first pause of a session."""
    first, later = [], []
    for _ in range(samples):
        async with await engine.create_sandbox(**choice) as sandbox:
            checked(await sandbox.run(PLAIN))
            first.append(await _took_ms(sandbox.pause()))
            await sandbox.resume()
            later.append(await _took_ms(sandbox.pause()))
    detail = f"{p95(first):.1f} ms p95; a later one {p50(later):.2f} ms p50; {samples} samples"
    return Figure(key, p50(first), detail)


async def resume(engine: Engine, key: str, choice: dict[str, Any], samples: int) -> Figure:
    """Measure a cell that resumes its sandbox."""
    async with await engine.create_sandbox(**choice) as sandbox:
        checked(await sandbox.run(PLAIN))
        took, plain = [], []
        for _ in range(samples):
            await sandbox.pause()
            took.append(await _took_ms(sandbox.run(PLAIN)))
            plain.append(await _took_ms(sandbox.run(PLAIN)))
    detail = (
        f"{p95(took):.1f} ms p95; one of a running sandbox {p50(plain):.1f} ms; {samples} samples"
    )
    return Figure(key, p50(took), detail)


async def crowd(engine: Engine, key: str, choice: dict[str, Any], count: int) -> Figure:
    """Measure the CPU time of many paused sandboxes, in each of which a command never rests."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            sandbox = await stack.enter_async_context(await engine.create_sandbox(**choice))
            await sandbox.commands.start(_BUSY)
            await sandbox.pause()
            made.append(sandbox)
        before = sum(each.live.readings().cpu_s for each in made)
        await asyncio.sleep(_TICK_S)
        used_s = sum(each.live.readings().cpu_s for each in made) - before
        share = used_s / _TICK_S * 100
    return Figure(key, share, f"{used_s * 1e3:.3f} ms in {_TICK_S:g} s; {count} sandboxes")


async def on_disk(engine: Engine, key: str, choice: dict[str, Any], samples: int) -> Figure:
    """Measure the disk that a hibernated session takes beside the base of its fork-server."""
    took, mib = [], 0.0
    async with await engine.create_sandbox(**choice) as sandbox:
        for _ in range(samples):
            checked(await sandbox.run(PLAIN))
            await wait_parked(engine)
            await sandbox.pause()
            took.append(await _took_ms(sandbox.hibernate()))
            mib = sandbox.hibernation.image_bytes / 2**20
    detail = f"{p50(took):.0f} ms p50 from the pause until no process is left; {samples} samples"
    return Figure(key, mib, detail)


async def wake(engine: Engine, key: str, choice: dict[str, Any], samples: int) -> Figure:
    """Measure a cell that wakes its hibernated session."""
    async with await engine.create_sandbox(**choice) as sandbox:
        took, plain = [], []
        for _ in range(samples + 1):
            checked(await sandbox.run(PLAIN))
            await sandbox.hibernate()
            await wait_parked(engine)
            took.append(await _took_ms(sandbox.run(PLAIN)))
            plain.append(await _took_ms(sandbox.run(PLAIN)))
    took, plain = took[1:], plain[1:]  # the first one's base is made, and no sandbox like it parked
    detail = f"{p95(took):.1f} ms p95; one of a running sandbox {p50(plain):.1f} ms"
    return Figure(key, p50(took), f"{detail}; {samples} samples")
