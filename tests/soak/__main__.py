"""`make soak`: a real server under benign runs, attacks and faults, watched from outside.

SOAK_MINUTES (30 by default) says how long, SOAK_SEED what is random. Prints a line for each figure
with its slope, what was done, and what was wrong; the exit code is 0 only when nothing was. Not a
test of pytest's: it takes half an hour, and its verdict is about all of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import httpx
from figures import Reading, judge, look
from load import Load
from servers import ADMIN, ALICE, Server, running

from cellwall.engine.templates import state_dir

_EVERY_S = 10.0
_FEWEST_LOOKS = 30
_PARKED = 4
_QUIET_S = 30.0
_SETTINGS: dict[str, Any] = {
    "retention_s": 30,
    "retained_executions": 200,
    "retained_bytes": 8 << 20,  # full long before the first fifth is over
    "stall_s": 5,
}


async def _wait_quiet(admin: httpx.AsyncClient) -> None:
    """Wait until what has ended is cleaned up and the pool is as full as it gets."""
    deadline = time.monotonic() + _QUIET_S
    steady = 0
    while steady < 3:
        found = (await admin.get("/stats")).json()["server"]
        pool = found["pool"]
        is_busy = found["running"] or pool["starting"] or pool["destroying"]
        is_full = pool["parked"] % _PARKED == 0
        steady = 0 if is_busy or not is_full else steady + 1
        if time.monotonic() > deadline:
            raise TimeoutError(f"soak: the server does not come to rest: {found}")
        await asyncio.sleep(0.1)


async def _watch(load: Load, admin: httpx.AsyncClient, pid: int, until_s: float) -> list[Reading]:
    readings: list[Reading] = []
    began_s = time.monotonic()
    every_s = min(_EVERY_S, (until_s - began_s) / _FEWEST_LOOKS)
    while time.monotonic() < until_s:
        await asyncio.sleep(min(every_s, max(0.0, until_s - time.monotonic())))
        async with load.gate.closed():
            await _wait_quiet(admin)
            readings.append(look(pid, state_dir(), time.monotonic() - began_s))
        print(f"{readings[-1].at_s:7.0f} s  {sum(load.done.values())} done", file=sys.stderr)
    return readings


async def _soak(server: Server, minutes: float, seed: int) -> tuple[Load, list[Reading]]:
    options: dict[str, Any] = {"base_url": server.address, "timeout": 60, "limits": httpx.Limits()}
    async with (
        httpx.AsyncClient(headers={"X-API-Key": ALICE}, **options) as client,
        httpx.AsyncClient(headers={"X-API-Key": ADMIN}, **options) as admin,
    ):
        load = Load(client, server.process.pid, seed)
        until_s = time.monotonic() + minutes * 60
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(load, admin, server.process.pid, until_s))
            for work in load.workers():
                group.create_task(load.repeat(work, until_s))
        return load, watching.result()


def _report(load: Load, readings: list[Reading]) -> bool:
    print("done: " + ", ".join(f"{count} {name}" for name, count in load.done.most_common()))
    print(f"false denials and limits named wrongly: {len(load.wrong)}")
    for each in load.wrong[:20]:
        print(f"  {each}")
    lines = judge(readings)
    print("\n".join(map(str, lines)))
    return not load.wrong and all(line.is_flat for line in lines)


def main() -> int:
    """Run it; the exit code."""
    minutes = float(os.environ.get("SOAK_MINUTES", "30"))
    seed = int(os.environ.get("SOAK_SEED") or time.time_ns() % 1_000_000)
    os.environ["CELLWALL_POOL_SIZE"] = str(_PARKED)
    print(f"soak: {minutes:g} minutes, seed {seed}", flush=True)
    with running(**_SETTINGS) as server:
        load, readings = asyncio.run(_soak(server, minutes, seed))
        is_alive = server.process.poll() is None
        log = server.log.read_text(encoding="utf-8")
    is_good = _report(load, readings) and is_alive and "Traceback" not in log
    if not is_good:
        print(f"the server's log:\n{log[-8000:]}")
    print("soak: " + ("passed" if is_good else "FAILED"))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
