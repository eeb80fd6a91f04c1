"""Timings of a fresh sandbox and of a live context, in turns with a bare interpreter.

Called by the demo and by the repository's bench, which measures much more. Invariant: ours and the
floor alternate sample by sample, so that a noisy neighbour hits both; "parked" samples begin only
once the pool is full again.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import wait_parked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cellwall.engine.engine import Engine
    from cellwall.model.execution import Execution

PLAIN = "print(1)"
WITH_PACKAGES = "import numpy, pandas; print(1)"
FLOOR = ("/usr/bin/python3", "-c", "print(1)")


class TimingError(Exception):
    """A run that should have been right was not; the figure would mean nothing."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds of ours and of the floor, taken in turns."""

    ours: Sequence[float]
    floor: Sequence[float]

    @property
    def ours_ms(self) -> float:
        """The median of ours, in milliseconds."""
        return statistics.median(self.ours) * 1e3

    @property
    def floor_ms(self) -> float:
        """The median of the floor, in milliseconds."""
        return statistics.median(self.floor) * 1e3

    @property
    def ratio(self) -> float:
        """The median of ours in units of the median of the floor."""
        return self.ours_ms / self.floor_ms


def once(argv: Sequence[str]) -> float:
    """Run `argv` and return the seconds from the spawn to its output; reaps it afterwards.

    `posix_spawn` is the cheapest way to spawn: a good ratio is not owed to a slow floor.
    """
    read_fd, write_fd = os.pipe()
    begun = time.perf_counter()
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
        file_actions=[(os.POSIX_SPAWN_DUP2, write_fd, 1)],
    )
    os.close(write_fd)
    output = os.read(read_fd, 64)
    took = time.perf_counter() - begun
    os.close(read_fd)
    _, status = os.waitpid(pid, 0)
    if status or output != b"1\n":
        raise RuntimeError(f"timings: bare {argv[0]} printed {output!r}, wait status {status}")
    return took


def checked(execution: Execution) -> Execution:
    """Return `execution` if it printed 1, else raise."""
    if not execution.ok or execution.stdout != "1\n":
        raise TimingError(
            f"{execution.verdict.value}: {'; '.join(execution.outcome.notes)} "
            f"{execution.stderr[-300:]!r} {execution.stdout[:60]!r}"
        )
    return execution


async def warm(engine: Engine, options: dict[str, Any]) -> None:
    """Have the template's fork-server there, whole: what it imports for sessions is no sample's."""
    checked(await engine.run(PLAIN, **options))
    await engine.wait_settled()


async def fresh(
    engine: Engine, code: str, options: dict[str, Any], samples: int, *, parked: bool
) -> Samples:
    """Measure `engine.run` of `code` in a fresh sandbox."""

    async def sample() -> float:
        if parked:
            await wait_parked(engine)
        begun = time.perf_counter()
        execution = await engine.run(code, **options)
        took = time.perf_counter() - begun
        checked(execution)
        return took

    await warm(engine, options)
    return await _in_turns(engine, sample, samples)


async def live_context(engine: Engine, options: dict[str, Any], samples: int) -> Samples:
    """Measure the next execution in a context that is already there."""
    sandbox = await engine.create_sandbox(**options)
    try:

        async def sample() -> float:
            begun = time.perf_counter()
            execution = await sandbox.run(PLAIN)
            took = time.perf_counter() - begun
            checked(execution)
            return took

        return await _in_turns(engine, sample, samples)
    finally:
        await sandbox.close()


async def _in_turns(
    engine: Engine, sample: Callable[[], Awaitable[float]], samples: int
) -> Samples:
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(3):  # page caches, lazily imported modules
        await sample()
        once(FLOOR)
    for _ in range(samples):
        ours.append(await sample())
        # Nothing of ours may run beside the floor: no clean-up, no refill, and no loop.
        await wait_parked(engine)
        floor.append(once(FLOOR))
    return Samples(ours, floor)
