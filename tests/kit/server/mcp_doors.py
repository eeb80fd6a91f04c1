"""The official MCP client at both of our doors, and what the host sees of its programs.

`StdioDoor` starts `cellwall mcp` as a desktop client does; `HttpDoor` speaks with the `/mcp` of a
running server. Traffic stays on loopback.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ImageContent, TextContent

from cellwall.engine.templates.store import state_dir
from kit.places import TESTS
from kit.servers import ALICE, Server

COMMAND = str(Path(sys.executable).with_name("cellwall"))
Scenario = Callable[[Client], Awaitable[None]]

KILLED_CLIENT = """
import asyncio, sys
sys.path.insert(0, {here!r})
from kit.server.mcp_doors import {door}

async def main():
    async with {door}(**{options!r}).client() as client:
        made = await client.call_tool("create_sandbox", {{}})
        sandbox = made.structured_content["sandbox_id"]
        command = "sleep {marker} >/dev/null 2>&1 & echo started"
        await client.call_tool("run_command", {{"sandbox_id": sandbox, "command": command}})
        print("ready", flush=True)
        {then}

asyncio.run(main())
"""


@dataclass
class StdioDoor:
    """`cellwall mcp`, one process for each client."""

    name: str = "stdio"
    command: str = COMMAND
    args: tuple[str, ...] = ("mcp",)
    environ: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None

    @contextlib.asynccontextmanager
    async def client(self, mode: str = "auto") -> AsyncIterator[Client]:
        """Connect, as a client that was given a block of configuration."""
        environ = {**os.environ, "CELLWALL_STATE_DIR": str(state_dir()), **self.environ}
        asked = StdioServerParameters(command=self.command, args=list(self.args), env=environ)
        with open(self.log or os.devnull, "a", encoding="utf-8") as errors:  # noqa: ASYNC230
            async with Client(stdio_client(asked, errlog=errors), mode=mode) as client:
                yield client

    def options(self) -> dict[str, Any]:
        return {"environ": {"CELLWALL_STATE_DIR": str(state_dir())}}


@dataclass
class HttpDoor:
    """`/mcp` of a server, with a key."""

    url: str
    key: str = ALICE
    name: str = "http"

    @contextlib.asynccontextmanager
    async def client(self, mode: str = "auto") -> AsyncIterator[Client]:
        """Connect, as a client that was given an address and a key."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode) as client,
        ):
            yield client

    def options(self) -> dict[str, Any]:
        return {"url": self.url, "key": self.key}


Door = StdioDoor | HttpDoor


def at(server: Server, key: str = ALICE) -> HttpDoor:
    """Return the door of a server."""
    return HttpDoor(f"{server.address}/mcp", key)


class Visitor:
    """One client that stays connected for many tests, on a thread of its own."""

    def __init__(self, door: Door) -> None:
        """Connect."""
        self.door = door
        self._ready: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._leaving = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"mcp-{door.name}")
        self._thread.start()
        self.client = self._ready.result(200)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._visit())

    async def _visit(self) -> None:
        try:
            async with self.door.client() as client:
                self._ready.set_result(client)
                await self._leaving.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def play(self, scenario: Scenario) -> None:
        """Do `scenario`, and end the sandboxes it made."""
        asyncio.run_coroutine_threadsafe(self._played(scenario), self._loop).result(200)

    async def _played(self, scenario: Scenario) -> None:
        try:
            await scenario(self.client)
        finally:
            for sandbox in _made.pop(id(self.client), ()):
                await self.client.call_tool("destroy_sandbox", {"sandbox_id": sandbox})

    def leave(self) -> None:
        """Hang up."""
        self._loop.call_soon_threadsafe(self._leaving.set)
        self._thread.join(200)


def play(door: Door, scenario: Scenario) -> None:
    """Connect, do `scenario`, hang up."""
    visitor = Visitor(door)
    try:
        visitor.play(scenario)
    finally:
        visitor.leave()


_made: dict[int, list[str]] = {}
"""Sandboxes by the client that made them, until its scenario is over."""


def text_of(result: CallToolResult) -> str:
    """Return what a model reads."""
    return "\n".join(each.text for each in result.content if isinstance(each, TextContent))


def images_of(result: CallToolResult) -> list[ImageContent]:
    """Return the images of an answer."""
    return [each for each in result.content if isinstance(each, ImageContent)]


def meta_of(result: CallToolResult) -> dict[str, Any]:
    """Return what of an answer only programs want."""
    return dict(result.meta or {})


def facts_of(result: CallToolResult) -> dict[str, Any]:
    """Return the structured half of an answer."""
    facts = result.structured_content
    assert isinstance(facts, dict)
    return facts


async def new_sandbox(client: Client, **arguments: Any) -> str:
    """Make a sandbox; return its id."""
    made = await client.call_tool("create_sandbox", arguments)
    assert not made.is_error, text_of(made)
    sandbox = str(facts_of(made)["sandbox_id"])
    _made.setdefault(id(client), []).append(sandbox)
    return sandbox


def seen_on_host(marker: str) -> bool:
    """Whether any process of the host has `marker` among its words: the witness outside."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if marker.encode() in words:
                    return True
    return False


def wait_seen(marker: str, *, expected: bool, limit_s: float) -> float:
    """Wait until the host sees it, or no longer does; return how long that took."""
    began = time.monotonic()
    while seen_on_host(marker) is not expected:
        assert time.monotonic() - began < limit_s, f"{marker}: seen is not {expected}"
        time.sleep(0.02)
    return time.monotonic() - began


def soon_s() -> float:
    """Return what "within two seconds" is here: a machine with more to do gets more time."""
    return 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def client_process(door: Door, marker: str, then: str) -> subprocess.Popen[str]:
    """Start a client of its own process that has a sandbox with a program in it."""
    script = KILLED_CLIENT.format(
        here=str(TESTS),
        door=type(door).__name__,
        options=door.options(),
        marker=marker,
        then=then,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process
