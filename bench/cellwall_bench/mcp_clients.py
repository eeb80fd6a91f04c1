"""Clients of the MCP doors for the rows: the official one, and the leanest there can be.

The lean ones write JSON and read JSON, so what a call takes with them is what our side takes; the
official one adds its own work, as for a user. Each is entered with a sandbox and asks for one
cell. Not the measuring (`mcp`). The invariant: every client speaks with a door of its own making.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import state
from cellwall.apps.timings import PLAIN, TimingError
from cellwall_bench.http_client import Client as HttpClient

if TYPE_CHECKING:
    from mcp.client.client import Client

    from cellwall_bench.http_client import Target

Cell = Callable[[], Awaitable[Mapping[str, Any]]]
"""Runs one cell, and returns the facts of the answer."""
_LINE_BYTES = 16 * 1024 * 1024
_HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
_READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
_SANDBOX = {"template": "python"}


def _call(number: int, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def cellwall_command() -> str:
    """Return the path of the command beside this interpreter."""
    return str(Path(sys.executable).with_name("cellwall"))


def _environ() -> dict[str, str]:
    return {**os.environ, "CELLWALL_STATE_DIR": str(state())}


# -- the official client ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def official_stdio() -> AsyncIterator[Cell]:
    """Start `cellwall mcp` by the official client."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    asked = StdioServerParameters(command=cellwall_command(), args=["mcp"], env=_environ())
    async with Client(stdio_client(asked)) as client:
        yield await _official_cell(client)


@contextlib.asynccontextmanager
async def official_http(target: Target) -> AsyncIterator[Cell]:
    """Visit `/mcp` by the official client."""
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {target.key}"}
    url = f"http://127.0.0.1:{target.port}/mcp"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as opened,
        Client(streamable_http_client(url, http_client=opened)) as client,
    ):
        yield await _official_cell(client)


async def _official_cell(client: Client) -> Cell:
    made = await client.call_tool("create_sandbox", _SANDBOX)
    facts: Any = made.structured_content
    asked = {"sandbox_id": facts["sandbox_id"], "code": PLAIN}

    async def cell() -> Mapping[str, Any]:
        found: Any = (await client.call_tool("execute", asked)).structured_content
        return found or {}

    return cell


# -- the lean ones ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _stdio() -> AsyncIterator[Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]]:
    """Start `cellwall mcp`, greet it, and give what asks it in lines."""
    process = await asyncio.create_subprocess_exec(
        cellwall_command(),
        "mcp",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=_environ(),
        limit=_LINE_BYTES,
    )
    writer, reader = process.stdin, process.stdout
    assert writer is not None
    assert reader is not None

    async def ask(message: Mapping[str, Any]) -> Mapping[str, Any]:
        writer.write(json.dumps(message).encode() + b"\n")
        return _facts(json.loads(await reader.readline()))

    try:
        await ask(_HELLO)
        writer.write(json.dumps(_READY).encode() + b"\n")
        yield ask
    finally:
        writer.close()
        await process.wait()


@contextlib.asynccontextmanager
async def lean_stdio() -> AsyncIterator[Cell]:
    """Speak with a `cellwall mcp` of its own about cells of one sandbox."""
    async with _stdio() as ask:
        sandbox = (await ask(_call(1, "create_sandbox", _SANDBOX)))["sandbox_id"]
        message = _call(2, "execute", {"sandbox_id": sandbox, "code": PLAIN})
        yield lambda: ask(message)


async def first_result() -> float:
    """Return the seconds from the spawn of `cellwall mcp` to the result of a program."""
    begun = time.perf_counter()
    async with _stdio() as ask:
        facts = await ask(_call(1, "run_code", {"code": PLAIN, "template": "python"}))
        seconds = time.perf_counter() - begun
    if facts.get("stdout") != "1\n":
        raise TimingError(f"a first tool call failed: {facts}")
    return seconds


@contextlib.asynccontextmanager
async def lean_http(target: Target) -> AsyncIterator[tuple[Cell, Cell]]:
    """Visit `/mcp` over one connection; also give the same cell by its own route."""
    headers, sandbox = await asyncio.to_thread(_visited, target)
    asked = {"sandbox_id": sandbox, "code": PLAIN}
    message = _call(2, "execute", asked)
    async with HttpClient(target, headers) as client:

        async def cell() -> Mapping[str, Any]:
            return _facts(await client.ask("POST", "/mcp", message))

        async def route() -> Mapping[str, Any]:
            body = {"code": PLAIN}
            path = f"/sandboxes/{sandbox}/execute"
            found: Mapping[str, Any] = await client.ask("POST", path, body)
            return found

        yield cell, route


def _visited(target: Target) -> tuple[dict[str, str], str]:
    """Shake hands and make a sandbox; return the headers of a session, and the sandbox's id."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
    headers = {
        "X-API-Key": target.key,
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }

    def ask(message: Mapping[str, Any]) -> tuple[str | None, bytes]:
        connection.request("POST", "/mcp", json.dumps(message), headers)
        answer = connection.getresponse()
        return answer.getheader("mcp-session-id"), answer.read()

    try:
        session = {"Accept": headers["Accept"], "mcp-session-id": ask(_HELLO)[0] or ""}
        headers.update(session)
        ask(_READY)
        _, events = ask(_call(1, "create_sandbox", _SANDBOX))
    finally:
        connection.close()
    line = next(each for each in events.splitlines() if each.startswith(b"data: {"))
    return session, str(_facts(json.loads(line.removeprefix(b"data: ")))["sandbox_id"])


def _facts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = message.get("result", {}).get("structuredContent", {})
    return found
