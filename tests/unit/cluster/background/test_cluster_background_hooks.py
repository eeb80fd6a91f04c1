"""Notices of many tenants at one gateway, in a real PostgreSQL, with receivers that are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cellwall.cluster.directory.notices import NoticeRows
from cellwall.cluster.directory.programs import Accepted, Programs
from cellwall.cluster.gateway.background.hooks import Hooks
from cellwall.model.ids import GATEWAYS, new_id
from cellwall.surface.shared.tasks import Tasks
from kit.cluster.directories import committing, directory
from kit.postgres_server import Postgres
from kit.receivers import Answer, answer, listening

KEY = bytes(range(32))
_LONG_S = 8.0
"""Less than a receiver has for its answer."""


@pytest.fixture
def url(postgres: Postgres) -> str:
    return directory(postgres)


async def _told(programs: Programs, tenant: str, url: str) -> None:
    """Have a notice due."""
    wanted = Accepted(new_id(GATEWAYS), "{}", b"{}", "{}", url)
    await programs.accept(tenant, wanted)
    assert await programs.cancel(tenant, wanted.id, "{}", (new_id(), "{}"))


def _saying(said: Answer, count: int, taken: asyncio.Event) -> Callable[[int], Answer]:
    """Answer each notice alike, and tell of the one with this number."""

    def says(number: int) -> Answer:
        if number == count:
            taken.set()
        return said

    return says


def test_what_is_due_longest_is_taken_first_and_full_tenants_are_left_out(url: str) -> None:
    async def go() -> None:
        async with committing(url) as commits:
            programs, rows = Programs(commits, "one"), NoticeRows(commits)
            for tenant in ("moss", "fern", "fern", "aspen"):
                await _told(programs, tenant, "https://a.example/")
            (first,) = await rows.due(2, 1, 30.0)
            assert first.tenant == "moss"
            (second,) = await rows.due(2, 16, 30.0, ["fern", "aspen", "aspen"])
            assert second.tenant == "fern"
            assert {each.tenant for each in await rows.due(2, 16, 30.0)} == {"fern", "aspen"}

    asyncio.run(go())


def test_a_slow_receiver_delays_its_tenant_alone(url: str) -> None:
    async def go() -> None:
        is_full, is_told = asyncio.Event(), asyncio.Event()
        async with (
            committing(url) as commits,
            listening(_saying(None, 4, is_full)) as slow,
            listening(_saying(answer(204), 1, is_told)) as quick,
        ):
            programs, tasks = Programs(commits, "one"), Tasks()
            hooks = Hooks(NoticeRows(commits), tasks, KEY, may_send=True, networks=("127.0.0.0/8",))
            for _ in range(20):
                await _told(programs, "aspen", slow.url())
            running = asyncio.get_running_loop().create_task(hooks.run())
            try:
                async with asyncio.timeout(_LONG_S):
                    await is_full.wait()
                    await _told(programs, "moss", quick.url())
                    await is_told.wait()
                assert len(slow.received) == slow.most_open == 4
            finally:
                running.cancel()
                await tasks.cancel()

    asyncio.run(go())
