"""What a program, a create and a gateway's hop cost, read from the table that the bench writes.

Pure. The invariant: a figure that the table lacks, or has in another form, is an error or is said
to be from elsewhere, never a silent guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cellwall.model.errors import UsageError
from cellwall_bench.figures import BY_KEY

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
_HOP_S = 0.71e-3
"""From design/0054, for tables of before the gateway's rows."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds."""

    program_s: float
    """Processor time of ours for a fresh program."""
    create_s: float
    """From a create to its answer, at the node."""
    hop_s: float
    """What a gateway adds to a request, there and back."""
    hop_from: str
    """Where that figure is from."""


def read_costs(path: Path = RESULTS) -> Costs:
    """Read a table of the bench. Raises UsageError if a row is missing or in another form."""
    text = path.read_text(encoding="utf-8")
    cores = _number(text, r"(\d+) cores", "the machine's cores")
    rate = _number(_detail(text, "sustained_python"), r"([\d.]+)/s against", "programs a second")
    created = _number(_detail(text, "e2b_create"), r"([\d.]+) ms", "a create")
    hop_s, hop_from = _hop(text)
    return Costs(cores / rate, created / 1e3, hop_s, hop_from)


def _hop(text: str) -> tuple[float, str]:
    row = _row(text, "gateway_fresh")
    found = re.search(r"([\d.]+) ms against ([\d.]+) ms", row or "")
    if not found:
        return _HOP_S, "design/0054"
    return max(float(found[1]) - float(found[2]), 0.0) / 1e3, "bench/RESULTS.md"


def _row(text: str, key: str) -> str | None:
    """Return the line of a row; None: the table lacks it."""
    start = f"| {BY_KEY[key].what} |"
    return next((line for line in text.splitlines() if line.startswith(start)), None)


def _detail(text: str, key: str) -> str:
    row = _row(text, key)
    if row is None:
        raise UsageError(f"simulation: the bench has no row {key}", remedy="run `make bench` first")
    return row.removeprefix(f"| {BY_KEY[key].what} |")


def _number(text: str, pattern: str, what: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise UsageError(
            f"simulation: {what} is not in the bench's table as expected",
            remedy="look at the row, and at bench/simulation/parameters.py",
        )
    return float(found[1])
