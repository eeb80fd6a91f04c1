"""What is unusual is flagged, once, and nothing else; time is an input."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cellwall.model.outcome import Verdict
from cellwall.server.observability.alert_rules import Alert, Rule, Rules


@dataclass
class Bench:
    """Rules with a clock of the test's own."""

    now: float = 1000.0
    alerts: list[Alert] = field(default_factory=list)

    def rules(self, *rules: Rule, most_seen: int = 4096) -> Rules:
        return Rules(rules, self.alerts.append, lambda: self.now, most_seen)


THREE = Rule("limits", "limit", 3, 60.0)


def test_repeated_limit_hits_are_flagged_once_per_window() -> None:
    bench = Bench()
    rules = bench.rules(THREE)
    for _ in range(10):
        rules.ended("alice", Verdict.MEMORY)
    assert bench.alerts == [Alert("limits", "alice", 3, 60.0)]
    bench.now += 61
    for _ in range(3):
        rules.ended("alice", Verdict.WALL_TIME)
    assert len(bench.alerts) == 2


def test_what_is_spread_over_time_is_not_flagged() -> None:
    bench = Bench()
    rules = bench.rules(THREE)
    for _ in range(50):
        rules.ended("alice", Verdict.OUTPUT)
        bench.now += 30.1
    assert bench.alerts == []


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.EXCEPTION, Verdict.NONZERO_EXIT])
def test_ordinary_ends_are_not_counted(verdict: Verdict) -> None:
    bench = Bench()
    rules = bench.rules(THREE, Rule("syscalls", "syscall", 1, 60.0))
    for _ in range(10):
        rules.ended("alice", verdict)
    assert bench.alerts == []


def test_each_tenant_and_kind_is_counted_apart() -> None:
    bench = Bench()
    rules = bench.rules(THREE, Rule("syscalls", "syscall", 2, 60.0))
    for who in ("alice", "bob", "alice", "bob"):
        rules.ended(who, Verdict.CPU_TIME)
    rules.ended("alice", Verdict.SYSCALL)
    assert bench.alerts == []
    rules.ended("alice", Verdict.SYSCALL)
    assert [(alert.rule, alert.who) for alert in bench.alerts] == [("syscalls", "alice")]


def test_a_rule_can_be_switched_off() -> None:
    bench = Bench()
    rules = bench.rules(Rule("limits", "limit", 0, 60.0))
    rules.note("alice", "limit")
    assert bench.alerts == []


def test_many_addresses_cost_bounded_memory() -> None:
    bench = Bench()
    rules = bench.rules(Rule("refusals", "refusal", 5, 60.0), most_seen=100)
    for number in range(10_000):
        rules.note(f"address:{number}", "refusal")
    assert len(rules._seen) == 100
