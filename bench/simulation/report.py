"""What a simulation has to hold, and the text of `bench/SIMULATION.md`.

Pure. The invariant: what does not hold stands in the same table as what does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulation.filling import Filled
from simulation.filling import Size as FillingSize
from simulation.parameters import Costs
from simulation.waiting import Size as WaitingSize
from simulation.waiting import Waits


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that one call of `make simulation` has found."""

    costs: Costs
    seed: int
    waiting: WaitingSize
    waits: Sequence[Waits]
    filling: FillingSize
    filled: Sequence[Filled]


def judged(outcome: Outcome) -> list[tuple[str, str, bool]]:
    """Return what has to hold, what was found, and whether it does."""
    p99 = {each.counts: each.p99_ms for each in outcome.waits}
    at = {each.fill: each for each in outcome.filled}
    return [
        (
            "p99 of the wait by own counts is at most a third of that by chance",
            f"{p99['own']:.0f} ms against {p99['random']:.0f} ms",
            p99["own"] <= p99["random"] / 3,
        ),
        (
            "the control, chosen by reports of up to a second ago, is worse than chance",
            f"{p99['reports']:.0f} ms against {p99['random']:.0f} ms",
            p99["reports"] > p99["random"],
        ),
        (
            "with 80 % of all places taken the first node has room for at least 99 %",
            f"{at[0.8].first:.2%}",
            at[0.8].first >= 0.99,
        ),
        (
            "with 94 % taken at most 0.5 % get 503",
            f"{at[0.94].refused:.2%}",
            at[0.94].refused <= 0.005,
        ),
    ]


_HEAD = """\
# A simulated cluster

Written by `make simulation`; do not edit. Gateways choose with the code of the product
(`cellwall.cluster.gateway.book`); nodes are counted cores and places, SimPy is the clock. It says
how the choice behaves with many nodes, nothing about how fast a machine is.
"""


def markdown(outcome: Outcome) -> str:
    """Return the text of `bench/SIMULATION.md`."""
    costs, waiting, filling = outcome.costs, outcome.waiting, outcome.filling
    lines = [_HEAD]
    lines += [
        f"Costs: {costs.program_s * 1e3:.1f} ms of processor time of ours for a program and "
        f"{costs.create_s * 1e3:.1f} ms for a create (bench/RESULTS.md), "
        f"{costs.hop_s * 1e3:.2f} ms for a gateway ({costs.hop_from}). Seed {outcome.seed}.",
        "",
        *_table(("what has to hold", "found", "holds"), _judgements(outcome)),
        "## Programs that wait for a core",
        "",
        f"{waiting.nodes} nodes of {waiting.cores} cores, {waiting.gateways} gateways, load "
        f"{waiting.load:g}; programs of 100 ms of processor time on average, lognormal, sigma 1.5.",
        "",
        *_table(("best of two by", "programs", "p50", "p99", "longest"), map(_wait, outcome.waits)),
        "## Sandboxes that live",
        "",
        f"{filling.nodes:,} nodes, {filling.alive:,} sandboxes alive for 20 minutes on average, "
        f"{filling.gateways} gateways; each that ends is followed by another.",
        "",
        *_table(
            ("places taken", "creates", "first node", "second or third", "503", "p99"),
            map(_fill, outcome.filled),
        ),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _judgements(outcome: Outcome) -> Iterable[tuple[str, ...]]:
    return ((what, found, "yes" if holds else "**no**") for what, found, holds in judged(outcome))


def _wait(each: Waits) -> tuple[str, ...]:
    words = {
        "own": "own requests in flight",
        "random": "nothing (chance)",
        "reports": "what nodes said, up to a second ago",
    }
    times = (f"{each.p50_ms:.1f} ms", f"{each.p99_ms:.0f} ms", f"{each.most_ms:.0f} ms")
    return (words[each.counts], f"{each.programs:,}", *times)


def _fill(each: Filled) -> tuple[str, ...]:
    shares = (f"{each.first:.2%}", f"{each.later:.2%}", f"{each.refused:.2%}")
    return (f"{each.fill:.0%}", f"{each.creates:,}", *shares, f"{each.p99_ms:.1f} ms")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*("| " + " | ".join(each) + " |" for each in lines), ""]
