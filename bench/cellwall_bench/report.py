"""The result of a bench as JSON and as `bench/RESULTS.md`.

Pure: a `Result` in, text out. Invariant: what was not met or not measured stands in the same
table, in the same size, as what was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cellwall_bench.figures import BY_KEY, Figure, Target, verdict_on


@dataclass(frozen=True, slots=True)
class Result:
    """One whole bench."""

    machine: Mapping[str, Any]
    begun: str
    """UTC, to the minute."""
    took_s: float
    is_quick: bool
    isolation: str
    figures: Sequence[Figure]


def as_json(result: Result) -> dict[str, Any]:
    """Return everything that was measured as plain JSON."""
    return {
        "machine": dict(result.machine),
        "begun": result.begun,
        "took_s": round(result.took_s, 1),
        "quick": result.is_quick,
        "isolation": result.isolation,
        "figures": [
            {**asdict(BY_KEY[figure.key]), **asdict(figure), "reached": verdict_on(figure)}
            for figure in result.figures
        ],
    }


def shown(value: float | None, unit: str) -> str:
    """Return a figure as people read it."""
    if value is None:
        return "–"
    if unit == "things":
        return f"{value:.0f}"
    if unit == "MiB":
        return f"{value:.1f} MiB"
    return f"{value:.1f}×" if unit == "x" and value >= 10 else f"{value:.2f} {_SIGN[unit]}"


_SIGN = {"%": "%", "F": "F", "x": "×", "ms": "ms", "s": "s", "/s": "/s"}


def row(figure: Figure) -> tuple[str, str, str, str, str, str]:
    """Return the cells of one row: what, figure, bar, aim, reached, detail."""
    target = BY_KEY[figure.key]
    return (
        target.what,
        shown(figure.value, target.unit),
        _bound(target, target.bar),
        _bound(target, target.aim),
        verdict_on(figure),
        figure.detail,
    )


def _bound(target: Target, value: float) -> str:
    return f"{'≥' if target.higher_is_better else '≤'} {shown(value, target.unit)}"


COLUMNS = ("what", "figure", "bar", "aim", "reached", "detail")

_HEAD = """\
# Results of the bench

Written by `make bench`; do not edit. Every figure was taken beside its floor, in turns.

**F** is `/usr/bin/python3 -c 'print(1)'` from spawn to output, spawned the cheapest way there is.
*Parked*: each sample begins only once the pool is full again, so it shows the latency of a claim,
not what can be sustained; the sustained rows show that. *Bare* Python that imports numpy and
pandas is the template's own interpreter, without any isolation.
"""


def markdown(result: Result) -> str:
    """Return the text of `bench/RESULTS.md`."""
    lines = [_HEAD, _machine(result), "", _line(COLUMNS), _line("---" for _ in COLUMNS)]
    lines += [_line(row(figure)) for figure in result.figures]
    return "\n".join([*lines, ""])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


QUICK = ", **quick run: smaller counts than the rows say, see detail**"


def _machine(result: Result) -> str:
    facts = result.machine
    return (
        f"{result.begun} UTC, {result.took_s / 60:.0f} min"
        f"{QUICK if result.is_quick else ''}; {facts['cpu']}, {facts['cores']} cores, "
        f"{facts['memory_mib'] / 1024:.0f} GiB, {facts['system']}, kernel {facts['kernel']}, "
        f"cgroup {facts['cgroup']}, user {facts['user']}, load {facts['load_1min']} at the start; "
        f"Python {facts['python']}; isolation {result.isolation}."
    )
