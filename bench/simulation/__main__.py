"""`python -m simulation`: the simulation as a command; `make simulation` calls it.

Its status is 1 if anything does not hold, after the table was written.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from simulation import filling, waiting
from simulation.parameters import read_costs
from simulation.report import Outcome, judged, markdown

_COUNTS: tuple[waiting.Counts, ...] = ("own", "random", "reports")
_FILLS = (0.8, 0.94)


def run(seed: int, waiting_size: waiting.Size, filling_size: filling.Size) -> Outcome:
    """Simulate everything."""
    costs = read_costs()
    waits = []
    for counts in _COUNTS:
        _say(f"programs, by {counts}")
        waits.append(waiting.waits(counts, waiting_size, costs, seed))
    fills = []
    for fill in _FILLS:
        _say(f"sandboxes, {fill:.0%} of all places taken")
        fills.append(filling.filled(fill, filling_size, costs, seed))
    return Outcome(costs, seed, waiting_size, waits, filling_size, fills)


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def simulation(
    seed: Annotated[int, typer.Option(help="Another seed, another run.")] = 32,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table here, too.")
    ] = None,
) -> None:
    """Simulate a cluster of ten thousand nodes, and judge what was found."""
    gc.disable()  # a million living objects, and no cycles that matter
    outcome = run(seed, waiting.Size(), filling.Size())
    text = markdown(outcome)
    if write is not None:
        write.write_text(text, encoding="utf-8")
    typer.echo(text)
    if not all(holds for _, _, holds in judged(outcome)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(simulation)
