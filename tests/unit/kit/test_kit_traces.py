"""Traces of earlier tests may go; new ones are seen even if there are fewer in all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.arena import Traces

BEFORE = Traces(3, 1, 5, 9, 4, 1, frozenset({10, 11, 12}), frozenset({"/cg/a"}))


def test_what_earlier_tests_left_may_end() -> None:
    after = Traces(1, 0, 5, 7, 4, 0, frozenset({10}), frozenset())
    assert after.is_no_more_than(BEFORE)
    assert BEFORE.is_no_more_than(BEFORE)


def test_a_waiting_worker_may_have_another_cgroup() -> None:
    after = replace(BEFORE, processes=2, alive=frozenset({10, 11}), groups=frozenset({"/cg/b"}))
    assert after.is_no_more_than(BEFORE)


def test_processes_may_have_successors_while_a_file_goes() -> None:
    after = replace(BEFORE, alive=frozenset({20, 21, 22}), state_files=3)
    assert after.is_no_more_than(BEFORE)


@pytest.mark.parametrize(
    "change",
    [
        {"processes": 1, "alive": frozenset({13})},
        {"control_groups": 2},
        {"mounts": 6},
        {"descriptors": 10},
        {"state_files": 5},
        {"state_files": 3, "paths": frozenset({"/state/new"})},
        {"containers": 2},
    ],
    ids="-".join,
)
def test_what_is_new_is_seen(change: dict[str, object]) -> None:
    assert not replace(BEFORE, **change).is_no_more_than(BEFORE)  # type: ignore[arg-type]  # by name
