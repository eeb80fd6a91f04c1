"""Ten thousand keys in a real directory: a change of one is read as one, and old ones end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from cellwall.cluster.directory.ended import Ended
from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.keys import Kept, Keys, Version
from cellwall.cluster.gateway.tenants.key_book import KeyBook
from cellwall.server.auth.key_facts import fresh
from cellwall.server.auth.keys import KeyRing
from kit.cluster.directories import committing, directory, name_of
from kit.postgres_server import Postgres

MANY = 10_000
FILL = f"""
WITH next AS (UPDATE directory.changes SET number = number + {MANY} WHERE what = 'keys')
INSERT INTO directory.keys (id, digest, tenant, scope, made_at, change)
SELECT substr(digest, 1, 12), digest, 'moss', 'run', clock_timestamp(), number
FROM (SELECT number, encode(sha256(number::text::bytea), 'hex') AS digest
      FROM generate_series(1, {MANY}) AS number) AS made
"""


class Counted(Keys):
    """Keys whose rows are counted as they are read."""

    rows = 0

    def __init__(self, commits: GroupCommit) -> None:
        super().__init__(commits)
        self.commits = commits

    async def all(self) -> tuple[Version, list[Kept]]:
        found = await super().all()
        self.rows += len(found[1])
        return found

    async def since(self, known: Version) -> tuple[Version, list[Kept]] | None:
        found = await super().since(known)
        self.rows += 0 if found is None else len(found[1])
        return found


@contextlib.asynccontextmanager
async def _book(url: str) -> AsyncIterator[tuple[Counted, KeyBook, KeyRing]]:
    ring = KeyRing()
    async with committing(url) as commits:
        kept = Counted(commits)
        yield kept, KeyBook(kept, ring, lambda: None), ring


def test_change_of_one_key_reads_that_key_and_no_other(postgres: Postgres) -> None:
    url = directory(postgres)
    postgres.sql(FILL, name_of(url))

    async def run() -> None:
        async with _book(url) as (kept, book, ring), _book(url) as (_, other, _ring):
            await book.begin()
            await other.begin()
            assert (kept.rows, len(ring.accepted())) == (MANY, MANY)
            kept.rows = 0
            made = await other.create(fresh("moss", "run", None, None))
            await book.follow()
            assert (kept.rows, ring.find(made["key"]) is not None) == (1, True)
            await other.revoke(made["id"])
            await other.revoke(next(iter(ring.accepted() - {made["id"]})))
            await book.follow()
            assert kept.rows == 3
            assert (ring.find(made["key"]), len(ring.accepted())) == (None, MANY - 1)
            # The control: what cannot be told to follow on what was read is read whole.
            back = "UPDATE directory.keys SET change = 0"
            await asyncio.to_thread(postgres.sql, back, name_of(url))
            await book.follow()
            assert kept.rows == MANY + 4

    asyncio.run(run())


@pytest.mark.parametrize("column", ["expires_at", "revoked_at"])
def test_key_that_ended_long_ago_is_removed(postgres: Postgres, column: str) -> None:
    url = directory(postgres)

    async def run() -> None:
        async with _book(url) as (kept, book, _ring):
            ids = [(await book.create(fresh("moss", "run", None, None)))["id"] for _ in range(3)]
            for key_id, days in zip(ids, (31, 29), strict=False):
                ago = f"UPDATE directory.keys SET {column} = now() - interval '{days} days'"
                await asyncio.to_thread(postgres.sql, f"{ago} WHERE id = '{key_id}'", name_of(url))
            assert await Ended(kept.commits).keys(30) == 1
            assert [each.digest[:12] for each in (await kept.all())[1]] == ids[1:]

    asyncio.run(run())
