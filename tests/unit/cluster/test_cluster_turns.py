"""Turns of new work at a gateway: nothing waits while there is room, tenants take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from cellwall.cluster.gateway.book import Book, Node, Size, Told
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.cluster.gateway.work.turns import Turn, Turns
from cellwall.engine.scheduling.quotas import Quotas
from cellwall.model.errors import CapacityError, QuotaExceeded
from kit import loop_clock
from kit.loop_clock import clock

NAMES = ("aaaa", "bbbb", "cccc")


def _book(*cores: int) -> Book:
    made = Book(13.0, [Node(Links(Address("127.0.0.1", port), None)) for port in range(len(cores))])
    for node, count, name in zip(made.nodes, cores, NAMES, strict=False):
        made.answered(node, Told(name, "g", False, "1", 5.0, Size(count)), 0.0)
    return made


def _turns(book: Book, most_queued: int = 100, gateways: int = 1, **tiers: Quotas) -> Turns:
    made = Turns(tiers, {each: each for each in tiers}, most_queued, gateways)
    made.resize(book.nodes)
    return made


def _who_has_come(turns: Iterable[Turn]) -> list[bool]:
    return [each.has_come for each in turns]


def _has_come(turn: Turn) -> bool:
    return turn.has_come


def test_window_is_two_for_each_processor_shared_by_the_gateways() -> None:
    book = _book(2, 4)
    assert _turns(book).places == 12
    assert _turns(book, gateways=3).places == 1 + 2
    assert _turns(book, gateways=100).places == 2  # one at each node
    book.missed(book.nodes[1], "away", 1.0)
    book.missed(book.nodes[1], "away", 2.0)
    assert _turns(book).places == 4


def test_tenant_with_one_program_is_next_behind_a_tenant_with_many() -> None:
    async def body() -> None:
        turns = _turns(_book(1))
        many = [turns.ask("alice") for _ in range(50)]
        assert _who_has_come(many[:3]) == [True, True, False]
        one = turns.ask("bob")
        assert not _has_come(one)
        many[0].leave()
        many[1].leave()
        # Of the first two that end, one makes room for the other tenant.
        assert _has_come(one)
        assert sum(_who_has_come(many)) == 3

    asyncio.run(body())


def test_room_that_is_free_is_had_at_once_and_nothing_is_scheduled() -> None:
    async def body() -> None:
        turns = _turns(_book(1))
        for _ in range(100):
            turn = turns.ask("alice")
            assert turn.has_come
            assert await turn.come()
            turn.leave()
            turn.leave()
        assert (turns.queued, len(turns.young)) == (0, 0)
        assert [turns.ask("alice").has_come for _ in range(3)] == [True, True, False]

    loop_clock.run(body())


def test_one_that_leaves_while_it_waits_is_taken_out() -> None:
    async def body() -> None:
        turns = _turns(_book(1))
        held = [turns.ask("alice") for _ in range(2)]
        first, second = turns.ask("alice"), turns.ask("alice")
        waiting = asyncio.ensure_future(first.come())
        await asyncio.sleep(0)
        first.leave()
        assert await waiting is False
        assert turns.queued == 1
        held[0].leave()
        assert second.has_come
        assert not first.has_come

    asyncio.run(body())


def test_work_that_is_no_longer_young_makes_room() -> None:
    async def body() -> None:
        book = _book(1)
        turns = _turns(book)
        long = [turns.ask("alice") for _ in range(2)]
        for each in long:
            each.at(book.nodes[0])
        assert book.nodes[0].young == 2
        await clock().advance(0.5)
        one = turns.ask("bob")
        assert not _has_come(one)
        await clock().advance(0.4)
        assert not _has_come(one)
        await clock().advance(0.2)
        assert _has_come(one)
        assert book.nodes[0].young == 0
        for each in (*long, one):
            each.leave()
        assert (turns.queued, len(turns.young)) == (0, 0)

    loop_clock.run(body())


def test_no_more_wait_than_the_quota_and_the_gateway_allow() -> None:
    async def body() -> None:
        turns = _turns(_book(1), most_queued=30, small=Quotas(queued=3))
        kept = [turns.ask("small") for _ in range(5)]
        with pytest.raises(QuotaExceeded, match="queued"):
            turns.ask("small")
        kept += [turns.ask("alice") for _ in range(27)]
        with pytest.raises(CapacityError, match="wait already"):
            turns.ask("alice")
        kept[2].leave()
        kept.append(turns.ask("small"))

    asyncio.run(body())


def test_without_a_ready_node_nothing_waits_so_that_each_hears_it() -> None:
    async def body() -> None:
        book = _book(1)
        turns = _turns(book)
        book.on_change = lambda: turns.resize(book.nodes)
        kept = [turns.ask("alice") for _ in range(5)]
        assert _who_has_come(kept) == [True, True, False, False, False]
        book.missed(book.nodes[0], "away", 1.0)
        book.missed(book.nodes[0], "away", 2.0)
        assert all(_who_has_come(kept))

    asyncio.run(body())


def test_room_at_a_node_is_counted_where_the_work_is() -> None:
    async def body() -> None:
        book = _book(1, 1)
        turns = _turns(book)
        turn = turns.ask("alice")
        for node in (*book.nodes, book.nodes[0]):
            turn.at(node)
            assert sum(each.young for each in book.nodes) == node.young == 1
        others = [turns.ask("alice") for _ in range(3)]
        for each in others:
            each.at(book.nodes[0])
        assert all(book.choose() is book.nodes[1] for _ in range(20))
        for each in (turn, *others):
            each.leave()
            each.at(book.nodes[1])  # too late: it has left the window
        assert [each.young for each in book.nodes] == [0, 0]

    asyncio.run(body())
