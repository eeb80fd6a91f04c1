"""`make soak`: a real server under benign runs, attacks and faults, watched from outside.

SOAK_MINUTES (30 by default) says how long, SOAK_SEED what is random. Prints a line for each figure
with its slope, what was done, and what was wrong; the exit code is 0 only when nothing was. Before
that comes the control: the same eyes on a server that leaks on purpose, for some seconds, must see
every leak. Not a test of pytest's: its verdict is about minutes of everything at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from kit.figures import Reading, judge, look
from kit.server.counting import Counted, counted
from kit.servers import ADMIN, ALICE
from soak.load import Load

_EVERY_S = 10.0
_FEWEST_LOOKS = 30
_PARKED = 2
"""In each bucket, always: more of them come and go with the load, and their descriptors too."""
_QUIET_S = 60.0
_LEAKING = str(Path(__file__).with_name("leaking_main.py"))
_CONTROL_LOOKS = 10
_CONTROL_RUNS = 12
"""Executions between two looks at the server that leaks: 512 KiB and 100 objects each."""
_LEAKED = {"server_mib", "memory_mib", "descriptors", "threads", "processes", "temp_files"}
_LEAKED |= {"objects"} | (set() if os.geteuid() else {"namespaces", "mounts"})
"""What `leaking_main` leaks; a cgroup would stay on the host."""
_SETTINGS: dict[str, Any] = {
    "retention_s": 30,
    "retained_executions": 200,
    "retained_bytes": 8 << 20,  # full long before the first fifth is over
    "stall_s": 5,
}


class Soaked:
    """One server, its clients, and what is known of it."""

    def __init__(
        self, counting: Counted, load: Load, admin: httpx.AsyncClient, began_s: float
    ) -> None:
        """`began_s` is the monotonic clock's zero of the readings."""
        self._counting = counting
        self._admin = admin
        self._began_s = began_s
        self.load = load
        self.types: list[Counter[str]] = []
        """The server's objects by type, for each look."""

    async def look(self) -> Reading:
        """Hold everybody back, renew what is parked, wait until it rests, and read everything."""
        async with self.load.gate.closed():
            await self.load.renew(_PARKED)
            await self._wait_quiet()
            found = await asyncio.to_thread(self._counting.objects)
            self.types.append(found)
            at_s = time.monotonic() - self._began_s
            pid = self._counting.server.process.pid
            return look(pid, self._counting.folder, at_s, found.total())

    async def _wait_quiet(self) -> None:
        """Wait until what has ended is cleaned up and the pool is as full as it gets."""
        deadline = time.monotonic() + _QUIET_S
        steady = 0
        while steady < 3:
            found = (await self._admin.get("/stats")).json()["server"]
            pool = found["pool"]
            is_busy = found["running"] or pool["starting"] or pool["destroying"]
            is_full = pool["parked"] % _PARKED == 0
            steady = 0 if is_busy or not is_full else steady + 1
            if time.monotonic() > deadline:
                raise TimeoutError(f"soak: the server does not come to rest: {found}")
            await asyncio.sleep(0.1)


async def _watch(soaked: Soaked, minutes: float, until_s: float) -> list[Reading]:
    readings: list[Reading] = []
    every_s = min(_EVERY_S, minutes * 60 / _FEWEST_LOOKS)
    while time.monotonic() < until_s:
        await asyncio.sleep(min(every_s, max(0.0, until_s - time.monotonic())))
        readings.append(await soaked.look())
        done = sum(soaked.load.done.values())
        print(f"{readings[-1].at_s:7.0f} s  {done} done", file=sys.stderr)
    return readings


async def _soak(counting: Counted, minutes: float, seed: int) -> tuple[Soaked, list[Reading]]:
    async with _clients(counting) as (client, admin):
        load = Load(client, counting.server.process.pid, seed)
        await load.settle()
        began_s = time.monotonic()
        until_s = began_s + minutes * 60
        soaked = Soaked(counting, load, admin, began_s)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(soaked, minutes, until_s))
            for work in load.workers():
                group.create_task(load.repeat(work, until_s))
        return soaked, watching.result()


async def _control(counting: Counted) -> list[Reading]:
    async with _clients(counting) as (client, admin):
        load = Load(client, counting.server.process.pid, 1)
        soaked = Soaked(counting, load, admin, time.monotonic())
        readings = []
        for _ in range(_CONTROL_LOOKS):
            await asyncio.gather(*(load.benign() for _ in range(_CONTROL_RUNS)))
            readings.append(await soaked.look())
        return readings


@asynccontextmanager
async def _clients(
    counting: Counted,
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    base, limits = counting.server.address, httpx.Limits()
    async with (
        httpx.AsyncClient(
            base_url=base, timeout=60, limits=limits, headers={"X-API-Key": ALICE}
        ) as client,
        httpx.AsyncClient(base_url=base, timeout=60, headers={"X-API-Key": ADMIN}) as admin,
    ):
        yield client, admin


def _grown(types: list[Counter[str]]) -> str:
    """The types that there are more of at the end than after the first fifth."""
    more = (types[-1] - types[len(types) // 5]).most_common(8)
    return ", ".join(f"{count} {name}" for name, count in more)


def _report(soaked: Soaked, readings: list[Reading]) -> bool:
    load = soaked.load
    print("done: " + ", ".join(f"{count} {name}" for name, count in load.done.most_common()))
    print(f"false denials and limits named wrongly: {len(load.wrong)}")
    for each in load.wrong[:20]:
        print(f"  {each}")
    lines = judge(readings, sum(load.done.values()) / readings[-1].at_s)
    print("\n".join(map(str, lines)))
    print(f"more objects at the end: {_grown(soaked.types)}")
    return not load.wrong and all(line.is_flat for line in lines)


def _is_seeing() -> bool:
    """Whether the leaks of a server that leaks on purpose are found, each of them."""
    began_s = time.monotonic()
    with counted({"CELLWALL_POOL_SIZE": str(_PARKED)}, _LEAKING, **_SETTINGS) as counting:
        lines = judge(asyncio.run(_control(counting)))
    missed = _LEAKED - {line.figure for line in lines if not line.is_flat}
    if missed:
        print("\n".join(map(str, lines)))
    words = f"the control's leaks were not seen: {sorted(missed)}" if missed else "it sees leaks"
    print(f"soak: {words} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return not missed


def main() -> int:
    """Run it; the exit code."""
    minutes = float(os.environ.get("SOAK_MINUTES", "30"))
    seed = int(os.environ.get("SOAK_SEED") or time.time_ns() % 1_000_000)
    if not _is_seeing():
        return 1
    print(f"soak: {minutes:g} minutes, seed {seed}", flush=True)
    with counted({"CELLWALL_POOL_SIZE": str(_PARKED)}, **_SETTINGS) as counting:
        soaked, readings = asyncio.run(_soak(counting, minutes, seed))
        is_alive = counting.server.process.poll() is None
        log = counting.server.log.read_text(encoding="utf-8")
    is_good = _report(soaked, readings) and is_alive and "Traceback" not in log
    if not is_good:
        lines = [each for each in log.splitlines() if '"level":"info"' not in each]
        print("the server's log, without what is normal:\n" + "\n".join(lines[-40:]))
    print("soak: " + ("passed" if is_good else "FAILED"))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
