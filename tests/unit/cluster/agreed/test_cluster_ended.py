"""Rows of the directory end by the rule of their table, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cellwall.cluster.directory.ended import Ended
from cellwall.cluster.directory.grants import Amount, Grants
from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.places import PlaceRows
from cellwall.cluster.directory.shares import Shares
from cellwall.cluster.gateway.agreed.places import AgreedPlaces
from cellwall.cluster.gateway.agreed.upkeep import Leftovers
from cellwall.cluster.gateway.data.finder import Finder
from cellwall.engine.scheduling.quotas import Tenants
from kit.cluster.directories import committing, directory, name_of
from kit.cluster.tiny_nodes import nodes
from kit.postgres_server import Postgres

NODES = (
    "INSERT INTO directory.nodes (name, address, heard_at, lost_at) VALUES "
    "('live', '', now(), NULL), ('lost', '', now(), now()), "
    "('gone', '', now(), now() - interval '31 days'), "
    "('past', '', now(), now() - interval '91 days');"
)
EACH = "('live'), ('lost'), ('gone'), ('past')"
PLACES = (
    f"INSERT INTO directory.places SELECT 'moss', 'volume:' || n, n, 0, now() "
    f"FROM (VALUES {EACH}) AS v (n);"
)
GRANTS = f"INSERT INTO directory.grants SELECT 'moss', n, 1, 0, 0 FROM (VALUES {EACH}) AS v (n);"
GATEWAYS = (
    "INSERT INTO directory.gateways VALUES ('here', '', now()), ('silent', '', now() - "
    "interval '23 hours'), ('dead', '', now() - interval '25 hours');"
)
TENANTS = (
    "INSERT INTO directory.tenants (tenant, sandboxes, running, change) VALUES ('none', 0, 0, 7), "
    "('some', 1, 0, 0), ('runs', 0, 1, 0), ('moss', 0, 0, 7);"
)


def _with(url: str, work: Callable[[GroupCommit], Awaitable[None]]) -> None:
    async def run() -> None:
        async with committing(url) as commits:
            await work(commits)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("table", "key", "left"),
    [
        ("grants", "node", {"live"}),
        ("places", "node", {"live", "lost"}),
        ("nodes", "name", {"live", "lost", "gone"}),
        ("gateways", "name", {"here", "silent"}),
        ("tenants", "tenant", {"some", "runs", "moss"}),
    ],
)
def test_row_ends_by_the_rule_of_its_table(
    postgres: Postgres, table: str, key: str, left: set[str]
) -> None:
    url = directory(postgres)
    postgres.sql(NODES + PLACES + GRANTS + GATEWAYS + TENANTS, name_of(url))

    async def work(commits: GroupCommit) -> None:
        assert await getattr(Ended(commits), table)() > 0
        assert await getattr(Ended(commits), table)() == 0

    _with(url, work)
    shown = postgres.sql(f"SELECT {key} FROM directory.{table}", name_of(url))
    assert set(shown.split()) == left


def test_share_that_no_gateway_renews_is_given_back(postgres: Postgres) -> None:
    url = directory(postgres)

    async def work(commits: GroupCommit) -> None:
        ended, shares = Ended(commits), Shares(commits)
        assert await shares.take("moss", 1)
        assert await ended.with_old_leases() == []
        ago = "UPDATE directory.shares SET until = now() - interval '1 second'"
        await asyncio.to_thread(postgres.sql, ago, name_of(url))
        assert await ended.with_old_leases() == ["moss"]
        assert await shares.reap("moss")
        assert await ended.with_old_leases() == []
        assert await ended.tenants() == 1

    _with(url, work)


def test_sandbox_that_is_counted_for_an_hour_is_looked_after(postgres: Postgres) -> None:
    url = directory(postgres)
    for name, minutes in (("old", 61), ("new", 59)):
        made = f"VALUES ('{name}', '{name}', 'live', now() - interval '{minutes} minutes')"
        postgres.sql(f"INSERT INTO directory.sandboxes {made}", name_of(url))

    async def work(commits: GroupCommit) -> None:
        assert await Ended(commits).with_old_sandboxes(9) == ["old"]

    _with(url, work)


def test_grant_is_written_only_as_the_next_change(postgres: Postgres) -> None:
    url = directory(postgres)

    async def work(commits: GroupCommit) -> None:
        grants, much = Grants(commits), Amount(512, 1500, 0)
        assert await grants.of("moss") == (0, {})
        first = await grants.write("moss", "n1", much, 0)
        assert first > 0
        assert await grants.write("moss", "n2", much, 0) == 0  # there was a change since
        assert await grants.of("moss") == (first, {"n1": much})
        both = await asyncio.gather(
            *(grants.write("moss", name, much, first) for name in ("n2", "n3"))
        )
        assert sorted(each > first for each in both) == [False, True]
        latest = (await grants.of("moss")).change
        none = await grants.write("moss", "n1", Amount(), latest)
        assert none > latest
        assert "n1" not in (await grants.of("moss")).nodes
        # A row that was removed begins again with a larger number.
        await asyncio.to_thread(postgres.sql, "DELETE FROM directory.tenants", name_of(url))
        assert await grants.write("moss", "n1", much, none) == 0
        assert await grants.write("moss", "n1", much, 0) > none

    _with(url, work)


def test_name_of_a_build_that_failed_is_free_after_a_day(postgres: Postgres) -> None:
    url = directory(postgres)
    things = {"template:failed": "1 day", "template:built": "1 day", "template:begun": "23 hours",
              "volume:none": "1 day", "volume:data": "1 day", "template:lost": "1 day"}  # fmt: skip
    for thing, ago in things.items():
        node = "cccc" if thing.endswith("lost") else "aaaa"
        row = f"('moss', '{thing}', '{node}', 3, now() - interval '{ago}')"
        postgres.sql(f"INSERT INTO directory.places VALUES {row}", name_of(url))
    has = {"/volumes/data": {"name": "data"}, "/templates": {"own": [{"name": "built:1"}]}}

    async def work(commits: GroupCommit) -> None:
        rows = PlaceRows(commits)
        async with nodes({"aaaa": has, "bbbb": {"/templates": {"own": []}}}) as book:
            book.bury("cccc", "it did not answer")
            await Leftovers(rows, Finder(book, AgreedPlaces(rows)), Tenants()).round()

    _with(url, work)
    shown = postgres.sql("SELECT thing FROM directory.places", name_of(url))
    assert set(shown.split()) == things.keys() - {"template:failed", "volume:none"}
