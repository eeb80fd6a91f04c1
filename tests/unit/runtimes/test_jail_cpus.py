"""Which CPUs sandboxes are pinned to."""

from __future__ import annotations

import os

import pytest

from cellwall.jail.inspect import posture
from cellwall.runtimes.shared.cpu_placement import Cpus


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Cpus:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    return Cpus()


def test_they_spread_over_all_of_them(cpus: Cpus) -> None:
    taken = [cpus.take(1) for _ in range(6)]
    assert sorted(cpu for each in taken for cpu in each) == [0, 0, 1, 1, 2, 2]


def test_where_it_ran_is_preferred_but_not_piled_upon(cpus: Cpus) -> None:
    taken = [next(iter(cpus.take(1, near=2))) for _ in range(9)]
    assert taken[:2] == [2, 2]
    assert max(taken.count(cpu) for cpu in (0, 1, 2)) == 4


def test_all_of_them_need_no_pinning(cpus: Cpus) -> None:
    assert cpus.take(3) == frozenset()


def test_given_back_ones_are_least_used_again(cpus: Cpus) -> None:
    first = cpus.take(2)
    cpus.give_back(first)
    assert cpus.take(2) == first


def test_the_kernel_says_where_a_process_ran() -> None:
    assert posture.last_cpu(os.getpid()) in range(os.cpu_count() or 1)
    assert posture.last_cpu(2**22 + 1) == -1
