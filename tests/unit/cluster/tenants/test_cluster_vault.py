"""Secrets in a real directory: sealed, bound to what they are for, and always the latest."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

import pytest

from cellwall.cluster.directory.secrets import MOST, Secrets, Shown
from cellwall.cluster.gateway.tenants.vault import Vault
from cellwall.model.errors import CapacityError, Conflict, NotFound, UsageError
from cellwall.model.secret import Secret
from cellwall.server.secrets.sealing import Seal
from kit.cluster.directories import committing, directory, name_of
from kit.postgres_server import Postgres

VALUE = "sk-proj-valueThatNoDatabaseSees4711"
SEAL = Seal(secrets.token_bytes(32))


@pytest.fixture
def url(postgres: Postgres) -> str:
    return directory(postgres)


@contextlib.asynccontextmanager
async def _kept(url: str) -> AsyncIterator[Secrets]:
    async with committing(url) as commits:
        yield Secrets(commits)


def _secret(value: str = VALUE, name: str = "KEY") -> Secret:
    return Secret(name, value, hosts=["a.test"], places=["basic"])


def test_value_goes_in_sealed_and_comes_out_for_its_tenant_alone(
    url: str, postgres: Postgres
) -> None:
    async def run() -> None:
        async with _kept(url) as kept:
            first, second = Vault(kept, SEAL), Vault(kept, SEAL)
            await first.put("moss", _secret("the-value-of-before"))
            shown = await first.put("moss", _secret())
            assert await second.names("moss") == [shown]
            assert VALUE not in str(shown)
            facts = {"hosts": ["a.test:443"], "places": ["basic"]}
            found = await second.find("moss", ["KEY"])
            assert found == [{"name": "KEY", "value": VALUE, **facts}]
            with pytest.raises(NotFound):
                await second.find("fern", ["KEY"])
            dump = "SELECT encode(sealed, 'escape'), s FROM directory.secrets AS s"
            text = await asyncio.to_thread(postgres.sql, dump, name_of(url))
            assert VALUE not in text
            assert "a.test:443" in text  # the control
            await second.remove("moss", "KEY")
            for again in (first.find("moss", ["KEY"]), second.remove("moss", "KEY")):
                with pytest.raises(NotFound):
                    await again

    asyncio.run(run())


def test_without_the_key_or_with_another_there_is_no_value(url: str, postgres: Postgres) -> None:
    async def run() -> None:
        async with _kept(url) as kept:
            vault = Vault(kept, SEAL)
            await vault.put("moss", _secret())
            for refused in (Vault(kept, None).find("moss", ["KEY"]),):
                with pytest.raises(Conflict, match="no key"):
                    await refused
            with pytest.raises(Conflict, match="no key"):
                await Vault(kept, None).put("moss", _secret())
            with pytest.raises(UsageError, match="another key"):
                await Vault(kept, Seal(bytes(32))).find("moss", ["KEY"])
            moved = "UPDATE directory.secrets SET facts = replace(facts, 'a.test', 'b.test')"
            await asyncio.to_thread(postgres.sql, moved, name_of(url))
            with pytest.raises(UsageError, match="changed"):
                await vault.find("moss", ["KEY"])

    asyncio.run(run())


def test_tenant_has_so_many_and_may_change_them(url: str, postgres: Postgres) -> None:
    fill = (
        "INSERT INTO directory.secrets SELECT 'moss', 'S' || n, '{}', '', clock_timestamp() "
        f"FROM generate_series(1, {MOST - 1}) AS n"
    )

    async def run() -> None:
        async with _kept(url) as kept:
            vault = Vault(kept, SEAL)
            await asyncio.to_thread(postgres.sql, fill, name_of(url))
            await vault.put("moss", _secret())
            with pytest.raises(UsageError, match=str(MOST)):
                await vault.put("moss", _secret(name="ONE_MORE"))
            await vault.put("moss", _secret("another-value"))
            await vault.put("fern", _secret())

    asyncio.run(run())


class Slow(Secrets):
    """Lists that take until they are let go."""

    def __init__(self) -> None:
        """Without a directory."""
        self.go = asyncio.Event()

    async def shown(self, tenant: str) -> list[Shown]:
        await self.go.wait()
        return []


def test_tenant_has_so_many_lists_under_way_and_another_has_its_own() -> None:
    async def run() -> None:
        slow = Slow()
        vault = Vault(slow, None)
        lists = [asyncio.ensure_future(vault.names(each)) for each in ["moss"] * 4 + ["fern"]]
        await asyncio.sleep(0)
        with pytest.raises(CapacityError, match="under way"):
            await vault.names("moss")
        slow.go.set()
        assert await asyncio.gather(*lists) == [[]] * 5
        assert await vault.names("moss") == []

    asyncio.run(run())
