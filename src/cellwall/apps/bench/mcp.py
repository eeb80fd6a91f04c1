"""The rows over MCP: what a tool call costs beyond the library's own call.

Called by `runner`. The clients are the official ones, the doors are processes of their own, as for
any user. Invariant: a tool call and the library's call are taken in turns, on a sandbox each, so
that a noisy neighbour hits both; an error anywhere voids the row.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.apps.bench.figures import Figure, p50
from cellwall.apps.bench.http_client import serving
from cellwall.apps.bench.latency import PLAIN, BenchError, checked
from cellwall.apps.engines import open_engine, state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.client.client import Client

_WARM_UP = 10


@contextlib.asynccontextmanager
async def _stdio() -> AsyncIterator[Client]:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = str(Path(sys.executable).with_name("cellwall"))
    environ = {**os.environ, "CELLWALL_STATE_DIR": str(state())}
    asked = StdioServerParameters(command=command, args=["mcp"], env=environ)
    async with Client(stdio_client(asked)) as client:
        yield client


@contextlib.asynccontextmanager
async def _http() -> AsyncIterator[Client]:
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    async with serving() as target:
        headers = {"Authorization": f"Bearer {target.key}"}
        url = f"http://127.0.0.1:{target.port}/mcp"
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield client


async def tool_call(key: str, samples: int, *, is_http: bool) -> Figure:
    """Measure `execute` in a live context against the same cell through the library, in ms."""
    ours: list[float] = []
    floor: list[float] = []
    async with _http() if is_http else _stdio() as client, open_engine() as engine:
        made = await client.call_tool("create_sandbox", {"template": "python"})
        asked = {"sandbox_id": _facts(made)["sandbox_id"], "code": PLAIN}
        sandbox = await engine.create_sandbox("python")
        for number in range(samples + _WARM_UP):
            begun = time.perf_counter()
            result = await client.call_tool("execute", asked)
            took = time.perf_counter() - begun
            if _facts(result).get("stdout") != "1\n":
                raise BenchError(f"a tool call failed: {result.content}")
            begun = time.perf_counter()
            execution = await sandbox.run(PLAIN)
            library = time.perf_counter() - begun
            checked(execution)
            if number >= _WARM_UP:
                ours.append(took)
                floor.append(library)
        await sandbox.close()
    mcp_ms, library_ms = p50(ours) * 1000, p50(floor) * 1000
    return Figure(
        key,
        mcp_ms - library_ms,
        f"p50 {mcp_ms:.2f} ms against {library_ms:.2f} ms of the library; n={samples}",
        {"p50_ms": mcp_ms, "library_p50_ms": library_ms},
    )


def _facts(result: Any) -> dict[str, Any]:  # noqa: ANN401 - of the SDK
    facts: dict[str, Any] = result.structured_content
    return facts
