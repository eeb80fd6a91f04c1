"""The simulated cluster, small: what has to hold of the gateway's choice holds, by fixed seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.cluster.gateway import exchange
from cellwall.cluster.gateway.book import Book
from cellwall.model.errors import UsageError
from simulation import filling, waiting
from simulation.parameters import RESULTS, Costs, read_costs
from simulation.report import Outcome, judged, markdown

COSTS = Costs(0.005, 0.005, 0.001, "a test")
SEED = 32
WAITING = waiting.Size(nodes=40, warm_s=2.0, measured_s=2.0)
FILLING = filling.Size(nodes=200, alive=20_000, warm=1_000, creates=5_000)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    counts: tuple[waiting.Counts, ...] = ("own", "random", "reports")
    waits = [waiting.waits(each, WAITING, COSTS, SEED) for each in counts]
    fills = [filling.filled(each, FILLING, COSTS, SEED) for each in (0.8, 0.94)]
    return Outcome(COSTS, SEED, WAITING, waits, FILLING, fills)


def test_what_has_to_hold_holds(outcome: Outcome) -> None:
    assert [(what, found) for what, found, holds in judged(outcome) if not holds] == []
    assert "**no**" not in markdown(outcome)


def test_as_many_nodes_are_asked_as_a_gateway_asks() -> None:
    assert filling.TRIES == exchange._TRIES


def test_what_does_not_hold_is_said(outcome: Outcome) -> None:
    slow = [replace(each, p99_ms=1e4) if each.counts == "own" else each for each in outcome.waits]
    assert "| **no** |" in markdown(replace(outcome, waits=slow))


def test_same_seed_is_the_same_run_and_another_is_not() -> None:
    small = replace(WAITING, nodes=10, warm_s=0.5, measured_s=0.5)
    first, second = (waiting.waits("own", small, COSTS, SEED) for _ in range(2))
    assert first == second
    assert waiting.waits("own", small, COSTS, SEED + 1) != first


def test_products_choice_is_what_is_simulated(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the first node for everything nothing of it holds."""
    monkeypatch.setattr(Book, "choose", lambda book, _without=(): book.nodes[0])
    small = replace(WAITING, warm_s=0.1, measured_s=0.2)
    assert waiting.waits("own", small, COSTS, SEED).p99_ms > 10 * outcome.waits[0].p99_ms
    fills = filling.filled(0.94, replace(FILLING, creates=500), COSTS, SEED)
    assert fills.refused > 0.5


def test_costs_are_the_benchs(tmp_path: Path) -> None:
    costs = read_costs()
    assert 0 < costs.program_s < 0.1
    assert 0 < costs.create_s < 0.1
    text = RESULTS.read_text(encoding="utf-8")
    path = tmp_path / "RESULTS.md"
    path.write_text("\n".join(line for line in text.splitlines() if "sustained" not in line))
    with pytest.raises(UsageError, match="sustained_python"):
        read_costs(path)
