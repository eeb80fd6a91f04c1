"""FI-22 as a program: a full queue, servers killed at random moments, and what was lost.

`make ledger` is the whole of it (`--count 10000 --rounds 20`);
`test_durable_queue` runs a reduced one. In each round two tenants submit `count` programs while
one of another holds the only place; the server is killed, started again with many places, killed
at a random moment of the work, and started once more. Then every id is asked for.

lost        an id that is unknown, without an end, or with another program's output
twice       a program for which code was handed over more than once, by the server's own ledger
disorder    starts on disk that are not in their tenant's order of acceptance
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellwall_bench.http_client import Client, Target
from kit.server.crashes import House, program, wait_until
from kit.servers import ADMIN, ALICE, BOB, Server

_WINDOW = 64
"""Requests on their way at once on one connection."""
_PLACES = 16
_RUNS_PER_S = 150.0
"""About what drains here; only chooses the moment of the second kill."""
_DRAIN_S = 600.0


@dataclass
class Found:
    """What one round showed."""

    count: int
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    disorder: int = 0
    interrupted: int = 0
    restart_s: list[float] = field(default_factory=list)
    item_bytes: float = 0.0

    @property
    def is_good(self) -> bool:
        """Report whether nothing is lost, run twice or out of order, and few were cut short.

        A place is free again while the end of what had it is on its way to the disk: a kill may
        cut short one that runs and one that has ended for each.
        """
        return not (self.lost or self.twice or self.disorder) and self.interrupted <= 2 * _PLACES

    def __str__(self) -> str:
        """Return one line for people."""
        restarts = ", ".join(f"{each:.1f}" for each in self.restart_s)
        return (
            f"{self.count} queued: lost {len(self.lost)}, run twice {len(self.twice)}, "
            f"out of order {self.disorder}, interrupted {self.interrupted}, restarts {restarts} s, "
            f"{self.item_bytes:.0f} bytes per queued item"
        )


async def rehearse(folder: Path, count: int, rng: random.Random) -> Found:
    """Do one round in `folder`."""
    settings: dict[str, object] = {"most_running": 1, "most_queued": count + 100}
    house = House(folder, settings)
    found = Found(count)
    try:
        server = house.start()
        ids = await _fill(house, server, count, found)
        settings.update(most_running=_PLACES)
        server = _again(house, server, found)
        await asyncio.sleep(rng.random() * count / _RUNS_PER_S)
        server = _again(house, server, found)
        await _drained(server)
        await _check(house, server, ids, found)
    finally:
        house.stop()
    return found


def _target(server: Server, key: str) -> Target:
    return Target(server.port, key, server.process.pid)


async def _fill(house: House, server: Server, count: int, found: Found) -> dict[str, str]:
    """Submit everything; return the nonce of each id, in the order of acceptance per tenant."""
    async with Client(_target(server, ADMIN)) as client:
        body = {"code": program("holder", "import time\ntime.sleep(600)"), "background": True}
        await client.ask("POST", "/execute", body)
    await asyncio.to_thread(wait_until, lambda: house.ledger == ["holder"])
    before = server.rss_bytes()
    shares = {ALICE: count * 3 // 5, BOB: count - count * 3 // 5}
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_submit(server, key, f"{key[0]}{{}}", share))
            for key, share in shares.items()
        ]
    found.item_bytes = (server.rss_bytes() - before) / count
    return {each: nonce for task in tasks for each, nonce in task.result().items()}


async def _submit(server: Server, key: str, form: str, count: int) -> dict[str, str]:
    nonces = [form.format(n) for n in range(count)]
    bodies = [{"code": program(each), "background": True} for each in nonces]
    asks = [("POST", "/execute", body) for body in bodies]
    answers = await _pipelined(server, key, asks)
    return {answer["execution_id"]: nonce for answer, nonce in zip(answers, nonces, strict=True)}


async def _pipelined(
    server: Server, key: str, asks: Sequence[tuple[str, str, dict[str, Any] | None]]
) -> list[Any]:
    answers: list[Any] = []
    async with Client(_target(server, key)) as client:
        for number, ask in enumerate(asks):
            client.send(*ask)
            if number >= _WINDOW:
                answers.append(await client.receive())
        while len(answers) < len(asks):
            answers.append(await client.receive())
    return answers


def _again(house: House, server: Server, found: Found) -> Server:
    house.kill(server)
    began = time.monotonic()
    server = house.start()
    found.restart_s.append(time.monotonic() - began)
    return server


async def _drained(server: Server) -> None:
    deadline = time.monotonic() + _DRAIN_S
    numbers: dict[str, Any] = {}
    async with Client(_target(server, ADMIN)) as client:
        while time.monotonic() < deadline:
            numbers = (await client.ask("GET", "/stats"))["server"]
            if not numbers["queued"] and not numbers["running"]:
                return
            await asyncio.sleep(0.2)
    raise AssertionError(f"the queue did not empty: {numbers}")


async def _check(house: House, server: Server, ids: dict[str, str], found: Found) -> None:
    answers: list[Any] = []
    for key in (ALICE, BOB):
        mine = [each for each, nonce in ids.items() if nonce[0] == key[0]]
        asks = [("GET", f"/executions/{each}", None) for each in mine]
        answers += await _pipelined(server, key, asks)
    runs = Counter(house.ledger)
    found.twice = [nonce for nonce, times in runs.items() if times > 1]
    for answer in answers:
        nonce = ids[answer["execution_id"]]
        if answer["verdict"] == "interrupted":
            found.interrupted += 1
        elif (answer["verdict"], answer["stdout"], runs[nonce]) != ("ok", f"{nonce}\n", 1):
            found.lost.append(nonce)
    found.disorder = sum(_disorder(house.starts, ids, key[0]) for key in (ALICE, BOB))


def _disorder(starts: Iterable[str], ids: dict[str, str], letter: str) -> int:
    order = [int(ids[each][1:]) for each in starts if ids.get(each, "")[:1] == letter]
    return sum(later <= earlier for earlier, later in itertools.pairwise(order))


def main() -> None:
    """Do all rounds; leave with 1 if one of them is not as it must be."""
    parser = argparse.ArgumentParser(description="Kill servers with a full queue.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    bad = 0
    for number in range(options.rounds):
        folder = Path(tempfile.mkdtemp())
        try:
            found = asyncio.run(rehearse(folder, options.count, rng))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        is_good = found.is_good and found.item_bytes <= 4096 and max(found.restart_s) <= 10
        bad += not is_good
        print(f"{number + 1}/{options.rounds} {'good' if is_good else 'BAD'}: {found}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
