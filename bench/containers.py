"""Starts of a container runtime beside the plain tool, in turns, in one run.

    DOCKER_HOST=unix:///… python bench/containers.py [docker | docker+runsc] [samples]

Prints start to first output of a parked sandbox, of one started on request and of `docker run --rm`
on the same image, and the time of a cell in a live context. Not part of `make bench`, which must
run where no container engine is.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from cellwall.apps.bench.figures import p50
from cellwall.engine.engine import Engine
from cellwall.engine.settings import EngineSettings
from cellwall.runtimes.docker.runtime import DockerRuntime

_CELLS = 100
_PYTHON = "/opt/env/bin/python"


async def first_output(engine: Engine, runtime: str) -> float:
    """Seconds from the call to the first output of `print(1)`, once the host is quiet."""
    await engine.pool.wait_full()
    await engine.pool.wait_buried()
    began, seen = time.perf_counter(), list[float]()
    await engine.run(
        "print(1)", runtime=runtime, on_event=lambda _: seen.append(time.perf_counter())
    )
    return seen[0] - began


async def plain(image: str, oci_runtime: str | None) -> float:
    """The same for the plain tool."""
    chosen = [f"--runtime={oci_runtime}"] if oci_runtime else []
    words = ["docker", "run", "--rm", "--network=none", *chosen, "--entrypoint", _PYTHON, image]
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*words, "-c", "print(1)", stdout=subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    took = time.perf_counter() - began
    await process.wait()
    return took


async def measure(name: str, samples: int) -> None:
    """Take the samples in turns and print the medians."""
    cold = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    warm = Engine(settings=EngineSettings(pool_min=1, pool_max=1))
    rows: dict[str, list[float]] = {"docker run --rm": [], "started": [], "parked": []}
    try:
        runtime = await cold.runtime(name=name)
        assert isinstance(runtime, DockerRuntime)
        image = await runtime.images.ensure(await cold.template("python"))
        await warm.run("0", runtime=name)
        for _ in range(samples):
            rows["docker run --rm"].append(await plain(image, runtime.oci_runtime))
            rows["started"].append(await first_output(cold, name))
            rows["parked"].append(await first_output(warm, name))
        cells = []
        sandbox = await cold.create_sandbox(runtime=name)
        await sandbox.run("x = 1")
        for _ in range(_CELLS):
            began = time.perf_counter()
            await sandbox.run("x")
            cells.append(time.perf_counter() - began)
    finally:
        await cold.aclose()
        await warm.aclose()
    floor = p50(rows["docker run --rm"])
    for what, taken in rows.items():
        print(f"{name}: {what}: p50 {p50(taken) * 1e3:.1f} ms, {p50(taken) / floor:.3f} x")
    print(f"{name}: cell in a live context: p50 {p50(cells) * 1e3:.1f} ms")


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("docker", "20")[len(sys.argv) - 1 :]]
    asyncio.run(measure(arguments[0], int(arguments[1])))
