"""Driving: a fleet on a loop of its own, and programs that leave witnesses on their nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cellwall.fleet import Fleet
from cellwall.model.errors import NodeLost
from kit.fleet.house import HEAD, PORT, House, Node, Witness

ADDRESS = f"{HEAD}:{PORT}"
OURS = "cellwall"
"""Resource of Ray's that machines with a node have."""
T = TypeVar("T")


class Loop:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T], timeout_s: float = 100) -> T:
        """Run it there and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@dataclass
class Driver:
    """A fleet, and the house that it is in."""

    loop: Loop
    house: House
    fleet: Fleet

    def name_of(self, node: Node) -> str:
        """The name of the node that is on a machine now."""
        (name,) = (
            each.name
            for each in self.fleet.nodes()
            if each.address == node.address and each.state == "ready"
        )
        return name

    def wait_ready(self, count: int) -> None:
        """Wait until that many nodes are ready."""
        deadline = time.monotonic() + 60
        while sum(each.state == "ready" for each in self.fleet.nodes()) < count:
            assert time.monotonic() < deadline, (self.fleet.nodes(), self.house.logs())
            time.sleep(0.1)


@contextlib.contextmanager
def driver(house: House, **options: Any) -> Iterator[Driver]:
    """Connect a fleet; it is closed at the end."""
    os.environ.update(house.environment(house.place / "state0"))
    loop = Loop()
    fleet: Fleet | None = None

    async def join() -> Fleet:
        return await Fleet.connect(ADDRESS, **{"resource": OURS, **options})

    try:
        fleet = loop.do(join())
        yield Driver(loop, house, fleet)
    finally:
        if fleet is not None:
            loop.do(fleet.close())
        loop.close()


@dataclass
class Through:
    """What became of programs while something broke."""

    count: int
    broken_at: float = 0.0
    answers: Counter[int] = field(default_factory=Counter)
    lost: dict[int, float] = field(default_factory=dict)
    """By program: seconds after the break at which its loss was told."""
    others: list[BaseException] = field(default_factory=list)
    alive_when_told: list[int] = field(default_factory=list)
    """Processes below the broken node's engine that were there when its first loss was told."""
    witnessed: int = 0
    begun: Counter[int] = field(default_factory=Counter)
    """By program: number of times that it has begun, as files on its node say."""
    nodes: Counter[str] = field(default_factory=Counter)


def program(index: int, folder: Path, sleep_s: float) -> dict[str, Any]:
    """A program that leaves a file on its node's disk each time it begins.

    One in four is in a jail instead, where it cannot.
    """
    body = f"import time; time.sleep({sleep_s}); print({index})"
    if index % 4 == 0:
        return {"code": body}
    mark = f"import uuid; open('{folder}/{index}.' + uuid.uuid4().hex, 'x').close()"
    return {"code": f"{mark}\n{body}", "runtime": "process", "isolation": "process"}


def run_through(
    driver: Driver,
    node: Node,
    break_it: Callable[[], object],
    *,
    count: int,
    sleep_s: float = 0.02,
    **options: Any,
) -> Through:
    """Map `count` programs, and break something once a third of them has ended."""
    folder = driver.house.place / f"begun{time.monotonic_ns()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    found = Through(count)
    witness = Witness(node.actor())

    async def work() -> None:
        programs = (program(index, folder, sleep_s) for index in range(count))
        async for each in driver.fleet.map(programs, **options):
            found.answers[each.index] += 1
            if isinstance(each.error, NodeLost):
                assert node.address in each.error.message, f"not the one that broke: {each.error}"
                if not found.lost:
                    found.alive_when_told = witness.alive()
                found.lost[each.index] = time.monotonic() - found.broken_at
            elif each.error is not None:
                found.others.append(each.error)
            else:
                assert each.get().stdout == f"{each.index}\n", each
                found.nodes[each.get().node] += 1
            if not found.broken_at and found.answers.total() >= count // 3:
                found.broken_at = time.monotonic()
                await asyncio.to_thread(break_it)

    try:
        driver.loop.do(work(), 400)
    finally:
        witness.close()
    found.witnessed = witness.count
    found.begun = Counter(int(path.name.partition(".")[0]) for path in folder.iterdir())
    print(
        f"{count} programs: {len(found.lost)} lost, told after {sorted(found.lost.values())}, "
        f"{len(set(found.lost) & set(found.begun))} of them left files; {dict(found.nodes)}; "
        f"{found.witnessed} processes seen, alive when told: {found.alive_when_told}"
    )
    return found


def check(found: Through, most_lost: int) -> None:
    """Every program has one result, none began twice, and only what had begun is lost."""
    assert found.others == []
    assert len(found.answers) == found.count
    assert set(found.answers.values()) == {1}, "a program has two results"
    assert not found.begun or max(found.begun.values()) == 1, "a program began twice"
    assert len(found.lost) <= most_lost
    finished = found.count - len(found.lost)
    marked = {index for index in range(found.count) if index % 4}
    assert marked - set(found.lost) == set(found.begun) - set(found.lost), finished
