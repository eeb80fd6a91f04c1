"""The field's tutorial benchmark: 100 one-shots at once, drawn from six small programs.

    python bench/mix100.py [rounds]

For each runtime there is over HTTP, and for `tutorial_server.py` beside it, in turns: average, p50
and p99 of the latencies, requests per second, memory per run (peak of the sandbox, from the
kernel; nobody measures it for the tutorial). Every answer is compared with what is expected.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

from cellwall_bench.figures import p50
from cellwall_bench.http_client import Client, Target, serving, started

REQUESTS = 100
PROGRAMS = [
    ("print('Hello, World!')", "Hello, World!\n"),
    ("import math\nprint(math.factorial(1000))", f"{math.factorial(1000)}\n"),
    ("for i in range(1000): print(i)", "".join(f"{n}\n" for n in range(1000))),
    ("print(sum(range(10**6)))", f"{sum(range(10**6))}\n"),
    ("import sys\nprint(sys.version)", None),
    ("print(len([x**2 for x in range(10000)]))", "10000\n"),
]
PUBLISHED = {"processes": 50, "Docker": 8}
"""Requests per second that a widely read tutorial gives for its own server."""


async def one(
    target: Target, program: str, expected: str | None, body: dict[str, Any]
) -> tuple[float, int]:
    """Do one request on a connection of its own; return its latency and memory."""
    begun = time.perf_counter()
    async with Client(target) as client:
        answer = await client.ask("POST", "/execute", {"code": program, **body})
    took = time.perf_counter() - begun
    if answer["verdict"] != "ok" or expected not in (None, answer["stdout"]):
        raise SystemExit(f"wrong answer to {program!r}: {answer}")
    return took, answer.get("usage", {}).get("memory_peak_bytes", 0)


async def round_of(
    target: Target, body: dict[str, Any], seed: int
) -> tuple[list[tuple[float, int]], float]:
    """Send all requests at once; return what came and how long it took."""
    chosen = random.Random(seed).choices(PROGRAMS, k=REQUESTS)
    begun = time.perf_counter()
    done = await asyncio.gather(*(one(target, *program, body) for program in chosen))
    return done, time.perf_counter() - begun


async def measured(target: Target, body: dict[str, Any], rounds: int) -> dict[str, float]:
    """Return the figures of one server."""
    await round_of(target, body, 0)
    times: list[float] = []
    memory: list[int] = []
    took = 0.0
    for seed in range(1, rounds + 1):
        done, seconds = await round_of(target, body, seed)
        times += [each[0] for each in done]
        memory += [each[1] for each in done if each[1]]
        took += seconds
    times.sort()
    return {
        "average_ms": 1000 * sum(times) / len(times),
        "p50_ms": 1000 * p50(times),
        "p99_ms": 1000 * times[int(0.99 * len(times))],
        "per_second": len(times) / took,
        "memory_mb": sum(memory) / len(memory) / 1e6 if memory else 0.0,
    }


async def tutorial(rounds: int) -> dict[str, float]:
    """Measure the tutorial's server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, str(Path(__file__).with_name("tutorial_server.py")), str(port)]
    async with started(argv, os.environ, "listening") as (process, _):
        target = Target(port, "", process.pid)
        for _ in range(200):
            try:
                await one(target, *PROGRAMS[0], {})
                break
            except OSError:
                await asyncio.sleep(0.05)
        return await measured(target, {}, rounds)


async def main(rounds: int) -> None:
    """Measure everything and print it."""
    found: dict[str, dict[str, float]] = {"tutorial": await tutorial(rounds)}
    environ = {"CELLWALL_ALLOW_PROCESS": "1"}
    async with serving(environ=environ) as target, Client(target) as client:
        runtimes = (await client.ask("GET", "/runtimes"))["runtimes"]
        for runtime in runtimes:
            if runtime["available"]:
                body = {"runtime": runtime["name"], "isolation": runtime["level"]}
                found[runtime["name"]] = await measured(target, body, rounds)
    for name, figures in found.items():
        words = ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
        print(f"{name:10} {words}")
    for name, rate in PUBLISHED.items():
        print(f"jail against published {name}: {found['jail']['per_second'] / rate:.1f}x")
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
