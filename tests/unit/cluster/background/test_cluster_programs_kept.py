"""Rows of programs in the background, in a real PostgreSQL: acceptance, hands, tries and ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cellwall.cluster.directory.claims import Claim, Claims
from cellwall.cluster.directory.connection import check_url
from cellwall.cluster.directory.notices import NoticeRows
from cellwall.cluster.directory.programs import LARGE_BYTES, Accepted, Programs
from cellwall.cluster.directory.schema import init
from cellwall.model.ids import GATEWAYS, new_id
from cellwall.store.records.errors import StoreBusy
from kit.cluster.directories import ROLE, as_role, committing, directory
from kit.postgres_server import Postgres

NOTICE = ("notice-1", '{"type":"execution.ended"}')


def ran(test: Callable[[str], Awaitable[None]]) -> Callable[[str], None]:
    """Run a test of one directory on an event loop."""

    @functools.wraps(test)
    def run(url: str) -> None:
        asyncio.run(_awaited(test(url)))

    return run


async def _awaited(work: Awaitable[None]) -> None:
    await work


@pytest.fixture
def url(postgres: Postgres) -> str:
    return directory(postgres)


@contextlib.asynccontextmanager
async def _two(url: str) -> AsyncIterator[tuple[Programs, Programs]]:
    """Two gateways, both alive."""
    async with committing(url) as commits:
        both = Programs(commits, "one"), Programs(commits, "other")
        for each in both:
            await each.keep_hand()
        yield both


def _wanted(webhook: str = "") -> Accepted:
    return Accepted(new_id(GATEWAYS), '{"scope":"run"}', b"{}\x00", '{"status":"queued"}', webhook)


@ran
async def test_a_program_is_in_one_hand_while_its_gateway_lives(url: str) -> None:
    async with _two(url) as (one, other):
        wanted = _wanted()
        await one.accept("moss", wanted)
        (taken,) = await one.take(4, [])
        assert (taken.id, taken.state, taken.tries) == (wanted.id, "queued", 0)
        assert await other.take(4, []) == []
        assert await one.take(4, [wanted.id]) == []
        assert [each.id for each in await one.take(4, [])] == [wanted.id]  # it had forgotten it


@ran
async def test_a_dead_gateways_programs_are_anothers(url: str) -> None:
    async with committing(url) as commits:
        dead, alive = Programs(commits, "dead"), Programs(commits, "alive")
        queued, begun = _wanted(), _wanted()
        for each in (queued, begun):
            await dead.accept("moss", each)
        await dead.take(4, [])  # its row of hands was never renewed
        assert await dead.begin("moss", begun.id, "a7c2", 0) == 1
        found = {each.id: each for each in await alive.take(4, [])}
        assert found[queued.id].state == "queued"
        assert (found[begun.id].node, found[begun.id].tries) == ("a7c2", 1)
        assert await dead.begin("moss", queued.id, "xm4q", 0) is None
        assert not await dead.end("moss", begun.id, "{}", NOTICE)


@ran
async def test_a_try_is_made_once(url: str) -> None:
    async with _two(url) as (one, _):
        wanted = _wanted()
        await one.accept("moss", wanted)
        await one.take(4, [])
        assert await one.begin("moss", wanted.id, "a7c2", 0) == 1
        assert await one.begin("moss", wanted.id, "xm4q", 0) is None
        assert await one.begin("moss", wanted.id, "xm4q", 1) == 2
        assert not await one.give_up("moss", wanted.id, 1)
        assert await one.give_up("moss", wanted.id, 2)
        found = await one.read("moss", wanted.id)
        assert found is not None
        assert (found.state, found.node) == ("queued", "")


@ran
async def test_each_tenant_has_its_turn_behind_anothers_many(url: str) -> None:
    async with _two(url) as (one, _):
        for _number in range(20):
            await one.accept("many", _wanted())
        await one.accept("one", _wanted())
        taken = await one.take(3, [])
        assert sorted(each.tenant for each in taken) == ["many"] * 3 + ["one"]
        more = await one.take(3, [each.id for each in taken])
        assert more == []  # it has as many in hand as it may


@ran
async def test_an_end_is_written_once_with_its_notice(url: str) -> None:
    async with _two(url) as (one, _), committing(url) as commits:
        wanted = _wanted("https://hooks.example.com/")
        await one.accept("moss", wanted)
        await one.take(4, [])
        await one.begin("moss", wanted.id, "a7c2", 0)
        assert await one.end("moss", wanted.id, '{"status":"success"}', NOTICE)
        assert not await one.end("moss", wanted.id, "{}", ("notice-2", "{}"))
        seen = await one.find("moss", wanted.id)
        assert seen is not None
        assert (seen.state, seen.node, seen.answer) == ("done", "a7c2", '{"status":"success"}')
        assert await one.body("moss", wanted.id, 0) is None
        (notice,) = await NoticeRows(commits).due(4, 16, 30.0)
        assert (notice.id, notice.url, notice.body) == (NOTICE[0], wanted.webhook, NOTICE[1])
        assert await one.find("other", wanted.id) is None


@ran
async def test_what_was_cancelled_never_begins(url: str) -> None:
    async with _two(url) as (one, other):
        wanted = _wanted()
        await one.accept("moss", wanted)
        await one.take(4, [])
        assert not await other.cancel("foreign", wanted.id, "{}", NOTICE)
        assert await other.cancel("moss", wanted.id, "{}", NOTICE)
        assert await one.begin("moss", wanted.id, "a7c2", 0) is None
        assert not await other.cancel("moss", wanted.id, "{}", NOTICE)


@ran
async def test_a_key_keeps_one_program(url: str) -> None:
    async with _two(url) as (one, other), committing(url) as commits:
        first, second = _wanted(), _wanted()
        claim = await one.accept_with_key("moss", "key", b"digest", first)
        assert (claim.node, claim.offered) == (GATEWAYS, first.id)
        claim = await other.accept_with_key("moss", "key", b"another", second)
        assert (claim.digest, claim.offered) == (b"digest", first.id)
        assert await one.find("moss", second.id) is None
        of_a_request = Claim(b"", "a7c2", new_id("a7c2"))
        assert (await Claims(commits).claim("moss", "key", of_a_request)).offered == first.id
        await Claims(commits).claim("moss", "older", of_a_request)
        claim = await one.accept_with_key("moss", "older", b"digest", second)
        assert claim.node == "a7c2"
        assert await one.find("moss", second.id) is None
        assert (await one.waits("moss", 10, 10)).programs == 1


@ran
async def test_results_are_kept_for_their_time(url: str) -> None:
    async with _two(url) as (one, _):
        ended, waits = _wanted(), _wanted()
        for each in (ended, waits):
            await one.accept("moss", each)
        await one.cancel("moss", ended.id, "{}", NOTICE)
        assert await one.sweep(60.0) == 0
        assert await one.sweep(0.0) == 1
        assert await one.find("moss", ended.id) is None
        assert await one.find("moss", waits.id) is not None


@ran
async def test_a_notice_is_one_gateways_until_it_is_due_again(url: str) -> None:
    async with _two(url) as (one, _), committing(url) as commits:
        wanted = _wanted("https://hooks.example.com/")
        await one.accept("moss", wanted)
        await one.cancel("moss", wanted.id, "{}", NOTICE)
        rows = NoticeRows(commits)
        (notice,) = await rows.due(4, 16, 30.0)
        assert await rows.due(4, 16, 30.0) == []
        await rows.again(notice, 0.0)
        (second,) = await rows.due(4, 16, 0.0)
        assert second.tries == 2
        await rows.over(notice)  # of an attempt that is over
        (third,) = await rows.due(4, 16, 30.0)
        await rows.over(third)
        assert await rows.due(4, 16, 0.0) == []
        assert json.loads(notice.body) == {"type": "execution.ended"}


@ran
async def test_large_bodies_share_no_long_commit_and_hold_no_small_need_up(url: str) -> None:
    async with committing(url) as commits:
        programs = Programs(commits, "one")

        def accept(size: int) -> asyncio.Task[None]:
            wanted = Accepted(new_id(GATEWAYS), "{}", bytes(size), "{}", "")
            return asyncio.get_running_loop().create_task(programs.accept("moss", wanted))

        large = [accept(5 << 20) for _ in range(3)]
        parts = [accept(1 << 20) for _ in range(8)]
        before = commits.commits
        await asyncio.get_running_loop().create_task(programs.waits("moss", 99, 9))  # the last
        assert not any(each.done() for each in large)
        await asyncio.gather(*large, *parts)
        assert commits.commits - before == 5  # four parts twice, and each large one alone
        taken = await programs.take(99, [])
        assert sorted(each.body_bytes >> 20 for each in taken) == [1] * 8 + [5] * 3
        before = commits.commits
        read = [programs.body(each.tenant, each.id, each.body_bytes) for each in taken]
        assert [len(each or b"") for each in await asyncio.gather(*read)] == [
            each.body_bytes for each in taken
        ]
        assert commits.commits - before == 5


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "together"])
def test_a_large_body_on_a_slow_way_ends_no_connection(postgres: Postgres, is_apart: bool) -> None:
    """Where it has no connection of its own, the one of all requests ends after two seconds."""
    owner = postgres.database()
    asyncio.run(_slow_for_large_bodies(owner))
    asyncio.run(_accepted_slowly(as_role(owner), is_apart=is_apart))


async def _slow_for_large_bodies(owner: str) -> None:
    import asyncpg

    await init(owner, ROLE)
    connection = await asyncpg.connect(check_url(owner))
    await connection.execute(
        f"""
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
  IF octet_length(NEW.body) > {LARGE_BYTES} THEN PERFORM pg_sleep(3); END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER slow BEFORE INSERT ON directory.programs FOR EACH ROW EXECUTE FUNCTION slow();
"""
    )
    await connection.close()


async def _accepted_slowly(url: str, *, is_apart: bool) -> None:
    async with committing(url) as commits, committing(url, most_s=10.0) as bodies:
        programs = Programs(commits, "one", bodies if is_apart else None)
        large = Accepted(new_id(GATEWAYS), "{}", bytes(LARGE_BYTES + 1), "{}", "")
        accepted = asyncio.get_running_loop().create_task(programs.accept("moss", large))
        if not is_apart:
            with pytest.raises(StoreBusy):
                await accepted
            return
        small = _wanted()
        await programs.accept("moss", small)
        assert not accepted.done()
        await accepted
        assert await programs.find("moss", large.id) is not None
        assert await programs.find("moss", small.id) is not None
