"""Rows of programs in every language: a first compile against the cache's, and programs per second.

Called by `runner`. Invariant: a first compile is one, of a source that was never compiled before,
and the run beside it took that product from the cache; the answer says both, and anything else
voids the row.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.apps.engines import wait_parked
from cellwall.apps.timings import TimingError
from cellwall.languages.registry import by_extension, find
from cellwall.languages.tools import is_installed
from cellwall_bench.figures import Figure, p50, ratio_of_medians
from cellwall_bench.http_client import Client, serving

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine

COMPILED = ("java", "cpp", "rust", "go")
"""Languages whose compile cache has a row; `//` begins a comment in all of them."""
PROGRAMS = "CELLWALL_BENCH_PROGRAMS"
HUMANEVAL = "CELLWALL_BENCH_HUMANEVAL"
_CONCURRENCY = 4
_TIMEOUT_S = 60.0


class _Took(NamedTuple):
    wall_s: float
    cpu_s: float


async def compiled(
    engine: Engine, key: str, language: str, options: dict[str, Any], samples: int
) -> Figure:
    """Measure a run from the compile cache against the first run of the same source, in turns.

    Wall time is what a caller waits; CPU time is what its sandboxes used, as the kernel says.
    """
    entry = find(language)
    if not is_installed(entry):
        return Figure(key, None, f"no {language}; run: {entry.install}")
    first, cached = [], []
    for number in range(samples + 1):
        source = f"{entry.hello}// {secrets.token_hex(8)}\n"
        pair = [
            await _run(engine, source, language, options, is_cached=is_cached)
            for is_cached in (False, True)
        ]
        if number:  # the first pair finds nothing in the page cache
            first.append(pair[0])
            cached.append(pair[1])
    cpu = [p50([took.cpu_s for took in each]) * 1e3 for each in (cached, first)]
    wall = [[took.wall_s for took in each] for each in (cached, first)]
    return Figure(
        key,
        ratio_of_medians(*wall),
        f"p50 {p50(wall[0]) * 1e3:.1f} ms against {p50(wall[1]) * 1e3:.0f} ms; CPU inside "
        f"{cpu[0]:.1f} ms against {cpu[1]:.0f} ms ({cpu[0] / cpu[1]:.3f} ×); n={samples}",
        {"wall_ms": [p50(each) * 1e3 for each in wall], "cpu_ms": cpu},
    )


async def _run(
    engine: Engine, source: str, language: str, options: dict[str, Any], *, is_cached: bool
) -> _Took:
    await wait_parked(engine)
    begun = time.perf_counter()
    execution = await engine.run(source, language=language, **options)
    wall_s = time.perf_counter() - begun
    stage = execution.compilation
    if stage is None or stage.is_cached is not is_cached or execution.stdout != "hello\n":
        raise TimingError(f"{language}: {execution.verdict.value} {execution.stderr[-200:]!r}")
    compiling_s = stage.outcome.usage.cpu_s if stage.outcome else 0.0
    return _Took(wall_s, compiling_s + execution.outcome.usage.cpu_s)


async def batch(key: str, most_folders: int) -> Figure:
    """Measure programs per second of a batch over HTTP: none compiled before, then all of them."""
    folder = Path(os.environ.get(PROGRAMS, "examples/programs"))
    items, expected = programs(folder, most_folders)
    if not items:
        return Figure(key, None, f"no programs; set {PROGRAMS} to a copy of examples/programs")
    rates = await _rates(items, expected, times=2)
    languages = len({item["language"] for item in items})
    return Figure(
        key,
        rates[0],
        f"{len(items)} programs in {languages} languages, {_CONCURRENCY} at a time; "
        f"{rates[1]:.1f}/s once compiled",
        {"first_per_s": rates[0], "cached_per_s": rates[1]},
    )


async def humaneval(key: str) -> Figure:
    """Measure HumanEval's solutions and tests per second, if the operator says where they are."""
    path = os.environ.get(HUMANEVAL)
    if not path:
        return Figure(key, None, f"set {HUMANEVAL} to HumanEval.jsonl.gz to run it")
    items = problems(Path(path))
    [rate] = await _rates(items, [""] * len(items), times=1)
    detail = f"{len(items)} of {len(items)} ended as they should, {_CONCURRENCY} at a time"
    return Figure(key, rate, detail, {"programs": len(items), "per_s": rate})


def problems(path: Path) -> list[dict[str, Any]]:
    """Return one order for each problem of the file: its solution, then its test."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [
        {
            "code": f"{each['prompt']}{each['canonical_solution']}{each['test']}\n"
            f"check({each['entry_point']})\n",
            "language": "python",
            "timeout": _TIMEOUT_S,
        }
        for each in found
    ]


async def _rates(items: list[dict[str, Any]], expected: list[str], *, times: int) -> list[float]:
    """Send the batch `times` times to one new server; raise `TimingError` if an answer is wrong."""
    rates = []
    async with serving(environ={"CELLWALL_WARM": "python"}) as target:
        for _ in range(times):
            async with Client(target, {"Accept": "application/x-ndjson"}) as client:
                begun = time.perf_counter()
                body = {"executions": items, "concurrency": _CONCURRENCY}
                lines = await client.ask_lines("POST", "/executions/batch", body)
                rates.append(len(items) / (time.perf_counter() - begun))
            _check(lines, expected)
    return rates


def programs(folder: Path, most_folders: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one order for each program below `folder` that can run here, and what it prints."""
    items: list[dict[str, Any]] = []
    expected: list[str] = []
    for each in sorted(path.parent for path in folder.glob("*/expected.txt"))[:most_folders]:
        given = each / "input.txt"
        stdin = {"stdin": given.read_text(encoding="utf-8")} if given.exists() else {}
        for path in sorted(each.glob(f"{each.name}.*")):
            language = by_extension(path.suffix)
            if language is None or not is_installed(language):
                continue
            order = {"language": language.name, "timeout": _TIMEOUT_S, **stdin}
            if language.name == "sql":
                order["template"] = "data"
            items.append({"code": path.read_text(encoding="utf-8"), **order})
            expected.append((each / "expected.txt").read_text(encoding="utf-8"))
    return items, expected


def _check(lines: list[dict[str, Any]], expected: list[str]) -> None:
    answers = [line for line in lines if "index" in line]
    wrong = [
        line for line in answers
        if (line["verdict"], line["stdout"]) != ("ok", expected[line["index"]])
    ]  # fmt: skip
    if wrong or len(answers) != len(expected):
        said = f"; {wrong[0]['language']}: {wrong[0]['verdict']}" if wrong else ""
        raise TimingError(f"{len(answers)} of {len(expected)} answers, {len(wrong)} wrong{said}")
