"""The directory in a real PostgreSQL: its role, its commits, claims, and losses."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from cellwall.cluster import directory as package
from cellwall.cluster.directory import schema
from cellwall.cluster.directory.claims import Claim, Claims
from cellwall.cluster.directory.connection import check_url, connected, shown
from cellwall.cluster.directory.group_commit import Statement
from cellwall.cluster.directory.keys import Keys
from cellwall.cluster.directory.roll import NameTaken, Roll
from cellwall.cluster.directory.schema import VERSION, check_version, init
from cellwall.cluster.directory.sums import Sums
from cellwall.cluster.gateway.agreed.losses import Losses
from cellwall.cluster.gateway.book import Book, Node
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.model.errors import UsageError
from cellwall.store.records.errors import StoreBroken, StoreBusy
from kit.cluster.directories import ROLE, as_role, committing, directory, name_of, stop
from kit.postgres_server import Postgres, another

LOST_AFTER_S = 0.3


@pytest.fixture
def url(postgres: Postgres) -> str:
    return directory(postgres)


@pytest.fixture(scope="module")
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may crash; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


async def _is_refused(url: str, statement: str) -> bool:
    import asyncpg

    connection = await connected(url)
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    finally:
        await connection.close()
    return False


def test_statements_have_one_order() -> None:
    """Each has a place of its own, so that transactions of all gateways lock rows alike."""
    names = [each.name for each in iter_modules(package.__path__, f"{package.__name__}.")]
    values = [each for name in names for each in vars(import_module(name)).values()]
    found = {each for each in values if isinstance(each, Statement)}
    orders = [each.order for each in found]
    assert len(orders) > 40
    assert sorted(orders) == sorted(set(orders))


# -- its tables and role ----------------------------------------------------------------------


def test_role_of_gateways_changes_rows_and_nothing_else(postgres: Postgres) -> None:
    owner = postgres.database()
    assert asyncio.run(init(owner, "first_gateways"))
    assert not asyncio.run(init(owner, "first_gateways"))  # again: nothing is new
    postgres.sql(
        "CREATE SCHEMA other; CREATE TABLE other.secret (word text); "
        "CREATE TABLE public.plain (word text)",
        name_of(owner),
    )
    url = as_role(owner).replace(ROLE, "first_gateways")
    forbidden = (
        "CREATE TABLE directory.mine (word text)",
        "CREATE TABLE public.mine (word text)",
        "CREATE TEMPORARY TABLE mine (word text)",
        "CREATE SCHEMA mine",
        "DROP TABLE directory.replays",
        "DROP SCHEMA directory CASCADE",
        "ALTER TABLE directory.nodes ADD COLUMN more text",
        "TRUNCATE directory.nodes",
        "SELECT * FROM other.secret",
        "SELECT * FROM public.plain",
        "UPDATE directory.version SET number = 7",
        "CREATE ROLE mine",
    )
    for statement in forbidden:
        assert asyncio.run(_is_refused(url, statement)), statement
    tables = ("gateways", "nodes", "replays", "tenants", "sandboxes", "shares")
    for table in (*tables, "keys", "changes", "secrets", "programs", "hands", "notices"):
        for statement in (f"SELECT * FROM directory.{table}", f"DELETE FROM directory.{table}"):
            assert not asyncio.run(_is_refused(url, statement)), statement
    # The control: the owner may do what the role may not.
    assert not asyncio.run(_is_refused(owner, forbidden[1]))


def test_tables_of_the_first_version_become_the_newest_and_keep_their_rows(
    postgres: Postgres,
) -> None:
    owner = postgres.database()
    first = Path(schema.__file__).with_name("v0001.sql").read_text(encoding="utf-8")
    row = "INSERT INTO directory.replays VALUES ('t', 'k', '', 'aaaa', 'o1', 0, clock_timestamp())"
    postgres.sql(f"{first}; {row}", name_of(owner))
    asyncio.run(init(owner, ROLE))

    async def run() -> None:
        async with committing(as_role(owner)) as commits:
            again = await Claims(commits).claim("t", "k", Claim(b"", "bbbb", "o2"))
            assert again == Claim(b"", "aaaa", "o1")
            assert await Keys(commits).all() == ((0, None), [])

    asyncio.run(run())


def test_database_with_tables_of_others_is_refused(postgres: Postgres) -> None:
    owner = postgres.database()
    postgres.sql("CREATE TABLE theirs (x int)", name_of(owner))
    with pytest.raises(UsageError, match=r"public\.theirs"):
        asyncio.run(init(owner, ROLE))


@pytest.mark.parametrize("role", ["cellwall", "A", 'x"; DROP', ""])
def test_role_with_powers_or_without_a_form_is_refused(postgres: Postgres, role: str) -> None:
    with pytest.raises(UsageError, match="role"):
        asyncio.run(init(postgres.database(), role))


def test_tables_of_another_version_are_refused_with_the_remedy(postgres: Postgres) -> None:
    owner = postgres.database()

    async def check() -> None:
        connection = await connected(owner)
        try:
            await check_version(connection, "x")
        finally:
            await connection.close()

    with pytest.raises(StoreBroken, match="not there") as none:
        asyncio.run(check())
    assert "cluster directory init" in str(none.value.remedy)
    asyncio.run(init(owner, ROLE))
    asyncio.run(check())
    name = name_of(owner)
    postgres.sql(f"UPDATE directory.version SET number = {VERSION + 1}", name)
    with pytest.raises(StoreBroken, match="does not know"):
        asyncio.run(check())
    with pytest.raises(StoreBroken, match="does not know"):
        asyncio.run(init(owner, ROLE))


def test_address_is_checked_and_shown_without_its_password() -> None:
    assert check_url("postgresql+asyncpg://a@/b?host=/c") == "postgresql://a@/b?host=/c"
    for url in ("", "sqlite:////x", "db.example"):
        with pytest.raises(UsageError, match="no address"):
            check_url(url)
    assert shown("postgresql://a:secret@db:5/b") == "postgresql://a@db:5/b"


def test_server_that_is_away_is_busy_and_a_wrong_database_is_not(url: str) -> None:
    with pytest.raises(StoreBusy):
        asyncio.run(connected("postgresql://x@127.0.0.1:1/x"))
    with pytest.raises(StoreBroken, match="does not exist"):
        asyncio.run(connected(url.replace("/test", "/nowhere")))


# -- group commit ------------------------------------------------------------------------------


def test_needs_of_many_are_few_commits(url: str) -> None:
    async def run() -> None:
        async with committing(url) as commits:
            claims, before = Claims(commits), commits.commits

            async def one(number: int) -> Claim:
                return await claims.claim("t", f"k{number}", Claim(b"", "aaaa", f"o{number}"))

            found = await asyncio.gather(*(one(number) for number in range(400)))
            assert [each.offered for each in found] == [f"o{number}" for number in range(400)]
            assert commits.commits - before <= 8

    asyncio.run(run())


def test_need_that_cannot_be_met_fails_alone(url: str) -> None:
    async def run() -> None:
        async with committing(url) as commits:
            claims = Claims(commits)
            good = [claims.claim("t", f"k{n}", Claim(b"", "aaaa", f"o{n}")) for n in range(5)]
            bad = claims.claim("t", "k\0", Claim(b"", "aaaa", "o"))
            *found, failed = await asyncio.gather(*good, bad, return_exceptions=True)
            assert [each.offered for each in found if isinstance(each, Claim)] == [
                f"o{n}" for n in range(5)
            ]
            assert isinstance(failed, StoreBroken)

    asyncio.run(run())


@pytest.mark.timeout(60)
def test_row_that_another_holds_delays_no_others(url: str) -> None:
    async def run() -> None:
        holder = await connected(url)
        async with committing(url) as commits:
            sums = Sums(commits)
            assert await sums.reserve("held", "first", "aaaa", 99)
            await holder.execute("BEGIN; UPDATE directory.tenants SET running = 0")
            asked = [sums.reserve("held", f"h{number}", "aaaa", 99) for number in range(20)]
            asked += [sums.reserve("t", f"t{number}", "aaaa", 99) for number in range(20)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in found[:20]] == [StoreBusy] * 20
            assert found[20:] == [True] * 20
            await holder.execute("ROLLBACK")
            assert await sums.reserve("held", "h0", "aaaa", 99)
        await holder.close()

    asyncio.run(run())


def test_server_that_only_reads_is_away_and_its_connection_is_replaced(
    url: str, postgres: Postgres
) -> None:
    reads = f"ALTER DATABASE {name_of(url)} SET default_transaction_read_only = "

    async def run() -> None:
        await asyncio.to_thread(postgres.sql, f"{reads} on")
        async with committing(url) as commits:
            claims, wanted = Claims(commits), Claim(b"", "aaaa", "o")
            with pytest.raises(StoreBusy):
                await claims.claim("t", "k", wanted)
            await asyncio.to_thread(postgres.sql, f"{reads} off")
            async with asyncio.timeout(10):
                await commits.wait_there()
                assert await claims.claim("t", "k", wanted) == wanted

    asyncio.run(run())


@pytest.mark.timeout(120)
def test_crash_of_the_server_refuses_at_once_and_what_was_answered_stays(own: Postgres) -> None:
    url = directory(own)

    async def run() -> None:
        async with committing(url) as commits:
            claims = Claims(commits)
            for round_ in range(3):
                kept = Claim(b"d", "aaaa", f"o{round_}")
                assert await claims.claim("t", f"k{round_}", kept) == kept
                await asyncio.to_thread(own.stop, signal.SIGQUIT)
                with pytest.raises(StoreBusy):
                    await claims.claim("t", "other", Claim(b"", "aaaa", "o"))
                own.start()
                await commits.wait_there()
                for number in range(round_ + 1):
                    again = await claims.claim("t", f"k{number}", Claim(b"", "bbbb", "new"))
                    assert again == Claim(b"d", "aaaa", f"o{number}")

    asyncio.run(run())


_WAITS = """
SELECT count(*) > 0 FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND application_name = 'cellwall-gateway'
"""


@contextlib.asynccontextmanager
async def _stopped(server: Postgres, url: str, lock: str) -> AsyncIterator[None]:
    """Stop a server while a transaction of the block waits for the row that `lock` locks."""
    watch, holder = await connected(url), await connected(url)

    async def stop_it() -> None:
        while not await watch.fetchval(_WAITS):
            pass
        stop(server, signal.SIGSTOP)

    try:
        await holder.execute(f"BEGIN; {lock}")
        stopping = asyncio.get_running_loop().create_task(stop_it())
        try:
            yield
            assert stopping.done()  # the block was answered while the server stood still
            await stopping
        finally:
            stopping.cancel()
            stop(server, signal.SIGCONT)
    finally:
        for each in (watch, holder):
            each.terminate()


@pytest.mark.timeout(60)
def test_server_that_stops_within_a_transaction_is_away_in_time(own: Postgres) -> None:
    url = directory(own)

    async def run() -> None:
        async with committing(url) as commits:
            claims, sums = Claims(commits), Sums(commits)
            assert await sums.reserve("t", "s1", "aaaa", 9)
            async with _stopped(own, url, "UPDATE directory.tenants SET running = 0"):
                async with asyncio.timeout(10):
                    failed = await asyncio.gather(
                        claims.claim("t", "k", Claim(b"", "aaaa", "o")),
                        sums.reserve("t", "s2", "aaaa", 9),  # another kind: a transaction
                        return_exceptions=True,
                    )
                assert [type(each) for each in failed] == [StoreBusy, StoreBusy]
                with pytest.raises(StoreBusy):
                    await sums.of("t")
            async with asyncio.timeout(10):
                await commits.wait_there()
                assert await sums.reserve("t", "s2", "aaaa", 9)

    asyncio.run(run())


@pytest.mark.timeout(60)
def test_server_that_stops_while_a_gateway_notes_is_away_in_time(own: Postgres) -> None:
    url = directory(own)
    lock = "UPDATE directory.gateways SET seen_at = seen_at"

    async def run() -> None:
        book = Book(5.0, [Node(Links(Address("127.0.0.1", 1), None))])
        roll = _roll(url, "g1")
        losses = Losses(book, roll, 2.0, 0.1)
        assert await losses.agree()
        async with _stopped(own, url, lock), asyncio.timeout(10):
            assert not await losses.agree()
            assert book.is_alone
        assert await losses.agree()
        async with _stopped(own, url, lock), asyncio.timeout(10):
            await roll.leave()

    asyncio.run(run())


# -- claims ------------------------------------------------------------------------------------


def test_key_is_claimed_once_over_two_gateways(url: str) -> None:
    async def run() -> None:
        async with committing(url) as first, committing(url) as second:
            for number in range(50):
                key = f"k{number}"
                asked = [
                    Claims(commits).claim("t", key, Claim(b"", node, f"{node}{number}{turn}"))
                    for turn in range(3)
                    for commits, node in ((first, "aaaa"), (second, "bbbb"))
                ]
                assert len(set(await asyncio.gather(*asked))) == 1
            other = await Claims(first).claim("u", "k0", Claim(b"", "cccc", "o"))
            assert other.node == "cccc"  # another tenant's key is another

    asyncio.run(run())


def test_claim_is_given_up_only_if_nothing_can_begin_under_it(url: str) -> None:
    async def run() -> None:
        async with committing(url) as commits:
            claims = Claims(commits)
            first = Claim(b"", "aaaa", "o1")
            assert await claims.claim("t", "k", first) == first
            assert not await claims.release("t", "k", "other", is_settled=True)
            assert await claims.release("t", "k", "o1", is_settled=False)
            second = Claim(b"", "bbbb", "o2")
            assert await claims.claim("t", "k", second) == second
            assert await claims.claim("t", "k", first) == second  # a repeat
            assert not await claims.release("t", "k", "o2", is_settled=False)
            assert await claims.release("t", "k", "o2", is_settled=True)
            assert await claims.claim("t", "k", first) == first

    asyncio.run(run())


def test_claim_is_over_after_a_day(url: str, postgres: Postgres) -> None:
    age = "UPDATE directory.replays SET made_at = made_at - interval '24 hours'"

    async def run() -> None:
        async with committing(url) as commits:
            claims = Claims(commits)
            await claims.claim("t", "k", Claim(b"", "aaaa", "o1"))
            await claims.claim("t", "kept", Claim(b"", "aaaa", "o3"))
            assert await claims.sweep() == 0
            await asyncio.to_thread(postgres.sql, f"{age} WHERE key = 'k'", name_of(url))
            second = Claim(b"", "bbbb", "o2")
            assert await claims.claim("t", "k", second) == second
            await asyncio.to_thread(postgres.sql, f"{age} WHERE key = 'k'", name_of(url))
            assert await claims.sweep() == 1
            kept = await claims.claim("t", "kept", second)
            assert (kept.offered, kept.age_s < 60) == ("o3", True)
            hour = "UPDATE directory.replays SET made_at = made_at - interval '1 hour'"
            await asyncio.to_thread(postgres.sql, hour, name_of(url))
            kept = await claims.claim("t", "kept", second)
            assert (kept.offered, kept.age_s > 3600) == ("o3", True)

    asyncio.run(run())


# -- sums --------------------------------------------------------------------------------------


def test_sandboxes_are_counted_once_and_never_beyond_the_quota(url: str) -> None:
    async def run() -> None:
        async with committing(url) as first, committing(url) as second:
            both = Sums(first), Sums(second)
            asked = [both[n % 2].reserve("t", f"s{n}", "aaaa", 20) for n in range(60)]
            found = await asyncio.gather(*asked)
            assert found.count(True) == 20
            rows = await both[0].of("t")
            assert {row.id for row in rows} == {f"s{n}" for n in range(60) if found[n]}
            known = rows[0].id
            assert await both[1].reserve("t", known, "aaaa", 20)  # it is counted already
            await both[0].give_back("u", known)  # another tenant's word counts nothing
            assert not await both[1].reserve("t", "more", "aaaa", 20)
            for _ in range(2):  # twice is once
                await both[0].give_back("t", known)
            # One id at both in the same moment is counted once; asked again, both have it.
            assert any(await asyncio.gather(*(e.reserve("t", "more", "aaaa", 20) for e in both)))
            for each in both:
                assert await each.reserve("t", "more", "aaaa", 20)
            assert not await both[1].reserve("t", "another", "aaaa", 20)
            await both[0].adopt("t", "copy", "aaaa")  # there it is, whatever the quota
            await both[0].adopt("t", "copy", "aaaa")
            await both[0].give_back("t", "more")
            assert not await both[1].reserve("t", "another", "aaaa", 20)
            await both[0].give_back("t", "copy")
            assert await both[1].reserve("t", "another", "aaaa", 20)

    asyncio.run(run())


def test_sandboxes_of_a_lost_node_are_given_back_with_its_loss(url: str) -> None:
    async def run() -> None:
        async with committing(url) as commits:
            sums, roll = Sums(commits), _roll(url, "g1")
            await roll.note([("aaaa", "h:1"), ("bbbb", "h:2")])
            for number, node in enumerate(("aaaa", "aaaa", "bbbb")):
                assert await sums.reserve("t", f"s{number}", node, 3)
            assert not await sums.reserve("t", "more", "bbbb", 3)
            await _overdue(roll, "aaaa")
            assert await roll.declare("aaaa") == ""
            assert [row.node for row in await sums.of("t")] == ["bbbb"]
            assert await sums.reserve("t", "more", "bbbb", 3)
            assert await sums.reserve("t", "last", "bbbb", 3)
            assert not await sums.reserve("t", "one", "bbbb", 3)
            await roll.leave()

    asyncio.run(run())


def test_loss_of_a_node_locks_tenants_in_their_order(url: str) -> None:
    held = "SELECT running FROM directory.tenants WHERE tenant = 'a' FOR UPDATE"
    free = "SELECT running FROM directory.tenants WHERE tenant = 'b' FOR UPDATE NOWAIT"

    async def run() -> None:
        holder, watch = await connected(url), await connected(url)
        async with committing(url) as commits:
            sums, roll = Sums(commits), _roll(url, "g1")
            await roll.note([("aaaa", "h:1")])
            for tenant in ("b", "a"):
                assert await sums.reserve(tenant, f"of-{tenant}", "aaaa", 3)
            await _overdue(roll, "aaaa")
            await holder.execute(f"BEGIN; {held}")
            declaring = asyncio.get_running_loop().create_task(roll.declare("aaaa"))
            while not await watch.fetchval(_WAITS):
                pass
            assert await watch.fetchval(free) == 0
            await holder.execute("ROLLBACK")
            assert await declaring == ""
            assert [await sums.of(tenant) for tenant in ("a", "b")] == [[], []]
            await roll.leave()
        for each in (holder, watch):
            await each.close()

    asyncio.run(run())


# -- the roll ----------------------------------------------------------------------------------


def _roll(url: str, name: str, fresh_s: float = 5.0) -> Roll:
    return Roll(url, name, LOST_AFTER_S, fresh_s)


async def _overdue(roll: Roll, name: str) -> None:
    """Wait until nothing has heard a node for too long."""
    async with asyncio.timeout(20):
        while name not in (await roll.note([])).overdue:
            pass


def test_node_is_lost_for_all_once_none_has_heard_it(url: str) -> None:
    async def run() -> None:
        first, second = _roll(url, "g1"), _roll(url, "g2")
        found = await first.note([("aaaa", "h:1"), ("bbbb", "h:2")])
        assert sorted(found.known) == ["aaaa", "bbbb"]
        assert found.lost == {}
        await _overdue(first, "aaaa")
        await second.note([("aaaa", "h:1")])  # another hears it
        assert await first.declare("aaaa") == ""
        assert (await first.note([])).lost == {}
        await _overdue(first, "bbbb")
        await second.note([])
        assert await first.declare("bbbb") == ""
        assert set((await first.note([])).lost) == {"bbbb"}
        assert set((await second.note([("bbbb", "h:2")])).lost) == {"bbbb"}
        later = _roll(url, "g3")
        found = await later.note([])
        assert (sorted(found.lost), sorted(found.known)) == (["bbbb"], ["aaaa"])
        for each in (first, second, later):
            await each.leave()

    asyncio.run(run())


def test_silent_gateway_prevents_a_loss_and_one_that_left_does_not(url: str) -> None:
    async def run() -> None:
        first, silent = _roll(url, "g1", fresh_s=0.2), _roll(url, "g2", fresh_s=0.2)
        await silent.note([("aaaa", "h:1")])
        await _overdue(first, "aaaa")
        assert await first.declare("aaaa") == "g2"
        assert (await first.note([])).lost == {}
        await silent.leave()
        assert await first.declare("aaaa") == ""
        assert set((await first.note([])).lost) == {"aaaa"}
        await first.leave()

    asyncio.run(run())


def test_gateway_hears_that_another_took_its_name(url: str) -> None:
    async def run() -> None:
        first, second = _roll(url, "g1"), _roll(url, "g1")
        await first.note([])
        await second.note([])
        with pytest.raises(NameTaken, match="g1"):
            await first.note([])
        await second.note([])
        for each in (first, second):
            await each.leave()

    asyncio.run(run())
