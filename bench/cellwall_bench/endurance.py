"""Rows about many and long: memory of idle sandboxes, 500 of them, a row of runs, a flood.

Called by `runner`. Invariant: each figure is a difference between two readings of the kernel,
taken in the same state of the engine (warm, nothing in flight).
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import wait_parked
from cellwall.apps.timings import PLAIN, checked, warm
from cellwall.jail.fast.netns_reuse import MOST_KEPT
from cellwall.linux.cgroups.engine_tree import most_spare_directories
from cellwall.linux.cgroups.hierarchies import discover
from cellwall.runtimes.jail.starting.settings import workers_on
from cellwall_bench.figures import Figure, p50
from cellwall_bench.processes import Holdings, descendants, holdings, tree_pss_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from cellwall.engine.engine import Engine
    from cellwall.engine.sandbox import AsyncSandbox

_FLOOD = """
import os
block = b"x" * 1048576
for _ in range({blocks}):
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
"""


async def _open(engine: Engine, options: dict[str, Any], count: int) -> list[AsyncSandbox]:
    opened: list[AsyncSandbox] = []
    while len(opened) < count:
        batch = min(4, count - len(opened))
        opened += await asyncio.gather(*(engine.create_sandbox(**options) for _ in range(batch)))
    return opened


async def _close(sandboxes: list[AsyncSandbox]) -> None:
    for sandbox in sandboxes:
        await sandbox.close()


async def idle_memory(engine: Engine, key: str, options: dict[str, Any], count: int) -> Figure:
    """Measure what one more idle live sandbox adds; `engine` has no pool and is warm."""
    await warm(engine, options)  # the fork-server is no sandbox's memory
    await wait_parked(engine)
    sandboxes: list[AsyncSandbox] = []
    try:
        before = tree_pss_bytes()
        sandboxes = await _open(engine, options, count)
        idle = tree_pss_bytes()
        for sandbox in sandboxes:
            checked(await sandbox.run(PLAIN))
        used = tree_pss_bytes()
    except PermissionError:
        return Figure(key, None, "not root: the kernel does not let us read the sandboxes' memory")
    finally:
        await _close(sandboxes)
    each = [(now - before) / count / 2**20 for now in (idle, used)]
    return Figure(
        key,
        each[0],
        f"PSS of our whole tree with {count} sandboxes; {each[1]:.1f} MiB once each ran print(1)",
        {"idle_mib": round(each[0], 2), "after_first_run_mib": round(each[1], 2)},
    )


async def beside_many(engine: Engine, options: dict[str, Any], many: int, samples: int) -> Figure:
    """Measure a fresh run beside 10 live idle sandboxes and beside `many`."""
    await warm(engine, options)
    sandboxes = await _open(engine, options, 10)
    try:
        few = await _fresh_runs(engine, options, samples)
        sandboxes += await _open(engine, options, many - 10)
        crowd = await _fresh_runs(engine, options, samples)
    finally:
        await _close(sandboxes)
    return Figure(
        "live_500",
        p50(crowd) / p50(few),
        f"{p50(crowd) * 1e3:.2f} ms beside {many}, {p50(few) * 1e3:.2f} ms beside 10; no pool",
        {"live": many},
    )


async def _fresh_runs(engine: Engine, options: dict[str, Any], samples: int) -> list[float]:
    took = []
    for _ in range(samples):
        begun = time.perf_counter()
        execution = await engine.run(PLAIN, **options)
        took.append(time.perf_counter() - begun)
        checked(execution)
    return took


async def soak(engine: Engine, options: dict[str, Any], runs: int, state: Path) -> Figure:
    """Run `runs` programs in fresh sandboxes and count what is left behind.

    Before and after, the pool is full, nothing runs, and fork-servers have all of their workers: a
    new one comes after 10,000 forks, and gets those for sessions later. How many empty cgroups and
    unused network namespaces are kept then is not the same each time: it depends on which of the
    last runs ended first. They are told, and count as left behind as far as they exceed what may be
    kept.
    """
    async for _ in _many(engine, options, 24):
        pass
    before = await _at_rest(engine, state)
    begun = time.perf_counter()
    async for _ in _many(engine, options, runs):
        pass
    took = time.perf_counter() - begun
    after = await _at_rest(engine, state)
    workers = sum(workers_on(os.cpu_count() or 1).values())
    most = {
        "spare_cgroups": most_spare_directories(discover(), workers),
        "kept_networks": workers * MOST_KEPT,
    }
    more = left_behind(before, after, most)
    left = ", ".join(f"{count} {kind}" for kind, count in more.items()) or "nothing"
    return Figure(
        "soak",
        sum(more.values()),
        f"{left} left behind after {runs} runs ({runs / took:.0f}/s); kept for reuse: empty "
        f"cgroups {before.spare_cgroups} then {after.spare_cgroups}, at most "
        f"{most['spare_cgroups']}; networks {before.kept_networks} then {after.kept_networks}, "
        f"at most {most['kept_networks']}",
        {"runs": runs, "more": more, "before": _plain(before), "after": _plain(after)},
    )


async def _at_rest(engine: Engine, state: Path) -> Holdings:
    await wait_parked(engine)
    await engine.wait_settled()
    return holdings(state)


def left_behind(before: Holdings, after: Holdings, most: Mapping[str, int]) -> dict[str, int]:
    """Return what there is more of, by kind; of what may be kept, what exceeds `most`."""
    more = {kind: count for kind, count in after.beyond(before).items() if kind not in most}
    too_many = {kind: getattr(after, kind) - bound for kind, bound in most.items()}
    return {**more, **{kind: count for kind, count in too_many.items() if count > 0}}


async def _many(engine: Engine, options: dict[str, Any], runs: int) -> AsyncIterator[None]:
    for start in range(0, runs, 8):
        batch = min(8, runs - start)
        done = await asyncio.gather(*(engine.run(PLAIN, **options) for _ in range(batch)))
        for execution in done:
            checked(execution)
        yield


def _plain(counted: Holdings) -> dict[str, int]:
    return {name: getattr(counted, name) for name in counted.__slots__}


async def flood(engine: Engine, options: dict[str, Any], gigabytes: float) -> Figure:
    """Let a program write `gigabytes` and watch the peak of our own processes."""
    await warm(engine, options)
    ours = [os.getpid(), *descendants(os.getpid())]
    _reset_peaks(ours)
    before = _peaks(ours)
    blocks = int(gigabytes * 1e9 / 2**20)
    begun = time.perf_counter()
    execution = await engine.run(
        _FLOOD.format(blocks=blocks), **{**options, "limits": {"wall_s": 600, "cpu_s": 600}}
    )
    took = time.perf_counter() - begun
    after = _peaks(ours)
    growth = sum(max(0, after.get(pid, 0) - before[pid]) for pid in before) / 2**20
    written = execution.outcome.usage.stdout_bytes
    detail = (
        f"{written / 1e9:.1f} GB in {took:.1f} s, {len(execution.stdout) >> 10} KiB kept, "
        f"verdict {execution.verdict.value}; peak RSS of the engine and its helpers"
    )
    if written < blocks << 20:
        return Figure("flood", None, f"the program did not write all of it: {detail}")
    return Figure("flood", growth, detail, {"bytes": written, "seconds": round(took, 1)})


def _reset_peaks(pids: list[int]) -> None:
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
        except OSError:  # ended, or not ours to reset: then the peak only counts against us
            continue


def _peaks(pids: list[int]) -> dict[int, int]:
    found = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("VmHWM:"):
                found[pid] = int(line.split()[1]) * 1024
    return found
