"""Grants of a gateway: what it asks, writes and tells, over a directory and nodes that answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cellwall.cluster.directory.grants import Amount, Grants
from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.gateway.agreed.granting import Granting
from cellwall.engine.scheduling.quotas import Quotas, Tenants
from cellwall.surface.shared.tasks import Tasks
from kit.cluster.directories import directory
from kit.cluster.tiny_nodes import nodes
from kit.postgres_server import Postgres

HALF = Amount(512)


class _Node:
    """A node that says its wants once, and notes what it is told."""

    def __init__(self, *wants: dict[str, Any]) -> None:
        self._wants = list(wants)
        self.told: list[dict[str, Any]] = []
        self.was_granted = asyncio.Event()
        self.table = {"/node/wants": self._want, "/node/grants": self._hear}

    def _want(self, _body: bytes) -> dict[str, Any]:
        wants, self._wants = self._wants, []
        return {"generation": "g", "wants": wants}

    def _hear(self, body: bytes) -> dict[str, Any]:
        said = json.loads(body)
        self.told.append(said)
        if said["granted"] is not None:
            self.was_granted.set()
        return {"is_news": said["granted"] is None, "held": HALF}


def test_want_for_which_there_is_no_more_is_answered_and_nothing_is_written(
    postgres: Postgres,
) -> None:
    url = directory(postgres)

    async def run() -> None:
        tasks, commits = Tasks(), GroupCommit(url)
        tasks.spawn(commits.run())
        await commits.wait_there()
        grants, tenants = Grants(commits), Tenants({"default": Quotas(memory_mb=1024)})
        first = await grants.write("moss", "aaaa", HALF, 0)
        latest = await grants.write("moss", "bbbb", HALF, first)
        one = _Node({"tenant": "moss", "least": [600, 0, 0], "most": [800, 0, 0]})
        other = _Node()
        async with nodes({"aaaa": one.table, "bbbb": other.table}) as book:
            granting = Granting(grants, tenants, book, tasks, lambda _name: True)
            tasks.spawn(granting.run())
            async with asyncio.timeout(10):
                await one.was_granted.wait()
            granted = await grants.of("moss")
            await tasks.cancel()
        assert granted == (latest, {"aaaa": HALF, "bbbb": HALF})
        (word,) = one.told
        assert (word["change"], word["granted"], word["is_final"]) == (latest, [512, 0, 0], True)
        assert [each["granted"] for each in other.told] == [None]  # it holds all that it has

    asyncio.run(run())
