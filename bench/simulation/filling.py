"""Sandboxes that live: how often the first node that is asked has room, and how often none.

A closed loop: each that ends is followed by another create, so the share of all places that is
taken stays. The start is drawn by chance, place by place; what is counted are the creates after it,
each at a node that a gateway's real book chose, and no more of them than a gateway tries.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import simpy

from cellwall.cluster.gateway.book import Node
from simulation.gateways import Gateway
from simulation.parameters import Costs

TRIES = 3
"""Nodes that a gateway asks at most, as `cluster.gateway.exchange` has it."""
_LIFE_S = 1200.0
"""Mean life of a sandbox: a session of twenty minutes."""
_AGAIN_S = 1.0
"""`Retry-After` of a 503."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a simulation is."""

    nodes: int = 10_000
    alive: int = 1_000_000
    gateways: int = 8
    warm: int = 20_000
    creates: int = 80_000
    """Creates that are counted, after `warm` others."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What came out; shares of all creates."""

    fill: float
    creates: int
    first: float
    """Had room at the first node."""
    later: float
    """At the second or third."""
    refused: float
    """At none of them: 503."""
    p99_ms: float
    """From a create to its answer."""


@dataclass(slots=True)
class _Node:
    places: int
    taken: int = 0


def filled(fill: float, size: Size, costs: Costs, seed: int) -> Filled:
    """Simulate creates in a cluster of whose places so many are taken."""
    random.seed(seed)  # the book draws from the module's generator
    world = _World(fill, size, costs, seed)
    world.run()
    count = len(world.took)
    took = sorted(world.took)
    at = [tries / count for tries in world.at]
    later = sum(at[2 : TRIES + 1])
    return Filled(fill, count, at[1], later, at[0], took[int(0.99 * (count - 1))] * 1e3)


class _World:
    """One run."""

    def __init__(self, fill: float, size: Size, costs: Costs, seed: int) -> None:
        self._size, self._costs = size, costs
        self._env = simpy.Environment()
        self._random = random.Random(seed)
        self._nodes = self._with_places(fill)
        self._gateways = [Gateway(self._nodes) for _ in range(size.gateways)]
        self._over = self._env.event()
        self.took: list[float] = []
        self.at = [0] * (TRIES + 1)
        """How many were taken at which try; at 0 those that none took."""
        self._begun = 0

    def _with_places(self, fill: float) -> list[_Node]:
        places = round(self._size.alive / fill)
        each, more = divmod(places, self._size.nodes)
        return [_Node(each + (number < more)) for number in range(self._size.nodes)]

    def run(self) -> None:
        """Fill the cluster, then count creates."""
        for _ in range(self._size.alive):
            node = self._random.choice(self._nodes)
            while node.taken == node.places:
                node = self._random.choice(self._nodes)
            self._lives(node)
        self._env.run(self._over)

    def _lives(self, node: _Node) -> None:
        node.taken += 1
        self._after(self._random.expovariate(1 / _LIFE_S), lambda: self._ends(node))

    def _ends(self, node: _Node) -> None:
        node.taken -= 1
        self._create()

    def _create(self) -> None:
        self._begun += 1
        self._env.process(self._asked(self._random.choice(self._gateways), self._begun))

    def _asked(self, gateway: Gateway[_Node], number: int) -> simpy.events.ProcessGenerator:
        began_s, taken_at = self._env.now, 0
        asked: set[Node] = set()
        for tries in range(1, TRIES + 1):
            chosen = gateway.book.choose(asked)
            asked.add(chosen)
            node = gateway.behind[chosen]
            chosen.in_flight += 1
            yield self._env.timeout(self._costs.hop_s)
            has_room = node.taken < node.places
            if has_room:
                self._lives(node)
                taken_at = tries
                yield self._env.timeout(self._costs.create_s)
            chosen.in_flight -= 1
            if has_room:
                break
        self._count(number, taken_at, self._env.now - began_s)
        if not taken_at:
            yield self._env.timeout(_AGAIN_S)
            self._create()

    def _count(self, number: int, taken_at: int, took_s: float) -> None:
        if number <= self._size.warm or self._over.triggered:
            return
        self.at[taken_at] += 1
        self.took.append(took_s)
        if len(self.took) == self._size.creates:
            self._over.succeed()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        event = self._env.timeout(seconds)
        event.callbacks.append(lambda _event: then())
