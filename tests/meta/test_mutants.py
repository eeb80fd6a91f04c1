"""The tables of guards that are left out (`make mutants`) speak of what is there.

Not whether a test notices one: that is what running them says.
"""

from __future__ import annotations

import ast

import pytest

from mutants.tables import ROOT, Mutant, is_there, load

MUTANTS = load()
_FINDINGS = {f"F{number}" for number in range(1, 16)} | {
    "S1",
    "S2",
    "P3",
    "D",
    "L",
    "packages",
    "images",
    "volumes",
    "history",
    "pauses",
    "copies",
    "trees",
    "sessions",
    "cluster",
    "nodes",
    "programs",
}


def test_every_finding_has_its_guards() -> None:
    assert {each.finding for each in MUTANTS} == _FINDINGS
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_guard_stands_once_and_can_be_left_out(mutant: Mutant) -> None:
    changed = mutant.apply((ROOT / mutant.file).read_text(encoding="utf-8"))
    if mutant.file.endswith(".py"):
        ast.parse(changed)
    assert mutant.tests
    assert [test for test in mutant.tests if not is_there(test)] == []
