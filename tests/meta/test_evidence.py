"""docs/evidence.md against the tests: every fault and rule that is asked for, nothing invented.

Not whether a test is any good. A row without a test must say so, and why.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from kit.places import ROOT

PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ((?:FI|API)-\d+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE))
_RANGES = {
    "FI": ((1, 7), (11, 17), (19, 33), (35, 37), (39, 44)),
    "API": ((1, 2), (6, 10), (22, 27), (36, 45)),
}


@cache
def names_in(module: str) -> frozenset[str]:
    """Return the names of a module's tests; none if there is no such module."""
    return frozenset(
        node.name
        for path in (ROOT / "tests").rglob(f"{module}.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def named(text: str) -> list[tuple[str, str]]:
    return re.findall(r"`(test_\w+)::(test_\w+)`", text)


def test_every_fault_and_rule_has_a_row_and_only_one() -> None:
    asked = {
        f"{kind}-{number:02}" if kind == "FI" else f"{kind}-{number}"
        for kind, ranges in _RANGES.items()
        for first, last in ranges
        for number in range(first, last + 1)
    }
    assert asked <= set(ROWS)
    assert PAGE.count("\n| FI-") + PAGE.count("\n| API-") == len(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_row_names_tests_that_are_there_or_says_why_there_is_none(row: str) -> None:
    found = named(ROWS[row])
    assert found or ROWS[row].startswith("No test: ")
    assert [f"{module}::{test}" for module, test in found if test not in names_in(module)] == []


def test_every_test_the_page_names_is_there() -> None:
    everywhere = named(PAGE)
    assert len(everywhere) > len(ROWS)
    assert [each for each in everywhere if each[1] not in names_in(each[0])] == []


def test_every_fault_that_a_test_names_has_a_row() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    mentioned = {name for text in texts for name in re.findall(r"\bFI-\d+\b", text)}
    assert mentioned - {"FI-"} <= set(ROWS)
