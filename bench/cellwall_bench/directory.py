"""The row of the gateways' directory: commits together against one for each need, in turns.

Called by `runner`. Both write the same rows to the same PostgreSQL, whose commits wait for its
disk. The one way is the gateway's; the other has a transaction for each need over as many
connections as are best for it, so that it has what the database gathers by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg

from cellwall.apps.timings import TimingError
from cellwall.cluster.directory.claims import CLAIM
from cellwall.cluster.directory.connection import check_url
from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.schema import init
from cellwall_bench.figures import Figure
from kit.postgres_server import programs, running

_WRITERS = 200
_CONNECTIONS = (1, 16)
_TURNS = 3
Write = Callable[[int], Awaitable[object]]


async def commits(key: str, stretch_s: float) -> Figure:
    """Measure claims a second of 200 writers, together against each by itself, as a ratio."""
    found = programs()
    if found is None:
        raise TimingError("PostgreSQL is not installed")
    numbers = itertools.count()
    with running(found) as postgres:
        owner = check_url(postgres.database())
        await init(owner, "cellwall_gateway")
        rates: dict[str, list[float]] = {}
        for _ in range(_TURNS):
            async with _together(owner) as write:
                rates.setdefault("together", []).append(await _rate(write, numbers, stretch_s))
            for connections in _CONNECTIONS:
                async with _each(owner, connections) as write:
                    rates.setdefault(f"alone, {connections}", []).append(
                        await _rate(write, numbers, stretch_s)
                    )
    means = {name: sum(each) / len(each) for name, each in rates.items()}
    best = max(rate for name, rate in means.items() if name != "together")
    text = "; ".join(f"{name}: {rate:.0f}/s" for name, rate in means.items())
    return Figure(key, means["together"] / best, f"{text}; {_WRITERS} writers")


@contextlib.asynccontextmanager
async def _together(url: str) -> AsyncIterator[Write]:
    made = GroupCommit(url)
    task = asyncio.get_running_loop().create_task(made.run())
    try:
        await made.wait_there()
        yield lambda number: made.do(CLAIM, *_values(number))
    finally:
        task.cancel()
        await asyncio.wait({task})


@contextlib.asynccontextmanager
async def _each(url: str, connections: int) -> AsyncIterator[Write]:
    async with asyncpg.create_pool(url, min_size=connections, max_size=connections) as pool:
        yield lambda number: pool.fetchrow(CLAIM.text, *_values(number))


def _values(number: int) -> tuple[object, ...]:
    return ("tenant", f"key-{number}", b"d" * 32, "a7c2", f"a7c2{number:026}")


async def _rate(write: Write, numbers: itertools.count[int], stretch_s: float) -> float:
    done, until = 0, time.perf_counter() + stretch_s

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await write(next(numbers))
            done += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_WRITERS):
            group.create_task(one())
    return done / (time.perf_counter() - began)
