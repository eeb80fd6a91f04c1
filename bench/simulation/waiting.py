"""Programs that wait for a core of their node, by how gateways count what a node has to do.

Each gateway chooses by its real book; what differs is what stands in the book's counts. `own`: its
own requests in flight, as in the product. `random`: nothing. `reports`: what every node said that
it has to do, once a second; the control, which has to be worse than chance.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import simpy

from simulation.gateways import Gateway
from simulation.parameters import Costs

Counts = Literal["own", "random", "reports"]
_MEAN_S, _SIGMA = 0.1, 1.5
"""Processor time of callers' programs: lognormal, most are short and some take seconds."""
_REPORT_S = 1.0


@dataclass(frozen=True, slots=True)
class Size:
    """How large a simulation is."""

    nodes: int = 500
    cores: int = 16
    gateways: int = 8
    load: float = 0.7
    """Share of all cores that is busy on average."""
    warm_s: float = 4.0
    measured_s: float = 6.0


@dataclass(frozen=True, slots=True)
class Waits:
    """What came out; waits for a core."""

    counts: Counts
    programs: int
    p50_ms: float
    p99_ms: float
    most_ms: float


def waits(counts: Counts, size: Size, costs: Costs, seed: int) -> Waits:
    """Simulate programs for some seconds."""
    random.seed(seed)  # the book draws from the module's generator
    found = sorted(_World(counts, size, costs, seed).run())
    p50, p99 = (found[int(share * (len(found) - 1))] * 1e3 for share in (0.5, 0.99))
    return Waits(counts, len(found), p50, p99, found[-1] * 1e3)


@dataclass(slots=True)
class _Node:
    """A machine: cores, and programs that wait for one."""

    free: int
    waiting: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    running: int = 0


class _World:
    """One run."""

    def __init__(self, counts: Counts, size: Size, costs: Costs, seed: int) -> None:
        self._counts, self._size, self._costs = counts, size, costs
        self._env = simpy.Environment()
        self._random = random.Random(seed)
        self._nodes = [_Node(size.cores) for _ in range(size.nodes)]
        self._gateways = [Gateway(self._nodes) for _ in range(size.gateways)]
        self._waits: list[float] = []

    def run(self) -> list[float]:
        """Return the waits of all programs after the warm-up, in seconds."""
        each_s = _MEAN_S + self._costs.program_s
        rate = self._size.load * self._size.nodes * self._size.cores / each_s
        for gateway in self._gateways:
            self._env.process(self._arrivals(gateway, rate / self._size.gateways))
        if self._counts == "reports":
            for number in range(self._size.nodes):
                self._env.process(self._reports(number))
        self._env.run(self._size.warm_s + self._size.measured_s)
        return self._waits

    def _arrivals(self, gateway: Gateway[_Node], rate: float) -> simpy.events.ProcessGenerator:
        while True:
            yield self._env.timeout(self._random.expovariate(rate))
            self._begin(gateway)

    def _reports(self, number: int) -> simpy.events.ProcessGenerator:
        """Say once a second what a node has to do, as an answer to a probe would."""
        node = self._nodes[number]
        yield self._env.timeout(self._random.uniform(0, _REPORT_S))
        while True:
            for gateway in self._gateways:
                gateway.book.nodes[number].in_flight = node.running + len(node.waiting)
            yield self._env.timeout(_REPORT_S)

    def _begin(self, gateway: Gateway[_Node]) -> None:
        chosen = gateway.book.choose()
        node = gateway.behind[chosen]
        more = 1 if self._counts == "own" else 0
        chosen.in_flight += more

        def answered() -> None:
            chosen.in_flight -= more

        hop_s = self._costs.hop_s / 2
        self._after(hop_s, lambda: self._arrives(node, lambda: self._after(hop_s, answered)))

    def _arrives(self, node: _Node, ended: Callable[[], None]) -> None:
        node.waiting.append((self._env.now, ended))
        self._start_next(node)

    def _start_next(self, node: _Node) -> None:
        if not node.free or not node.waiting:
            return
        since_s, ended = node.waiting.popleft()
        if self._env.now >= self._size.warm_s:
            self._waits.append(self._env.now - since_s)
        node.free -= 1
        node.running += 1
        mu = math.log(_MEAN_S) - _SIGMA**2 / 2
        took_s = self._random.lognormvariate(mu, _SIGMA) + self._costs.program_s
        self._after(took_s, lambda: self._ends(node, ended))

    def _ends(self, node: _Node, ended: Callable[[], None]) -> None:
        node.free += 1
        node.running -= 1
        ended()
        self._start_next(node)

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        event = self._env.timeout(seconds)
        event.callbacks.append(lambda _event: then())
