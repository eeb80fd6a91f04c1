"""What is known to fail of upstream suites has a reason, and the comparison can fail."""

from __future__ import annotations

import pytest

from cellwall.apps.doors.e2b.clients import TESTED
from upstream.left import LEFT, compared, known
from upstream.versions import JAVASCRIPT, PYTHON

TABLE = """
[[left]]
suite = "one"
tests = ["*::test_a*"]
reason = "it cannot be"
"""


def test_each_entry_has_tests_and_a_reason() -> None:
    entries = known(LEFT.read_text(encoding="utf-8"))
    assert entries
    assert all(each.tests and each.reason for each in entries)


@pytest.mark.parametrize(
    ("outcomes", "is_good", "says"),
    [
        ({"x::test_a1": False, "x::test_b": True}, True, "1 of 2 passed"),
        ({"x::test_a1": False, "x::test_b": False}, False, "nothing says why: x::test_b"),
        ({"x::test_a1": True, "x::test_b": True}, False, "stands in left.toml: *::test_a*"),
        ({}, False, "0 of 0 passed"),
    ],
)
def test_only_what_is_known_may_fail_and_has_to(
    outcomes: dict[str, bool], is_good: bool, says: str
) -> None:
    found = compared("one", outcomes, table=TABLE)
    assert found.is_good == is_good
    assert says in found.text
    assert "it cannot be" in found.text


def test_of_a_part_what_passes_may_stand_in_the_table() -> None:
    assert compared("one", {"x::test_b": True}, is_part=True, table=TABLE).is_good
    assert not compared("other", {"x::test_a": False}, is_part=True, table=TABLE).is_good


@pytest.mark.parametrize(("language", "tried"), [("python", PYTHON), ("js", JAVASCRIPT)])
def test_the_range_that_clients_are_told_is_tried(language: str, tried: tuple[str, ...]) -> None:
    versions = [tuple(map(int, each.split("."))) for each in tried]
    assert versions == sorted(versions)
    assert (versions[0], versions[-1]) == (TESTED[language].oldest, TESTED[language].newest)
