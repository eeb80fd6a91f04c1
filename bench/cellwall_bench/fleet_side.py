"""One side of the rows of fleets, in a process and a cpuacct cgroup of its own.

Run by `fleet` in the environment of Ray's suite: `python -m cellwall_bench.fleet_side SIDE GROUP`,
where SIDE is `fleet` (a head, a node and a driver, in a fresh network namespace) or `embedded` (an
engine in this process). It reads lines from stdin: a number of programs to run many at once, or
`single` and a number to run one after the other, or `idle` and seconds; each is answered with the
processor seconds that passed in the cgroup, and the wall seconds. Invariant: everything it starts
is in its cgroup.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cellwall
from cellwall.fleet import Fleet
from kit.fleet.driving import Loop, driver
from kit.fleet.house import house

_CODE = "print(sum(range(1000)))"
_SAID = "499500\n"
_AT_ONCE = 4
"""Programs that a node of two CPUs runs together, and so what an engine is asked for at once."""


class _Ways(NamedTuple):
    """The two ways to have programs run."""

    many: Callable[[int], Coroutine[Any, Any, None]]
    single: Callable[[int], Coroutine[Any, Any, None]]


def _check(stdout: str | None) -> None:
    if stdout != _SAID:
        raise RuntimeError(f"a program said {stdout!r}")


def _of_fleet(fleet: Fleet) -> _Ways:
    async def many(count: int) -> None:
        done = 0
        async for each in fleet.map([_CODE] * count):
            _check(None if each.execution is None else each.execution.stdout)
            done += 1
        if done != count:
            raise RuntimeError(f"{done} results of {count} programs")

    async def single(count: int) -> None:
        for _ in range(count):
            _check((await fleet.arun(_CODE)).stdout)

    return _Ways(many, single)


def _of_engine() -> _Ways:
    async def many(count: int) -> None:
        left = iter(range(count))

        async def some() -> None:
            for _ in left:
                _check((await cellwall.arun(_CODE)).stdout)

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))

    async def single(count: int) -> None:
        for _ in range(count):
            _check((await cellwall.arun(_CODE)).stdout)

    return _Ways(many, single)


@contextlib.contextmanager
def _side(name: str) -> Iterator[tuple[Loop, _Ways]]:
    if name == "embedded":
        loop = Loop()
        try:
            yield loop, _of_engine()
        finally:
            loop.close()
        return
    with house(nodes=1) as around, driver(around) as made:
        made.wait_ready(1)
        yield made.loop, _of_fleet(made.fleet)


def _answer(loop: Loop, ways: _Ways, words: list[str]) -> None:
    if words[0] == "idle":
        time.sleep(float(words[1]))
    elif words[0] == "single":
        loop.do(ways.single(int(words[1])), 300)
    else:
        loop.do(ways.many(int(words[0])), 300)


def main() -> None:
    """Answer until stdin ends."""
    name, group = sys.argv[1], Path(sys.argv[2])
    (group / "cgroup.procs").write_text(str(os.getpid()))
    usage = group / "cpuacct.usage"
    with _side(name) as (loop, ways):
        print("ready", flush=True)
        for line in sys.stdin:
            spent, began = int(usage.read_text()), time.monotonic()
            _answer(loop, ways, line.split())
            time.sleep(0.5)  # what a program leaves to do is its cost, too
            seconds = (int(usage.read_text()) - spent) / 1e9
            print(f"{seconds} {time.monotonic() - began}", flush=True)


if __name__ == "__main__":
    main()
