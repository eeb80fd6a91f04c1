"""Upkeep beside requests: what takes long there holds none of them up."""

from __future__ import annotations

import asyncio

import pytest

from cellwall.apps.cluster import directory as composed
from cellwall.cluster.directory.connection import connected
from cellwall.cluster.gateway.book import Book
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.settings import GatewaySettings
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of
from cellwall.server.core.settings import ServerSettings
from kit.cluster.directories import ROLE, directory, name_of
from kit.postgres_server import Postgres

SLOW = f"""
INSERT INTO directory.sandboxes VALUES ('old', 'moss', 'aaaa', now() - interval '2 hours');
ALTER TABLE directory.sandboxes RENAME TO kept;
CREATE VIEW directory.sandboxes AS SELECT * FROM directory.kept WHERE pg_sleep(4) IS NOT NULL;
GRANT SELECT ON directory.sandboxes TO {ROLE};
"""
AGREE = "directory: it answers; gateways agree on losses"
SLEEPS = """
SELECT count(*) > 0 FROM pg_stat_activity
WHERE wait_event = 'PgSleep' AND datname = current_database()
"""


@pytest.mark.timeout(60)
def test_long_round_of_upkeep_comes_to_its_end_and_refuses_no_request(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = directory(postgres)
    postgres.sql(SLOW, name_of(url))
    monkeypatch.setattr(composed, "_SWEEP_S", 0.1)
    settings = GatewaySettings(
        ("h:1",), authority="a", certificate="c", key="k", directory=url, name="g1"
    )

    async def run() -> None:
        book, over = Book(settings.lost_after_s), asyncio.Event()
        server, ring = ServerSettings(), KeyRing([KeyRecord(digest_of("k" * 43), "alice", "admin")])
        gateway, watch = Gateway(server, ring, book), await connected(url)
        async with composed.agreeing(settings, server, gateway, over):
            async with asyncio.timeout(20):
                while not await watch.fetchval(SLEEPS):
                    pass
            assert gateway.data is not None
            assert await gateway.data.finder.places.find("moss", "volume:data") is None
            assert await watch.fetchval(SLEEPS)  # it was answered meanwhile
            while await watch.fetchval(SLEEPS):
                pass
            assert [each for each in caplog.messages if each.startswith("directory:")] == [AGREE]
            await gateway.tasks.cancel()
        await watch.close()

    asyncio.run(run())
