"""The rows of a gateway: what it costs beside asking its node directly, in turns.

Called by `runner`. One node, so that both ways end in the same pool; the direct way has a gateway's
certificate and says what a gateway says. Invariant: a program begins once the pool is full again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from cellwall.apps.timings import FLOOR, PLAIN, TimingError, once
from cellwall.cluster.certificates import (
    Files,
    gateway_context,
    issue_gateway,
    issue_node,
    make_authority,
)
from cellwall.engine.templates.store import state_dir
from cellwall_bench.figures import Figure, p50
from cellwall_bench.http_client import Client, Target, started, wait_parked

_HOST = "127.0.0.1"
_WARM_UP = 10
_CALLERS = 32
_SAID = {"cellwall-tenant": "default", "cellwall-scope": "admin", "cellwall-key-id": "bench"}


class _House(NamedTuple):
    """A node, a gateway in front of it, and the way past the gateway."""

    gateway: Target
    node: Target
    authority: Path
    files: Files

    def through(self) -> Client:
        return Client(self.gateway)

    def past(self) -> Client:
        return _NodeClient(self.node, self.authority, self.files)


class _NodeClient(Client):
    """A connection to the node, as a gateway has it."""

    def __init__(self, target: Target, authority: Path, files: Files) -> None:
        super().__init__(target, _SAID)
        self._context = gateway_context(authority, files)

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection(
            _HOST, self._target.port, ssl=self._context
        )
        return self


@contextlib.asynccontextmanager
async def _opened() -> AsyncIterator[_House]:
    key = secrets.token_urlsafe(33)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "state").mkdir()
        (folder / "state" / "templates").symlink_to(state_dir().absolute() / "templates")
        authority = make_authority(folder / "authority").certificate
        node = issue_node(folder / "authority", "node", (_HOST,))
        gate = issue_gateway(folder / "authority", "gate")
        env = {**os.environ, "CELLWALL_STATE_DIR": str(folder / "state")}
        text = f"[server]\nport = {_unused_port()}\n{_section('node', authority, node)}"
        text += "drain_s = 0\n"
        async with started(_argv(folder, "node", text), env, "node listening on ") as (_, line):
            port = int(line.rpartition(":")[2])
            nodes = f'nodes = ["{_HOST}:{port}"]\n'
            text = f"[server]\nport = 0\n{_section('gateway', authority, gate)}{nodes}"
            env = {**os.environ, "CELLWALL_API_KEY": key}
            async with started(_argv(folder, "gateway", text), env, "listening on ") as (
                process,
                said,
            ):
                gateway = Target(int(said.rpartition(":")[2]), key, process.pid)
                yield _House(gateway, Target(port, "", 0), authority, gate)


def _unused_port() -> int:
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        return int(sock.getsockname()[1])


def _section(name: str, authority: Path, files: Files) -> str:
    return (
        f'[{name}]\nauthority = "{authority}"\ncertificate = "{files.certificate}"\n'
        f'key = "{files.key}"\n'
    )


def _argv(folder: Path, command: str, text: str) -> list[str]:
    path = folder / f"{command}.toml"
    path.write_text(text, encoding="utf-8")
    return [sys.executable, "-m", "cellwall.apps.cli.main", command, "--config", str(path)]


async def fresh(key: str, samples: int) -> Figure:
    """Measure a fresh program through a gateway against one at its node, p50, as a ratio."""
    async with _opened() as house, house.through() as through, house.past() as past:
        await _wait_ready(through)
        took: dict[Client, list[float]] = {through: [], past: []}
        for _ in range(samples + _WARM_UP):
            for client, seconds in took.items():
                await wait_parked(past)
                seconds.append(await _timed(client, "/execute", PLAIN))
        return _ratio(key, took[through], took[past])


async def cell(key: str, samples: int) -> Figure:
    """Measure the next cell of a session through a gateway against that at its node, p50."""
    async with _opened() as house, house.through() as through, house.past() as past:
        await _wait_ready(through)
        path = f"/sandboxes/{(await through.ask('POST', '/sandboxes', {}))['id']}/execute"
        took: dict[Client, list[float]] = {through: [], past: []}
        for _ in range(samples + _WARM_UP):
            for client, seconds in took.items():
                seconds.append(await _timed(client, path, PLAIN))
        return _ratio(key, took[through], took[past])


async def cost(key: str, samples: int) -> Figure:
    """Measure the gateway's processor time for a request: programs and cells in turn, in F.

    Its probes of the node are in it.
    """
    async with _opened() as house, house.through() as through, house.past() as past:
        await _wait_ready(through)
        session = f"/sandboxes/{(await through.ask('POST', '/sandboxes', {}))['id']}/execute"
        floors, before_s, paths = [], 0.0, ("/execute", session)
        for number in range(samples + _WARM_UP):
            if number == _WARM_UP:
                before_s = house.gateway.cpu_s()
            floors.append(once(FLOOR))
            await wait_parked(past)
            for path in paths:
                await _timed(through, path, PLAIN)
        spent_s = (house.gateway.cpu_s() - before_s) / (len(paths) * samples)
        floor_s = p50(floors)
    text = f"{spent_s * 1e3:.2f} ms of the gateway's process; F is {floor_s * 1e3:.1f} ms"
    return Figure(key, spent_s / floor_s, f"{text}; n={len(paths) * samples}")


async def crowd(key: str, stretch_s: float) -> Figure:
    """Measure programs a second of 32 clients through a gateway against at its node, in turns."""
    rates: dict[str, list[float]] = {"through": [], "past": []}
    async with _opened() as house:
        async with house.through() as client:
            await _wait_ready(client)
        for _ in range(3):
            rates["through"].append(await _rate(house.through, stretch_s))
            rates["past"].append(await _rate(house.past, stretch_s))
        memory_mb = house.gateway.rss_bytes() / 2**20
    through, past = (sum(each) / len(each) for each in rates.values())
    text = f"{through:.0f}/s against {past:.0f}/s; the gateway has {memory_mb:.0f} MiB"
    return Figure(key, through / past, f"{text}; {_CALLERS} clients, 3 x {stretch_s:g} s each")


async def _rate(made: object, stretch_s: float) -> float:
    assert callable(made)
    until, done = time.perf_counter() + stretch_s, 0

    async def one() -> None:
        nonlocal done
        async with made() as client:
            while time.perf_counter() < until:
                await _timed(client, "/execute", PLAIN)
                done += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_CALLERS):
            group.create_task(one())
    return done / (time.perf_counter() - began)


async def _wait_ready(client: Client) -> None:
    """Wait until the gateway has heard its node."""
    while True:
        nodes = (await client.ask("GET", "/nodes"))["nodes"]
        if [each["state"] for each in nodes] == ["ready"]:
            return
        await asyncio.sleep(0.05)


async def _timed(client: Client, path: str, code: str) -> float:
    began = time.perf_counter()
    answer = await client.ask("POST", path, {"code": code})
    took = time.perf_counter() - began
    if '"stdout": "1\\n"' not in json.dumps(answer):
        raise TimingError(f"{path}: {answer}")
    return took


def _ratio(key: str, through: list[float], past: list[float]) -> Figure:
    found, floor = (p50(each[_WARM_UP:]) * 1e3 for each in (through, past))
    return Figure(key, found / floor, f"{found:.2f} ms against {floor:.2f} ms; n={len(past)}")
