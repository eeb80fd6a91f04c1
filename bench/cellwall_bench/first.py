"""The first answer of a fresh process: the command line, the library, MCP on stdio.

Called by `runner`. Each sample is a process of its own, with nothing of ours running before it, and
in turns with the floor. Invariant: what is counted begins before the first import of ours and ends
with the answer in the caller's hands: of the command line that is its end.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from cellwall.apps.timings import FLOOR, PLAIN, Samples, TimingError, once
from cellwall_bench.figures import Figure, p50
from cellwall_bench.latency import as_figure
from cellwall_bench.mcp_clients import cellwall_command, first_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LIBRARY = f"""
import time
begun = time.perf_counter()
import cellwall
answer = cellwall.run({PLAIN!r}).stdout
print(time.perf_counter() - begun)
assert answer == "1\\n", answer
"""


async def command_line(samples: int) -> Figure:
    """Measure `cellwall run -c`, from its spawn to its end, in units of the floor."""
    argv = (cellwall_command(), "run", "-c", PLAIN)
    return as_figure("first_run_cli", await _in_turns(lambda: _whole(argv), samples))


async def library(samples: int) -> Figure:
    """Measure the import of the library and its first `run`, in units of the floor."""

    def sample() -> float:
        return float(_output((sys.executable, "-c", _LIBRARY)))

    return as_figure("first_run_library", await _in_turns(sample, samples))


async def mcp(samples: int) -> Figure:
    """Measure `cellwall mcp`, from its spawn to the result of `run_code`, in seconds."""
    took = [await first_result() for _ in range(samples)]
    return Figure(
        "first_mcp", p50(took), f"longest {max(took):.2f} s; n={samples}", {"seconds": took}
    )


async def _in_turns(ours: Callable[[], float], samples: int) -> Samples:
    taken: list[float] = []
    floor: list[float] = []
    for number in range(samples + 1):  # the first one finds files that are not in memory
        mine = await asyncio.to_thread(ours)
        bare = await asyncio.to_thread(once, FLOOR)
        if number:
            taken.append(mine)
            floor.append(bare)
    return Samples(taken, floor)


def _whole(argv: Sequence[str]) -> float:
    begun = time.perf_counter()
    if _output(argv) != "1\n":
        raise TimingError(f"{argv[0]}: another output than 1")
    return time.perf_counter() - begun


def _output(argv: Sequence[str]) -> str:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        raise TimingError(f"{argv[0]}: status {done.returncode}: {done.stderr[-200:]}")
    return done.stdout
