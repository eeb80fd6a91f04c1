"""Nodes that come and go while a gateway runs: being named no longer ends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.roster import Roster
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.model.errors import CapacityError, NodeLost
from cellwall.surface.shared.tasks import Tasks

LOST_AFTER_S = 13.0
HERE, THERE = Address("10.1.0.1", 1), Address("10.1.0.2", 1)


def _told(name: str) -> Told:
    return Told(name, "g1", False, "1", 10.0)


class _World:
    """A book, its roster, and probes that the test turns by hand."""

    def __init__(self) -> None:
        self.book = Book(LOST_AFTER_S)
        self.tasks = Tasks()
        self.roster = Roster(self.book, self.tasks, lambda at: Node(Links(at, None)), self._watch)

    async def _watch(self, node: Node) -> None:
        while not node.is_over:
            await node.turned()

    async def turn(self) -> None:
        """End a probe of every node."""
        await asyncio.sleep(0)
        for node in self.book.nodes:
            node.turn()
        for _ in range(4):
            await asyncio.sleep(0)

    def at(self, address: Address) -> Node:
        return next(each for each in self.book.nodes if each.links.address == address)

    def addresses(self) -> list[Address]:
        return [each.links.address for each in self.book.nodes]


def _in_a_world(test: Callable[[_World], Coroutine[object, object, None]]) -> Callable[[], None]:
    async def run() -> None:
        world = _World()
        try:
            world.roster.take([HERE, THERE])
            world.book.answered(world.at(HERE), _told("aaaa"), 0.0)
            world.book.answered(world.at(THERE), _told("bbbb"), 0.0)
            await test(world)
        finally:
            await world.tasks.cancel()

    def whole() -> None:
        asyncio.run(run())

    return whole


@_in_a_world
async def test_node_that_is_named_no_longer_keeps_what_it_has_and_gets_nothing_new(
    world: _World,
) -> None:
    world.roster.take([THERE])
    await world.turn()
    node = world.at(HERE)
    assert world.book.of("aaaa", "sandbox", "x") is node
    assert all(world.book.choose() is not node for _ in range(50))
    world.book.answered(node, _told("aaaa"), 1.0)
    assert all(world.book.choose() is not node for _ in range(50))
    world.roster.take([HERE, THERE])
    world.book.answered(node, _told("aaaa"), 2.0)
    assert (node.state, node.why) == ("ready", "")


@_in_a_world
async def test_provider_without_any_node_ends_none(world: _World) -> None:
    world.roster.take([])
    await world.turn()
    assert world.addresses() == [HERE, THERE]
    assert world.book.of("bbbb", "sandbox", "x") is world.at(THERE)
    with pytest.raises(CapacityError):
        world.book.choose()


@_in_a_world
async def test_node_that_is_named_no_longer_is_forgotten_once_it_is_lost(world: _World) -> None:
    world.roster.take([THERE])
    node = world.at(HERE)
    assert not world.book.missed(node, "away", 1.0)
    await world.turn()
    assert HERE in world.addresses()
    assert world.book.missed(node, "away", LOST_AFTER_S + 1)
    await world.turn()
    assert world.addresses() == [THERE]
    with pytest.raises(NodeLost):
        world.book.of("aaaa", "sandbox", "x")


@_in_a_world
async def test_other_node_at_an_address_that_is_named_no_longer_is_none_of_ours(
    world: _World,
) -> None:
    world.roster.take([THERE])
    world.book.answered(world.at(HERE), _told("cccc"), 1.0)
    await world.turn()
    assert world.addresses() == [THERE]
    with pytest.raises(NodeLost):
        world.book.of("aaaa", "sandbox", "x")


@_in_a_world
async def test_later_pod_at_the_address_of_one_before_is_a_node(world: _World) -> None:
    world.roster.take([THERE])
    world.roster.take([HERE, THERE])
    world.book.answered(world.at(HERE), _told("cccc"), 1.0)
    await world.turn()
    assert world.book.of("cccc", "sandbox", "x") is world.at(HERE)
    with pytest.raises(NodeLost):
        world.book.of("aaaa", "sandbox", "x")


@_in_a_world
async def test_address_that_never_answered_goes_with_its_naming(world: _World) -> None:
    more = Address("10.1.0.3", 1)
    world.roster.take([HERE, THERE, more])
    await world.turn()
    assert more in world.addresses()
    world.roster.take([HERE, THERE])
    await world.turn()
    assert world.addresses() == [HERE, THERE]
