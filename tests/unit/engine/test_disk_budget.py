"""Sessions that are written down never exceed their budget, whoever writes at the same time."""

from __future__ import annotations

import threading

from cellwall.engine.state.disk_budget import DiskBudget


def test_sessions_stay_below_their_bounds_and_that_of_all() -> None:
    budget = DiskBudget(100)
    first, second = budget.begin(60), budget.begin(80)
    assert (first.take(60), first.take(1)) == (True, False)
    assert (second.take(41), second.take(40), budget.used_bytes) == (False, True, 100)
    first.give_back()
    first.give_back()
    assert (budget.used_bytes, second.take(41), second.take(40)) == (40, False, True)


def test_tenants_have_their_parts_and_none_takes_all() -> None:
    budget = DiskBudget(10 << 20)
    budget.most_mb_of = {"a": 2, "b": None}.get
    first, second, other = (budget.begin(99 << 20, name) for name in ("a", "a", "b"))
    assert (first.take(1 << 20), second.take(1 << 20)) == (True, True)
    assert (first.take(1), first.refusal and first.refusal.quota) == (False, "snapshots_mb")
    assert (budget.taken_mb("a"), budget.taken_mb("b")) == (2, 0)
    assert (other.take(8 << 20), other.take(1), other.refusal) == (True, False, None)
    first.give_back()
    assert (second.take(1), budget.taken_mb("a"), budget.used_bytes) == (True, 2, (9 << 20) + 1)


def test_threads_together_take_no_more_than_there_is() -> None:
    budget = DiskBudget(10_000)
    taken: list[int] = []

    def work() -> None:
        own = budget.begin(10_000)
        taken.append(sum(own.take(1) for _ in range(5_000)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(taken) == budget.used_bytes == 10_000
