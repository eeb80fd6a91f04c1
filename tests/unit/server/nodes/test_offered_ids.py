"""Ids that a trusted listener offers: of this node, used once, and the only ones that are taken.

Real executions, queue and store; what a sandbox would do is nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.attempts.attempt import BeforeCode, OnEvent, OnStart
from cellwall.engine.scheduling.admission import Cost, Machine, Overcommit
from cellwall.engine.scheduling.fair_queue import FairQueue
from cellwall.engine.scheduling.quotas import Tenants
from cellwall.model.errors import Conflict, UsageError
from cellwall.model.execution import Execution
from cellwall.model.ids import new_id, node_of
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Verdict
from cellwall.server.core.settings import ServerSettings
from cellwall.server.executions.disk_quota import Kept
from cellwall.server.executions.ledger import Ledger
from cellwall.server.executions.order import Order
from cellwall.server.executions.registry import Executions
from cellwall.server.executions.sandboxes import Sandboxes
from cellwall.surface.shared.tasks import Tasks
from kit.stores import opened, unsealed

NODE = "a7c2"
COST = Cost(16, 4, 16, 1.0)


def order(offered_id: str = "", cost: Cost | None = None) -> Order:
    async def work(_event: OnEvent, _start: OnStart, before: BeforeCode | None) -> Execution:
        if before is not None:
            await before()
        outcome = Outcome(Verdict.OK, Isolation("jail", IsolationLevel.NAMESPACE, "d" * 64))
        return Execution("", "python", "", "", outcome=outcome, limits=Limits())

    asked: dict[str, Any] = {"language": "python"}
    return Order("moss", "r1", asked, work, "detach", cost, b"1", offered_id=offered_id)


def never(_row: object, _body: bytes) -> Order:
    raise AssertionError("nothing is revived")


@asynccontextmanager
async def executions(
    folder: Path, node: str = NODE, retained: int = 500, running: int = 9
) -> AsyncIterator[Executions]:
    url, tasks = f"sqlite:///{folder}/cellwall.db", Tasks()
    async with opened(url, sole=True, seal=unsealed) as store:
        queue = FairQueue(
            running, 99, Machine(Cost(999, 999, 999)), Tenants(None, {}), Overcommit()
        )
        ledger = Ledger(store, tasks, Kept(queue.tenants, 600, None, 0))
        settings = ServerSettings(retained_executions=retained)
        try:
            yield Executions(settings, tasks, queue, ledger, never, node)
        finally:
            await tasks.cancel()


def test_offered_id_is_the_executions(tmp_path: Path) -> None:
    async def run() -> None:
        async with executions(tmp_path) as it:
            offered = new_id(NODE)
            record = it.start(order(offered))
            await record.ended
            assert (record.id, record.as_json()["execution_id"]) == (offered, offered)
            other = it.start(order())
            await other.ended
            assert (node_of(other.id), len(other.id)) == (NODE, 30)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("node", "offered"),
    [(NODE, "b7c2" + "x" * 26), (NODE, "x" * 26), ("", "x" * 26), ("", "x" * 30)],
)
def test_id_of_another_node_or_of_none_begins_nothing(
    tmp_path: Path, node: str, offered: str
) -> None:
    async def run() -> None:
        async with executions(tmp_path, node) as it:
            with pytest.raises(UsageError):
                it.start(order(offered))
            with pytest.raises(UsageError):
                await it.submit(order(offered, COST))
            assert (len(it.all), it.total) == (0, 0)

    asyncio.run(run())


def test_id_is_used_once_in_memory_and_in_the_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with executions(tmp_path, running=0) as it:
            running, queued = new_id(NODE), new_id(NODE)
            record = it.start(order(running))
            await it.submit(order(queued, COST))
            for used in (running, queued):
                with pytest.raises(Conflict) as refused:
                    it.start(order(used))
                assert refused.value.remedy
            with pytest.raises(Conflict):
                await it.submit(order(queued, COST))
            await record.ended
            control = it.start(order(new_id(NODE)))
            await control.ended

    asyncio.run(run())


def test_background_work_begins_once_nothing_holds_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with executions(tmp_path) as it:
            it.hold("one", is_held=True)
            it.hold("other", is_held=True)
            await it.submit(order(cost=COST))
            it.hold("one", is_held=False)
            it.hold("one", is_held=False)  # again, which is nothing
            assert (len(it.all), it.waiting) == (0, 0)
            it.hold("other", is_held=False)
            (record,) = it.all.values()
            await record.ended  # `never` has refused it

    asyncio.run(run())


@pytest.fixture
def sandboxes(tmp_path: Path) -> Callable[[], Sandboxes]:
    kept = Kept(Tenants(None, {}), 600, None, 0)
    return lambda: Sandboxes(ServerSettings(), None, Tasks(), kept)


def test_id_of_a_sandbox_is_held_from_before_its_creation(
    sandboxes: Callable[[], Sandboxes],
) -> None:
    it, offered = sandboxes(), new_id(NODE)
    it.begin(offered)
    with pytest.raises(Conflict, match=offered):
        it.begin(offered)
    it.begin()  # others are not concerned
    it.begun(None)
    it.begun(None, offered)  # its creation has failed
    it.begin(offered)
