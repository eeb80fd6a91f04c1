"""The rows over HTTP: what the server adds to the library, and what it costs to keep.

Called by `runner`. The server is a process of its own, as for any user, on loopback with
keep-alive. Invariant: the floor is taken in turns with ours, and an error anywhere voids the row.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from cellwall.apps.timings import PLAIN, TimingError
from cellwall_bench import bare
from cellwall_bench.figures import Figure, p50, ratio_of_medians
from cellwall_bench.http_client import Client, Target, serving, wait_parked

CLIENTS = 32
STRETCHES = 2


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer["verdict"] != "ok" or answer["stdout"] != "1\n":
        raise TimingError(f"a run ended with {answer['verdict']}: {answer['error']}")
    return answer


async def fresh(key: str, code: str, template: str, samples: int) -> Figure:
    """Measure one fresh sandbox per request over one connection, against the bare start."""
    ours: list[float] = []
    floor: list[float] = []
    body = {"code": code, "template": template}
    async with serving(environ={"CELLWALL_WARM": template}) as target, Client(target) as client:
        for _ in range(5):
            _checked(await client.ask("POST", "/execute", body))
        for _ in range(samples):
            await wait_parked(client)
            floor.append(bare.once(bare.FLOOR))
            begun = time.perf_counter()
            _checked(await client.ask("POST", "/execute", body))
            ours.append(time.perf_counter() - begun)
    return _ratio(key, ours, floor)


async def live_context(key: str, samples: int) -> Figure:
    """Measure cells of one session over one connection, against the bare start."""
    ours: list[float] = []
    floor: list[float] = []
    async with serving() as target, Client(target) as client:
        sandbox = (await client.ask("POST", "/sandboxes", {}))["id"]
        path = f"/sandboxes/{sandbox}/execute"
        for _ in range(5):
            _checked(await client.ask("POST", path, {"code": PLAIN}))
        for _ in range(samples):
            floor.append(bare.once(bare.FLOOR))
            begun = time.perf_counter()
            _checked(await client.ask("POST", path, {"code": PLAIN}))
            ours.append(time.perf_counter() - begun)
    return _ratio(key, ours, floor)


async def durable(key: str, samples: int, *, is_cell: bool) -> Figure:
    """Measure what the store costs an execution: a server with it and one without, in turns.

    A program begins once both have their pool full again: what one of them still starts would be
    counted against the other.
    """
    times: tuple[list[float], list[float]] = ([], [])
    async with (
        serving() as kept,
        serving(("--store", "none")) as forgetful,
        Client(kept) as with_store,
        Client(forgetful) as without,
    ):
        clients = (with_store, without)
        paths = [await _execute_path(client, is_cell=is_cell) for client in clients]
        for number in range(samples + 5):
            for client, path, took in zip(clients, paths, times, strict=True):
                if not is_cell:
                    for each in clients:
                        await wait_parked(each)
                begun = time.perf_counter()
                _checked(await client.ask("POST", path, {"code": PLAIN}))
                if number >= 5:
                    took.append(time.perf_counter() - begun)
    ours, floor = (p50(each) * 1000 for each in times)
    return Figure(
        key,
        ours - floor,
        f"p50 {ours:.2f} ms against {floor:.2f} ms without a store; n={samples}",
        {"p50_ms": ours, "none_p50_ms": floor},
    )


async def _execute_path(client: Client, *, is_cell: bool) -> str:
    if not is_cell:
        return "/execute"
    sandbox = await client.ask("POST", "/sandboxes", {})
    return f"/sandboxes/{sandbox['id']}/execute"


def _ratio(key: str, ours: list[float], floor: list[float]) -> Figure:
    return Figure(
        key,
        ratio_of_medians(ours, floor),
        f"p50 {p50(ours) * 1000:.2f} ms against {p50(floor) * 1000:.2f} ms; n={len(ours)}",
        {"p50_ms": p50(ours) * 1000, "floor_p50_ms": p50(floor) * 1000},
    )


async def sustained(key: str, stretch_s: float) -> Figure:
    """Measure fresh runs per second of many clients, against as many bare starts."""
    rates: list[float] = []
    floors: list[float] = []
    times: list[float] = []
    async with serving() as target:
        await per_second(target, 1.0)
        for _ in range(STRETCHES):
            floors.append(bare.per_second(bare.FLOOR, CLIENTS, stretch_s))
            rate, took = await per_second(target, stretch_s)
            rates.append(rate)
            times += took
    times.sort()
    middle, last = p50(times), times[int(0.99 * len(times))]
    rate, floor = sum(rates) / STRETCHES, sum(floors) / STRETCHES
    if last > 10 * middle:
        raise TimingError(f"p99 is {last / middle:.1f} times p50, above 10")
    return Figure(
        key,
        rate / floor,
        f"{rate:.0f}/s against {floor:.0f}/s; {CLIENTS} clients, {STRETCHES} × {stretch_s:g} s; "
        f"p50 {middle * 1000:.0f} ms, p99 {last * 1000:.0f} ms, no error",
        {"ours_per_s": rates, "bare_per_s": floors, "p50_s": middle, "p99_s": last},
    )


async def per_second(target: Target, duration_s: float) -> tuple[float, list[float]]:
    """Return fresh runs per second of `CLIENTS` clients, and the seconds of each."""
    times: list[float] = []
    begun = time.perf_counter()
    end = begun + duration_s

    async def work() -> None:
        async with Client(target) as client:
            while (start := time.perf_counter()) < end:
                _checked(await client.ask("POST", "/execute", {"code": PLAIN}))
                times.append(time.perf_counter() - start)

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(work())
    return len(times) / (time.perf_counter() - begun), times


async def held(key: str, idle: int, streams: int) -> Figure:
    """Measure the server's memory beside idle sandboxes and open streams, and `/health` then."""
    times = []
    async with serving() as target:
        made = await _many_sandboxes(target, idle)
        streaming = _Streams(target, made[: max(1, streams)])
        async with streaming as opened, Client(target) as client:
            rss = target.rss_bytes() / 2**20
            for _ in range(300):
                begun = time.perf_counter()
                await client.ask("GET", "/health")
                times.append(time.perf_counter() - begun)
    times.sort()
    slow = times[int(0.99 * len(times))] * 1000
    if slow > 50:
        raise TimingError(f"/health took {slow:.0f} ms at p99, above 50")
    return Figure(
        key,
        rss,
        f"{len(made)} idle sandboxes, {opened} open streams; /health p99 {slow:.1f} ms",
        {"rss_mib": rss, "health_p99_ms": slow},
    )


async def _many_sandboxes(target: Target, count: int) -> list[str]:
    made: list[str] = []
    limits = {"memory_mb": 64, "idle_s": 3600, "life_s": 7200}

    async def work(share: int) -> None:
        async with Client(target) as client:
            for _ in range(share):
                answer = await client.ask("POST", "/sandboxes", {"limits": limits})
                made.append(answer["id"])

    async with asyncio.TaskGroup() as group:
        for slot in range(8):
            group.create_task(work(count // 8 + (slot < count % 8)))
    return made


class _Streams:
    """Holds one open stream in each sandbox for the length of a block."""

    def __init__(self, target: Target, sandboxes: list[str]) -> None:
        """Nothing is open yet."""
        self._target = target
        self._sandboxes = sandboxes
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> int:
        """Open them; return how many."""
        for sandbox in self._sandboxes:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._target.port)
            body = b'{"code":"print(1, flush=True)\\nimport time\\ntime.sleep(600)","timeout":900}'
            writer.write(
                f"POST /sandboxes/{sandbox}/execute HTTP/1.1\r\nHost: localhost\r\n"
                f"X-API-Key: {self._target.key}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await reader.readuntil(b'"stdout"')
            self._writers.append(writer)
        return len(self._writers)

    async def __aexit__(self, *_: object) -> None:
        """Hang up."""
        for writer in self._writers:
            writer.close()
