"""Rows of runtime `gvisor`, in units of the plain tool beside them: `runsc run`.

Called by `runner`. Invariant: the plain tool gets the binary, the platform, the root and the flags
that ours has, and alternates with ours sample by sample.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cellwall.apps.bench import bare
from cellwall.apps.bench.figures import Figure, p50, p95, ratio_of_medians
from cellwall.apps.bench.latency import PLAIN, checked
from cellwall.apps.engines import wait_parked
from cellwall.jail import facts, plan
from cellwall.model.limits import Limits
from cellwall.runtimes import gvisor_bundle, gvisor_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.engine.engine import Engine
    from cellwall.runtimes.gvisor import GvisorRuntime

_CHOICE: dict[str, Any] = {"runtime": "gvisor", "isolation": "kernel", "template": "python"}
_BETWEEN_S = 60.0


async def fresh(engine: Engine, key: str, samples: int) -> Figure:
    """Measure a program in a fresh sandbox against an empty interpreter under `runsc run`."""
    ours: list[float] = []
    floor: list[float] = []
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as folder:
        plain = await _plain(engine, Path(folder))
        for _ in range(samples + 1):
            await asyncio.wait_for(wait_parked(engine), _BETWEEN_S)
            ours.append(await _first_output(engine))
            await asyncio.wait_for(wait_parked(engine), _BETWEEN_S)
            floor.append(await asyncio.to_thread(plain))
    del ours[0], floor[0]  # page caches, and with a pool the first one finds nothing parked
    detail = f"{p50(ours) * 1e3:.0f} ms p50, {p95(ours) * 1e3:.0f} ms p95; "
    return Figure(
        key,
        ratio_of_medians(ours, floor),
        f"{detail}`runsc run` = {p50(floor) * 1e3:.0f} ms; {samples} samples",
    )


async def _first_output(engine: Engine) -> float:
    """Seconds from the call to the first output, which is what the plain tool is measured by."""
    seen: list[float] = []
    begun = time.perf_counter()
    checked(await engine.run(PLAIN, on_event=lambda _: seen.append(time.perf_counter()), **_CHOICE))
    return seen[0] - begun


async def live_context(engine: Engine, key: str, samples: int) -> Figure:
    """Measure the next execution in a context that is already there, in milliseconds."""
    async with await engine.create_sandbox(**_CHOICE) as sandbox:
        took: list[float] = []
        for _ in range(samples + 3):
            begun = time.perf_counter()
            checked(await sandbox.run(PLAIN))
            took.append((time.perf_counter() - begun) * 1e3)
    return Figure(key, p50(took[3:]), f"{p95(took[3:]):.1f} ms p95; {samples} samples")


async def _plain(engine: Engine, folder: Path) -> Callable[[], float]:
    """Return what runs `runsc run` once and gives the seconds to its first output."""
    runtime = cast("GvisorRuntime", await engine.runtime("kernel", "gvisor"))
    chosen = await runtime.choose()
    template = plan.Root("/usr", (), bare.FLOOR[0])
    root = gvisor_root.make_root(folder / "roots", facts.collect(), template)
    made = gvisor_bundle.configuration(root, Limits(), bare.FLOOR)
    (folder / "config.json").write_text(json.dumps(made), encoding="utf-8")
    flags = gvisor_bundle.flags(chosen.binary.flags, chosen.platform, str(folder))
    words = [chosen.binary.path, *flags, "run", f"--bundle={folder}"]
    numbers = itertools.count()
    return lambda: bare.once([*words, f"plain{next(numbers)}"])
