"""The rows over MCP: what a tool call costs beyond the library's own call.

Called by `runner`. The doors are processes of their own, as for any user. What is held against the
bar is the call of a client that does nothing but write and read JSON (`mcp_clients`), because the
library's own call beside it has no client either; what the official client makes of it stands
beside. Invariant: all of them and the library's call are taken in turns, on a sandbox each, so
that a noisy neighbour hits all; an error anywhere voids the row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from cellwall.apps.engines import open_engine
from cellwall.apps.timings import PLAIN, TimingError, checked
from cellwall_bench import mcp_clients
from cellwall_bench.figures import Figure, p50
from cellwall_bench.http_client import serving
from cellwall_bench.mcp_clients import Cell

_WARM_UP = 10


async def tool_call(key: str, samples: int, *, is_http: bool) -> Figure:
    """Measure `execute` in a live context against the same cell through the library, in ms."""
    async with AsyncExitStack() as stack:
        cells = await (_http_cells(stack) if is_http else _stdio_cells(stack))
        engine = await stack.enter_async_context(open_engine())
        sandbox = await engine.create_sandbox("python")

        async def library() -> Mapping[str, Any]:
            execution = await sandbox.run(PLAIN)
            checked(execution)
            return {"stdout": execution.stdout}

        found = await _in_turns({**cells, "library": library}, samples)
        await sandbox.close()
    floor = found["library"]
    beside = ", ".join(f"{name} {ms:.2f}" for name, ms in found.items())
    values = {f"{name.replace(' ', '_')}_p50_ms": ms for name, ms in found.items()}
    return Figure(key, found["lean client"] - floor, f"p50 in ms: {beside}; n={samples}", values)


async def _stdio_cells(stack: AsyncExitStack) -> dict[str, Cell]:
    return {
        "lean client": await stack.enter_async_context(mcp_clients.lean_stdio()),
        "official client": await stack.enter_async_context(mcp_clients.official_stdio()),
    }


async def _http_cells(stack: AsyncExitStack) -> dict[str, Cell]:
    target = await stack.enter_async_context(serving())
    cell, route = await stack.enter_async_context(mcp_clients.lean_http(target))
    official = await stack.enter_async_context(mcp_clients.official_http(target))
    return {"lean client": cell, "official client": official, "route": route}


async def _in_turns(cells: Mapping[str, Cell], samples: int) -> dict[str, float]:
    """Return the median of each, in ms."""
    took: dict[str, list[float]] = {name: [] for name in cells}
    for number in range(samples + _WARM_UP):
        for name, cell in cells.items():
            begun = time.perf_counter()
            facts = await cell()
            seconds = time.perf_counter() - begun
            if facts.get("stdout") != "1\n":
                raise TimingError(f"a tool call failed, {name}: {facts}")
            if number >= _WARM_UP:
                took[name].append(seconds)
    return {name: p50(each) * 1000 for name, each in took.items()}
