"""Rows of copies of live sessions: forks, snapshots that are restored, and many forks of one array.

Called by `runner`. A fork is measured from the call to the copy's first answer, and begins only
once the pool is full again, as all samples of parked sandboxes do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import wait_parked
from cellwall.apps.timings import PLAIN, checked
from cellwall_bench.figures import Figure, p50, p95

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine

_SESSION = """
value = 41
def numbers():
    yield from range(10)
left = numbers()
next(left)
print(1)
"""
_ARRAY = "import numpy\nbig = numpy.random.default_rng(1).random(25_000_000)\nprint(1)"
"""200 MB."""


async def fork(engine: Engine, key: str, choice: dict[str, Any], samples: int) -> Figure:
    """Measure a fork to its first answer, beside a claimed session's first answer."""
    took, claimed = [], []
    async with await engine.create_sandbox(**choice) as source:
        checked(await source.run(_SESSION))
        for each in await source.fork():  # the base is made once
            await each.sandbox.close()
        for _ in range(samples):
            began = time.perf_counter()
            (copy,) = await source.fork()
            checked(await copy.sandbox.run(PLAIN))
            took.append((time.perf_counter() - began) * 1e3)
            await copy.sandbox.close()
            await wait_parked(engine)
            began = time.perf_counter()
            async with await engine.create_sandbox(**choice) as plain:
                checked(await plain.run(PLAIN))
                claimed.append((time.perf_counter() - began) * 1e3)
            await wait_parked(engine)
    detail = f"{p95(took):.1f} ms p95; a claimed start {p50(claimed):.1f} ms; {samples} samples"
    return Figure(key, p50(took), detail)


async def restore(engine: Engine, key: str, choice: dict[str, Any], samples: int) -> Figure:
    """Measure a sandbox that is made of a snapshot, without a cell in it."""
    took = []
    async with await engine.create_sandbox(**choice) as source:
        checked(await source.run(_SESSION))
        made = await source.snapshot()
    for _ in range(samples):
        began = time.perf_counter()
        sandbox = await engine.copies.restore(made.id, "")
        took.append((time.perf_counter() - began) * 1e3)
        await sandbox.close()
        await wait_parked(engine)
    engine.copies.delete(made.id, "")
    size = (made.memory_bytes + made.files_bytes) / 2**20
    return Figure(key, p50(took), f"{p95(took):.1f} ms p95; {size:.1f} MiB; {samples} samples")


async def crowd(engine: Engine, key: str, choice: dict[str, Any], count: int) -> Figure:
    """Measure the time of many forks of a session with an array of 200 MB."""
    limits = {"memory_mb": 1024}
    async with await engine.create_sandbox(**choice, limits=limits) as source:
        checked(await source.run(_ARRAY))
        for each in await source.fork():
            await each.sandbox.close()
        began = time.perf_counter()
        forks = await source.fork(count)
        took_s = time.perf_counter() - began
        made = [each.sandbox for each in forks]
        private = sum(each.live.readings().memory_bytes for each in made) / count / 2**20
        for sandbox in made:
            await sandbox.close()
    return Figure(key, took_s, f"{private:.1f} MiB of memory each; {count} forks")
