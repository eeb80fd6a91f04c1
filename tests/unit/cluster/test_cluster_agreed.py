"""What a gateway agrees on with others: beats that are told, and places for programs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.roll import Roll
from cellwall.cluster.directory.shares import Shares
from cellwall.cluster.gateway.agreed.losses import Losses, away_after_s, fresh_s
from cellwall.cluster.gateway.agreed.running import Running
from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.doubt import Doubt
from cellwall.cluster.gateway.settings import GatewaySettings
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.engine.scheduling.quotas import Quotas, Tenants
from cellwall.model.errors import NodeLost, NodeUnreachable, QuotaExceeded
from cellwall.store.records.errors import StoreBroken, StoreBusy
from cellwall.surface.shared.tasks import Tasks
from kit.cluster.directories import directory, name_of
from kit.postgres_server import Postgres, another

FENCE_S = 2.0
RUNNING = 4


@pytest.fixture
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may stop; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


def _told(name: str, beat: str) -> Told:
    return Told(name, "g1", False, beat, FENCE_S)


def _book() -> Book:
    return Book(FENCE_S + 3, [Node(Links(Address("127.0.0.1", port), None)) for port in (1, 2)])


# -- losses ------------------------------------------------------------------------------------


def test_times_of_losses_fit_each_other() -> None:
    for fence_s in (0.5, 6.0, 10.0, 600.0):
        settings = GatewaySettings(
            ("h:1",), authority="a", certificate="c", key="k", probe_s=0.1, fence_s=fence_s
        )
        assert fresh_s(fence_s) < settings.lost_after_s - fence_s
        assert fresh_s(fence_s) < away_after_s(fence_s) < fence_s / 2


@pytest.mark.timeout(60)
def test_node_is_told_of_beats_that_the_directory_knows_and_of_all_while_it_is_away(
    own: Postgres,
) -> None:
    url = directory(own)

    async def run() -> None:
        book = _book()
        node = book.nodes[0]
        roll = Roll(url, "g1", book.lost_after_s, fresh_s(FENCE_S))
        losses = Losses(book, roll, FENCE_S, 0.1)
        book.answered(node, _told("aaaa", "100"), 0.0)
        assert book.beat(node) == ""
        await asyncio.to_thread(own.stop, signal.SIGINT)
        assert not await losses.agree()
        assert book.beat(node) == ""  # no gateway would wait for one that never entered
        own.start()
        await losses.begin()
        assert book.beat(node) == "100"
        book.answered(node, _told("aaaa", "200"), 1.0)
        assert book.beat(node) == "100"
        await losses.begin()
        assert book.beat(node) == "200"
        await asyncio.to_thread(own.stop, signal.SIGINT)
        book.answered(node, _told("aaaa", "300"), 2.0)
        assert book.beat(node) == "200"
        assert not await losses.agree()
        assert book.beat(node) == "300"
        own.start()
        assert await losses.agree()
        book.answered(node, _told("aaaa", "400"), 3.0)
        assert book.beat(node) == "300"
        await roll.leave()

    asyncio.run(run())


def test_gateway_whose_name_is_taken_tells_no_node_anything_new(postgres: Postgres) -> None:
    url = directory(postgres)

    async def run() -> None:
        book = _book()
        node = book.nodes[0]
        roll, other = (Roll(url, "g1", 5.0, fresh_s(FENCE_S)) for _ in range(2))
        losses = Losses(book, roll, FENCE_S, 0.1)
        book.answered(node, _told("aaaa", "100"), 0.0)
        await losses.begin()
        roll.drop()
        await other.note([])
        book.is_alone = True  # the directory was away in between
        book.answered(node, _told("aaaa", "200"), 1.0)
        assert book.beat(node) == "200"
        await losses.run(lambda: None)
        assert book.beat(node) == "100"
        for each in (roll, other):
            await each.leave()

    asyncio.run(run())


def test_gateway_among_several_tells_no_loss_by_itself(postgres: Postgres) -> None:
    async def run() -> None:
        book = _book()
        node = book.nodes[0]
        roll = Roll(directory_url, "g1", 5.0, 0.4)
        losses = Losses(book, roll, FENCE_S, 0.1)
        book.answered(node, _told("aaaa", "1"), 0.0)
        await losses.begin()
        for now_s in (1.0, 2.0, 100.0):
            assert not book.missed(node, "away", now_s)
        with pytest.raises(NodeUnreachable):
            book.of("aaaa", "sandbox", "x")
        # Another node answers there: the former is not lost by that, and out of reach.
        asked = asyncio.get_running_loop().create_task(Doubt(book, node).until_heard())
        await asyncio.sleep(0)
        book.answered(node, _told("bbbb", "1"), 101.0)
        with pytest.raises(NodeUnreachable):
            book.of("aaaa", "sandbox", "x")
        node.turn()
        for _ in range(10):  # whatever wakes by that is awake then
            await asyncio.sleep(0)
        assert not asked.done()  # the new one's word says nothing of the former's work
        book.bury("aaaa", "no gateway heard it")
        node.turn()
        with pytest.raises(NodeLost):
            await asked
        await roll.leave()
        # The control: a gateway that is alone tells the loss at once.
        alone = _book()
        alone.answered(alone.nodes[0], _told("aaaa", "1"), 0.0)
        assert alone.missed(alone.nodes[0], "away", 100.0)

    directory_url = directory(postgres)
    asyncio.run(run())


def test_doubt_about_a_node_that_is_probed_no_longer_has_an_end() -> None:
    async def run() -> None:
        book = _book()
        book.has_directory = True
        node = book.nodes[0]
        book.answered(node, _told("aaaa", "1"), 0.0)
        asked = asyncio.get_running_loop().create_task(Doubt(book, node).until_heard())
        await asyncio.sleep(0)
        node.told = None  # it is refused, and no provider names it
        node.mark(is_listed=False)
        node.turn()
        with pytest.raises(NodeUnreachable):
            await asked

    asyncio.run(run())


# -- programs under way ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _two(url: str, queued: int = 100) -> AsyncIterator[tuple[Running, Running]]:
    commits = [GroupCommit(url) for _ in range(2)]
    tenants = Tenants({"default": Quotas(running=RUNNING, queued=queued)})
    tasks = Tasks()
    for each in commits:
        tasks.spawn(each.run())
    for each in commits:
        await each.wait_there()
    try:
        yield (
            Running(Shares(commits[0]), tenants, tasks),
            Running(Shares(commits[1]), tenants, tasks),
        )
    finally:
        await tasks.cancel()


@pytest.mark.timeout(60)
def test_programs_at_two_gateways_are_never_more_than_the_quota_and_use_it_up(
    postgres: Postgres,
) -> None:
    url = directory(postgres)

    async def run() -> None:
        held = most = done = 0
        is_full = asyncio.Event()

        async def one(place: Running) -> None:
            nonlocal held, most, done
            async with place.place("t"):
                held += 1
                most = max(most, held)
                if held == RUNNING:
                    is_full.set()
                await is_full.wait()
                await asyncio.sleep(0)
                held -= 1
                done += 1

        async with _two(url) as both:
            async with asyncio.TaskGroup() as group:
                for number in range(120):
                    group.create_task(one(both[number % 2]))
            assert (most, done) == (RUNNING, 120)
            # All of it comes back, to the other one.
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(RUNNING):
                    await stack.enter_async_context(both[1].place("t"))

    asyncio.run(run())


def test_programs_beyond_the_queue_are_refused(postgres: Postgres) -> None:
    url = directory(postgres)

    async def run() -> None:
        async with _two(url, queued=2) as (place, _), contextlib.AsyncExitStack() as stack:
            for _ in range(RUNNING):
                await stack.enter_async_context(place.place("t"))
            loop = asyncio.get_running_loop()
            waiting = [loop.create_task(_entered(place)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(QuotaExceeded, match="queued"):
                await _entered(place)
            await stack.aclose()
            await asyncio.gather(*waiting)

    asyncio.run(run())


async def _entered(place: Running) -> None:
    async with place.place("t"):
        pass


@pytest.mark.timeout(60)
def test_share_of_a_dead_gateway_is_taken_once_its_lease_is_over(postgres: Postgres) -> None:
    url = directory(postgres)
    expire = "UPDATE directory.shares SET until = clock_timestamp() - interval '1 second'"

    async def run() -> None:
        commits = GroupCommit(url)
        tasks = Tasks()
        tasks.spawn(commits.run())
        await commits.wait_there()
        dead, living = Shares(commits), Shares(commits)
        for _ in range(RUNNING):
            assert await dead.take("t", RUNNING)
        assert not await living.take("t", RUNNING)
        await asyncio.to_thread(postgres.sql, expire, name_of(url))
        assert await living.take("t", RUNNING)
        assert await dead.renew("t") == 0  # it learns that it has none
        assert await living.renew("t") == 1
        await living.give_back("t", 1)
        for _ in range(RUNNING):
            assert await living.take("t", RUNNING)
        assert not await living.take("t", RUNNING)
        await tasks.cancel()

    asyncio.run(run())


def test_programs_that_wait_hear_what_is_wrong_with_the_directory(postgres: Postgres) -> None:
    url = directory(postgres)
    rename = "ALTER TABLE directory.{} RENAME TO {}"

    async def run() -> None:
        async with _two(url) as (place, _):
            await asyncio.to_thread(postgres.sql, rename.format("shares", "away"), name_of(url))
            async with asyncio.timeout(10):
                waiting = [_entered(place) for _ in range(3)]
                failed = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(each) for each in failed] == [StoreBroken] * 3
            await asyncio.to_thread(postgres.sql, rename.format("away", "shares"), name_of(url))
            async with asyncio.timeout(10):
                await _entered(place)

    asyncio.run(run())


@pytest.mark.timeout(60)
def test_programs_that_go_on_after_a_lease_was_over_count_again(postgres: Postgres) -> None:
    url = directory(postgres)
    reaped = "DELETE FROM directory.shares; UPDATE directory.tenants SET running = 0"
    counted = "SELECT running FROM directory.tenants"

    async def run() -> None:
        async with _two(url) as both, contextlib.AsyncExitStack() as stack:
            for _ in range(RUNNING):
                await stack.enter_async_context(both[0].place("t"))
            await asyncio.to_thread(postgres.sql, reaped, name_of(url))
            async with asyncio.timeout(20):
                while (
                    await asyncio.to_thread(postgres.sql, counted, name_of(url)) != f"{RUNNING}\n"
                ):
                    pass
            other = asyncio.get_running_loop().create_task(_entered(both[1]))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.shield(other)
            await stack.aclose()
            async with asyncio.timeout(10):
                await other

    asyncio.run(run())


def test_programs_of_a_tenant_with_a_quota_are_refused_while_the_directory_is_away(
    own: Postgres,
) -> None:
    url = directory(own)

    async def run() -> None:
        async with _two(url) as (place, _):
            await asyncio.to_thread(own.stop, signal.SIGINT)
            with pytest.raises(StoreBusy):
                await _entered(place)
            own.start()

    asyncio.run(run())
