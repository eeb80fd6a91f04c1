"""Outliers: nodes that answer much later than the others get no new work for a while.

Pure; `exchange` and `errand` tell how long fresh programs took, a task judges twice a second. What
nodes report of their load decides nothing: only their answers do. The invariants: at most a third
of the nodes is put out, and a node that is out gets one program in many, by which it is found to be
well again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Node

_KEPT = 64
_FRESH_S = 15.0
"""Seconds after which an answer says nothing of its node any more."""
_LEAST, _LEAST_OF_OTHERS = 8, 16
"""Answers by which a node, and the others, are judged at least."""
_TIMES = 3.0
"""How many times later than the others' 95th hundredth a node's own is, if it is put out."""
_MEDIAN_TIMES = 1.5
"""The same of the medians: a few long programs do not put a node out, nor keep it out."""
_PART = 3
"""One node of so many may be out."""
TRIAL_EVERY = 64
"""One in so many choices is a trial of a node that is out, if it has no program of ours."""
_LONG_S = 5.0
"""Seconds after which programs that are at a node that is out no longer keep trials away."""
_WELL = 3
"""Trials in a row that have to go well; twice as many after each relapse."""
_MOST_RELAPSES = 2


class Pace:
    """How fast one node answers."""

    __slots__ = ("_answers", "_bound_s", "_long", "_relapses", "_seen", "_well", "why")

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._bound_s = 0.0
        self._relapses = 0
        self._well = 0
        self._long = 0
        """Programs at the node that have been there for long."""
        self._seen = (0, 0.0)
        """The programs at the node, and since when there are so many."""
        self.why = ""
        """Why it is out; empty: it is not."""

    def took(self, seconds: float, now_s: float) -> None:
        """Note how long a fresh program took until its answer was whole."""
        if not self.why:
            self._answers.append((now_s, seconds))
            return
        self._well = self._well + 1 if seconds <= self._bound_s else 0
        if self._well >= _WELL << min(self._relapses - 1, _MOST_RELAPSES):
            self.let_in()

    def put_out(self, why: str, bound_s: float) -> None:
        """Put the node out until trials take no longer than `bound_s`."""
        self.why, self._bound_s = why, bound_s
        self._relapses += 1
        self._well = self._long = 0
        self._seen = (0, 0.0)

    def may_try(self, programs: int) -> bool:
        """Report whether a trial may come: what is at the node are long programs alone.

        Streams and sessions are no trials, and do not count among the `programs` there.
        """
        return programs <= self._long

    def look(self, programs: int, now_s: float) -> None:
        """Take how many programs are at the node that is out; those that last are long ones."""
        if programs != self._seen[0]:
            self._seen = (programs, now_s)
        if programs < self._long or now_s - self._seen[1] >= _LONG_S:
            self._long = programs

    def let_in(self) -> None:
        """Let it have new work; it is judged by what comes."""
        self.why = ""
        self._answers.clear()

    def fresh(self, now_s: float) -> list[float]:
        """Return how long the latest answers took, in order of their length."""
        return sorted(took for at_s, took in self._answers if now_s - at_s < _FRESH_S)


def judge(nodes: Sequence[Node], now_s: float) -> None:
    """Put out the nodes that are much slower than the others."""
    ready = [node for node in nodes if node.state == "ready"]
    out = [node for node in ready if node.pace.why]
    for node in out[len(ready) // _PART :]:  # there are fewer nodes than before
        node.pace.let_in()
    for node in out:
        node.pace.look(node.programs, now_s)
    room = len(ready) // _PART - len(out)
    if room <= 0:
        return
    taken = {node: node.pace.fresh(now_s) for node in ready if not node.pace.why}
    # By their medians, so that several slow ones do not hide each other.
    order = sorted(taken, key=lambda each: _at(taken[each], 0.5))
    faster = order[: (len(order) + 1) // 2]
    others = sorted(took for node in faster for took in taken[node])
    for node in order[-room:]:
        if _is_slow(taken[node], others):
            late, usual = _at(taken[node], 0.95), _at(others, 0.95)
            node.pace.put_out(
                f"its answers take up to {late:.2g} s, those of the others {usual:.2g} s",
                _MEDIAN_TIMES * _at(others, 0.5),
            )


def _is_slow(own: Sequence[float], others: Sequence[float]) -> bool:
    if len(own) < _LEAST or len(others) < _LEAST_OF_OTHERS:
        return False
    is_late = _at(own, 0.95) > _TIMES * _at(others, 0.95)
    return is_late and _at(own, 0.5) > _MEDIAN_TIMES * _at(others, 0.5)


def _at(values: Sequence[float], part: float) -> float:
    """Return the value below which that part of them lies; 0 if there are none."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0
