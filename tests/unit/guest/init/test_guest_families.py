"""Whose a process is: sessions and descent, told by a table of processes that the test makes up."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from cellwall.guest.init import families
from cellwall.guest.init.families import Families, Process

_EARLY, _SINCE, _LATE = 5, 50, 160


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Families:
    """Families of 10 and 20, who have children, and a stray of each time."""
    own = os.getpid()
    table = [
        Process(10, own, 10, _EARLY, 1, 0, False),
        Process(11, 10, 10, _LATE, 1, 0, False),
        Process(12, 11, 12, _LATE, 1, 0, False),  # left the session, not its parents
        Process(13, own, 10, _LATE, 1, 0, False),  # lost its parents, not the session
        Process(14, own, 14, _LATE, 1, 0, False),  # lost both, while the family worked
        Process(15, own, 15, _EARLY, 1, 0, False),  # lost both before
        Process(20, own, 20, _EARLY, 1, 0, False),
        Process(21, 20, 20, _LATE, 1, 0, False),
        Process(22, 21, 22, _LATE, 1, 0, False),
        Process(23, own, 20, _LATE, 1, 0, False),
    ]
    monkeypatch.setattr(families, "listing", lambda: {each.pid: each for each in table})
    made = Families(cast("Any", None))
    made.lead(10)
    made.lead(20)
    return made


def test_processes_of_others_are_none_of_its_own(two: Families) -> None:
    assert two._members(10, _SINCE) == {10, 11, 12, 13, 14}
    assert two._members(20, _SINCE) == {20, 21, 22, 23, 14}


def test_strays_are_nobodys_where_no_time_is_said(two: Families) -> None:
    assert two._members(10, None) == {10, 11, 12, 13}
