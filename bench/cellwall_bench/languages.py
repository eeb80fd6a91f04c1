"""Rows of contexts in other languages: what each adds in memory, and JavaScript's fresh start.

Called by `runner`. Invariant: a language whose tool is missing here is a row that was not measured,
with the sentence that says what to install.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.engines import wait_parked
from cellwall.apps.timings import checked
from cellwall.languages.tools import find_tool
from cellwall_bench import bare
from cellwall_bench.figures import Figure, p50, p95, ratio_of_medians
from cellwall_bench.processes import tree_pss_bytes

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine

CONTEXTS = ("javascript", "typescript", "bash", "ruby", "r", "java", "sql")
"""Languages whose contexts have a row."""
_SCRIPT = "console.log(1)"
_LIMITS = {"memory_mb": 1024, "processes": 200}


async def fresh_javascript(
    engine: Engine, key: str, options: dict[str, Any], samples: int
) -> Figure:
    """Measure a fresh sandbox's JavaScript, parked, against Node.js by itself."""
    node = find_tool("node")
    if node is None:
        return Figure(key, None, "no Node.js; run: apt-get install nodejs")
    floor_argv = (node, "-e", _SCRIPT)
    checked(await engine.run(_SCRIPT, language="javascript", **options))
    ours, floor = [], []
    for _ in range(samples):
        await wait_parked(engine)
        begun = time.perf_counter()
        execution = await engine.run(_SCRIPT, language="javascript", **options)
        ours.append(time.perf_counter() - begun)
        checked(execution)
        floor.append(bare.once(floor_argv))
    detail = f"p50 {p50(ours) * 1e3:.1f} ms, p95 {p95(ours) * 1e3:.1f} ms"
    return Figure(
        key,
        ratio_of_medians(ours, floor),
        f"{detail}; `node -e` {p50(floor) * 1e3:.1f} ms",
        {"p50_ms": round(p50(ours) * 1e3, 2), "floor_ms": round(p50(floor) * 1e3, 2)},
    )


async def context_memory(
    engine: Engine, key: str, language: str, options: dict[str, Any]
) -> Figure:
    """Measure what a context of `language` adds before any code ran in it."""
    async with await engine.create_sandbox(**{**options, "limits": _LIMITS}) as sandbox:
        try:
            before = tree_pss_bytes()
            begun = time.perf_counter()
            await sandbox.contexts.create("measured", language)
            took = time.perf_counter() - begun
            added = (tree_pss_bytes() - before) / 2**20
        except PermissionError:
            return Figure(key, None, "not root: the kernel does not let us read its memory")
    detail = f"PSS that a context adds to a living sandbox; it was ready after {took:.2f} s"
    return Figure(key, added, detail, {"mib": round(added, 2), "start_s": round(took, 3)})
