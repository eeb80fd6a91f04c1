"""The way out: what a network policy and packages cost, against the same without us.

Called by `runner`. Servers are on loopback addresses that the engine's operator lists; their names
resolve by a name server of the bench's. Invariant: ours and the plain way take turns, against the
same server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import wait_parked
from cellwall.apps.timings import FLOOR, PLAIN, TimingError, checked, once
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.templates.build import find_uv
from cellwall_bench.figures import Figure, p50, p95
from kit.outside.name_server import NameServer
from kit.outside.servers import OUTSIDE, WebServer
from kit.outside.world import certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from cellwall.engine.sandbox import AsyncSandbox

_NAME = "web.test"
_LISTED = ("127.0.1.0/24",)
_STREAM_MB = 1024
_PARKED_S = 60.0
_REQUESTS = """
import http.client, json, ssl, time
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
took = []
for _ in range({count}):
    begun = time.perf_counter()
    connection = http.client.HTTPSConnection({host!r}, {port}, context=context)
    connection.request("GET", "/", headers={{"Host": "{name}:{port}"}})
    connection.getresponse().read()
    took.append(time.perf_counter() - begun)
    connection.close()
print(json.dumps(took))
"""
_STREAM = """
import socket, time
held = socket.create_connection(({host!r}, {port}))
begun, left = time.perf_counter(), {size}
buffer = bytearray(1 << 20)
while left > 0:
    left -= held.recv_into(buffer) or left
held.close()
print(time.perf_counter() - begun)
"""
_SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
piece = bytes(1 << 20)
while True:
    held, _ = listener.accept()
    with held:
        try:
            while True:
                held.sendall(piece)
        except OSError:
            pass
"""
_REGISTRY = """
import sys
from kit.packages import registries
from kit.packages.made import wheel
with registries.running() as registry:
    for number in range(int(sys.argv[1])):
        name = f"big{number}"
        registry.add(wheel(name, "1.0", padding=name.encode().ljust(10_000_000, b".")))
    print(registry.url("/simple"), flush=True)
    sys.stdin.read()
"""


async def allowed(key: str, samples: int) -> Figure:
    """Measure what a policy adds to a parked sandbox's first program, in units of the floor."""
    async with _engine(pool_min=2, pool_max=4) as engine:
        none: list[float] = []
        some: list[float] = []
        floor: list[float] = []
        for _ in range(samples + 2):
            for taken, network in ((none, None), (some, ["example.org"])):
                await asyncio.wait_for(wait_parked(engine), _PARKED_S)
                begun = time.perf_counter()
                checked(await engine.run(PLAIN, network=network))
                taken.append(time.perf_counter() - begun)
            floor.append(await asyncio.to_thread(once, FLOOR))
    more = p50(some[2:]) - p50(none[2:])
    return Figure(
        key,
        more / p50(floor[2:]),
        f"{p50(some[2:]) * 1e3:.2f} ms p50 with a policy, {p50(none[2:]) * 1e3:.2f} without; "
        f"F = {p50(floor[2:]) * 1e3:.2f} ms; {samples} samples",
    )


async def https(key: str, count: int) -> Figure:
    """Measure what the proxy adds to an HTTPS request on a new connection, in milliseconds."""
    ours: list[float] = []
    direct: list[float] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = stack.enter_context(NameServer({_NAME: [OUTSIDE]}))
        web = stack.enter_context(WebServer(certificate(folder, _NAME)))
        words: dict[str, Any] = {"count": count // 5, "port": web.port, "name": _NAME}
        async with _sandbox(names, web.port) as sandbox:
            for _ in range(5):  # turns
                ours += json.loads(await _output(sandbox, _REQUESTS.format(host=_NAME, **words)))
                code = _REQUESTS.format(host=OUTSIDE, **words)
                direct += json.loads(await asyncio.to_thread(_python, code))
    return Figure(
        key,
        (p50(ours) - p50(direct)) * 1e3,
        f"{p50(ours) * 1e3:.2f} ms p50, {p95(ours) * 1e3:.2f} p95; direct "
        f"{p50(direct) * 1e3:.2f} ms; {len(ours)} requests",
    )


async def stream(key: str, rounds: int) -> Figure:
    """Measure one stream through the proxy against a direct one."""
    ours: list[float] = []
    direct: list[float] = []
    size = _STREAM_MB << 20
    with NameServer({_NAME: [OUTSIDE]}) as names, _serving() as port:
        async with _sandbox(names, port) as sandbox:
            for _ in range(rounds):
                code = _STREAM.format(host=_NAME, port=port, size=size)
                ours.append(float(await _output(sandbox, code)))
                code = _STREAM.format(host=OUTSIDE, port=port, size=size)
                direct.append(float(await asyncio.to_thread(_python, code)))
    return Figure(
        key,
        p50(direct) / p50(ours),
        f"{_STREAM_MB / p50(ours):.0f} MiB/s against {_STREAM_MB / p50(direct):.0f}; "
        f"{rounds} rounds of {_STREAM_MB} MiB",
    )


@contextlib.contextmanager
def _serving() -> Iterator[int]:
    """Run a server that sends without an end, in a process of its own; yield its port."""
    argv = [sys.executable, "-c", _SERVER, OUTSIDE]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int((server.stdout or sys.stdin).readline())
        finally:
            server.kill()


async def warm(key: str, samples: int) -> Figure:
    """Measure a wheel of 10 MB, from `install` in a live sandbox to its import, in ms.

    The broker has the file; the sandbox is new.
    """
    with _registry(1) as url:
        async with _engine(package_registries=_upstream(url)) as engine:
            took = [await _installed(engine, "big0") for _ in range(samples + 1)][1:]
    return Figure(key, p50(took) * 1e3, f"{p95(took) * 1e3:.0f} ms p95; {samples} samples")


async def again(key: str, samples: int) -> Figure:
    """Measure a sandbox made with a wheel of 10 MB that two before it had, to its import, in ms."""
    took: list[float] = []
    with _registry(1) as url:
        async with _engine(package_registries=_upstream(url)) as engine:
            for _ in range(samples + 2):
                await asyncio.wait_for(wait_parked(engine), _PARKED_S)
                begun = time.perf_counter()
                async with await engine.create_sandbox(packages=["big0"]) as sandbox:
                    await _output(sandbox, "import big0; print(big0.version)")
                    took.append(time.perf_counter() - begun)
    installed_s, later = took[1], took[2:]
    detail = (
        f"{p95(later) * 1e3:.0f} ms p95; the second, installed and kept, {installed_s * 1e3:.0f} ms"
    )
    return Figure(key, p50(later) * 1e3, f"{detail}; {samples} samples")


async def cold(key: str, samples: int) -> Figure:
    """Measure the installation of wheels of 10 MB that the broker has not, against plain uv."""
    count = 2 * (samples + 1)
    ours: list[float] = []
    plain: list[float] = []
    with _registry(count) as url, tempfile.TemporaryDirectory() as folder:
        async with _engine(package_registries=_upstream(url)) as engine:
            for number in range(count):
                if number % 2:
                    ours.append(await _installed(engine, f"big{number}"))
                else:
                    plain.append(await asyncio.to_thread(_plain, url, f"big{number}", folder))
    del ours[0], plain[0]
    return Figure(
        key,
        p50(ours) / p50(plain),
        f"{p50(ours) * 1e3:.0f} ms p50; `uv pip install` = {p50(plain) * 1e3:.0f} ms; "
        f"{samples} samples",
    )


@contextlib.asynccontextmanager
async def _sandbox(names: NameServer, port: int) -> AsyncIterator[AsyncSandbox]:
    """Make a sandbox that may connect to the bench's name at that port.

    It may use as many processors as the plain way does, so that its quota is not measured.
    """
    network = {"allow": [f"{_NAME}:{port}"], "transfer_mb": 1 << 20}
    limits = {"cpus": float(os.cpu_count() or 1)}
    async with (
        _engine(name_servers=(names.address,)) as engine,
        await engine.create_sandbox(network=network, limits=limits) as sandbox,
    ):
        yield sandbox


async def _output(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code)
    if done.outcome.verdict != "ok":
        raise TimingError(f"{done.outcome.verdict.value}: {done.stderr[-300:]!r}")
    return done.stdout


@contextlib.contextmanager
def _registry(count: int) -> Iterator[str]:
    """Run a registry with so many wheels in a process of its own; yield its index."""
    argv = [sys.executable, "-c", _REGISTRY, str(count)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        try:
            yield (made.stdout or sys.stdin).readline().strip()
        finally:
            made.kill()


def _upstream(url: str) -> tuple[dict[str, str], ...]:
    return ({"registry": "pypi", "url": url},)


async def _installed(engine: Engine, name: str) -> float:
    async with await engine.create_sandbox(network="packages") as sandbox:
        await _output(sandbox, "print(1)")
        begun = time.perf_counter()
        await sandbox.install([name])
        await _output(sandbox, f"import {name}; print({name}.version)")
        return time.perf_counter() - begun


def _plain(url: str, name: str, folder: str) -> float:
    words = ["pip", "install", "--quiet", "--no-cache", "--no-config"]
    words += ["--default-index", url, "--target", f"{folder}/{name}"]
    begun = time.perf_counter()
    subprocess.run([find_uv(), *words, "--python", sys.executable, name], check=True)
    _python(f"import sys; sys.path.insert(0, {folder + '/' + name!r}); import {name}")
    return time.perf_counter() - begun


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@contextlib.asynccontextmanager
async def _engine(**settings: Any) -> AsyncIterator[Engine]:  # noqa: ANN401 - of EngineSettings
    chosen = {"network": "open", "pool_min": 1, "pool_max": 2, **settings}
    engine = Engine(settings=EngineSettings(network_addresses=_LISTED, **chosen))
    try:
        yield engine
    finally:
        await engine.aclose()
