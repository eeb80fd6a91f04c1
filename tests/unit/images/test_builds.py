"""Builds under way: their places, their events, and their ends."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from cellwall.engine.images.builder import BuildEvent
from cellwall.engine.images.builds import Builds, BuildState
from cellwall.model.errors import CapacityError, QuotaExceeded
from cellwall.surface.shared.tasks import Tasks


def test_places_are_counted_for_each_tenant_and_all() -> None:
    builds = Builds(Tasks(), 2, 60)
    with builds.place("alice", 1):
        with pytest.raises(QuotaExceeded), builds.place("alice", 1):
            pass
        with builds.place("bob", None), pytest.raises(CapacityError), builds.place("carol", 1):
            pass
    with builds.place("alice", 1):
        pass


@pytest.mark.parametrize("waits", [True, False])
def test_cancelled_build_gives_back_what_it_held(waits: bool) -> None:
    """Also before its first step."""

    async def scenario() -> None:
        tasks = Tasks()
        given_back: list[bool] = []
        builds, held = Builds(tasks, 1, 60), ExitStack()
        held.callback(given_back.append, True)
        build = builds.begin(BuildState("alice", "x:1"), _endless, held)
        if waits:
            await asyncio.sleep(0)
        assert builds.cancel(build)
        await build.ended
        assert (build.status, given_back) == ("cancelled", [True])
        assert not builds.cancel(build)
        assert len(tasks) == 0

    asyncio.run(scenario())


async def _endless(_build: BuildState) -> Any:
    await asyncio.Event().wait()


def test_build_that_takes_too_long_has_failed() -> None:
    async def scenario() -> None:
        builds = Builds(Tasks(), 1, 0.01)
        build = builds.begin(BuildState("alice", "x:1"), _endless, ExitStack())
        await build.ended
        assert build.status == "failed"
        assert "build_s" in str(build.failure)

    asyncio.run(scenario())


def test_events_that_are_gone_leave_a_gap() -> None:
    async def scenario() -> None:
        build = BuildState("alice", "x:1")
        for number in range(6000):
            build.tell(BuildEvent("output", 1, f"{number}\n"))
        build.end(None, ValueError())
        found = [each async for each in build.follow(0)]
        assert found[0] == {"seq": 1001, "type": "gap", "after": 0, "next": 1001}
        assert (found[1]["seq"], found[-1]["seq"]) == (1001, 6000)
        build = BuildState("alice", "x:1")
        for _ in range(100):
            build.tell(BuildEvent("output", 1, "x" * 60_000))
        assert sum(len(each.text) for _, each in build.events) <= 1 << 18

    asyncio.run(scenario())
