"""Detection of unusual runs: too many events of one kind within a window of time.

Fed with events by `observer`, which turns an alert into a log record, an audit record and a metric.
A rule is no quota (`engine.scheduling.fair_queue`) and no refusal: it stops nothing. The invariant:
memory is bounded by the number of rules and of remembered originators, whatever callers send.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from cellwall.model.outcome import Verdict

Kind = Literal["limit", "syscall", "creation", "refusal"]
_LIMITS = frozenset(
    {
        Verdict.WALL_TIME,
        Verdict.CPU_TIME,
        Verdict.MEMORY,
        Verdict.PROCESSES,
        Verdict.DISK,
        Verdict.OUTPUT,
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """`count` events of one kind within `window_s` seconds are unusual."""

    name: str
    kind: Kind
    count: int
    """Number of events that raises an alert; 0 switches the rule off."""
    window_s: float


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule was met."""

    rule: str
    who: str
    """A tenant, or `address:…` for requests without a valid key."""
    count: int
    window_s: float


@dataclass(slots=True)
class _Seen:
    at: deque[float] = field(default_factory=deque)
    flagged_at: float | None = None


class Rules:
    """The rules of one server and the recent events."""

    def __init__(
        self,
        rules: tuple[Rule, ...],
        on_alert: Callable[[Alert], None],
        clock: Callable[[], float] = time.monotonic,
        most_seen: int = 4096,
    ) -> None:
        """`on_alert` is called once per window for each pair of rule and originator."""
        self._rules = {
            kind: tuple(rule for rule in rules if rule.kind == kind and rule.count > 0)
            for kind in ("limit", "syscall", "creation", "refusal")
        }
        self._on_alert = on_alert
        self._clock = clock
        self._most_seen = most_seen
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def ended(self, who: str, verdict: Verdict) -> None:
        """Note the event that `verdict` stands for, if it is one."""
        if verdict in _LIMITS:
            self.note(who, "limit")
        elif verdict is Verdict.SYSCALL:
            self.note(who, "syscall")

    def note(self, who: str, kind: Kind) -> None:
        """Note one event of `kind` by `who`, now."""
        for rule in self._rules[kind]:
            self._apply(rule, who)

    def _apply(self, rule: Rule, who: str) -> None:
        now = self._clock()
        seen = self._seen.setdefault((rule.name, who), _Seen())
        self._seen.move_to_end((rule.name, who))
        if len(self._seen) > self._most_seen:
            self._seen.popitem(last=False)
        seen.at.append(now)
        while seen.at[0] <= now - rule.window_s or len(seen.at) > rule.count:
            seen.at.popleft()
        is_fresh = seen.flagged_at is None or seen.flagged_at <= now - rule.window_s
        if len(seen.at) >= rule.count and is_fresh:
            seen.flagged_at = now
            self._on_alert(Alert(rule.name, who, rule.count, rule.window_s))
