"""Executions over a database that is locked longer than the store waits: none is lost, none lies.

Real executions, queue and store; what a sandbox would do is a line in a list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cellwall.engine.attempts.attempt import BeforeCode, OnEvent, OnStart
from cellwall.engine.scheduling.admission import Cost, Machine, Overcommit
from cellwall.engine.scheduling.fair_queue import FairQueue
from cellwall.engine.scheduling.quotas import Tenants
from cellwall.model.execution import Execution
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Verdict
from cellwall.server.core.settings import ServerSettings
from cellwall.server.executions.disk_quota import Kept
from cellwall.server.executions.idempotency import Replays, Use
from cellwall.server.executions.ledger import Ledger
from cellwall.server.executions.order import Order
from cellwall.server.executions.registry import Executions
from cellwall.store.records.errors import StoreBusy
from cellwall.store.records.rows import ExecutionRow
from cellwall.store.store import Store
from cellwall.surface.shared.tasks import Tasks
from kit.stores import locked, opened, unsealed

WAIT_S = 0.3
COST = Cost(16, 4, 16, 1.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/cellwall.db"


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)


class Scene:
    """Executions with one place; the first order keeps it until it is let go."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ran: list[str] = []
        self.runs = asyncio.Event()
        self.may_end = asyncio.Event()
        self.tasks = Tasks()
        queue = FairQueue(1, 99, Machine(Cost(999, 999, 999)), Tenants(None, {}), Overcommit())
        ledger = Ledger(store, self.tasks, Kept(queue.tenants, 600, None, 0))
        self.executions = Executions(ServerSettings(), self.tasks, queue, ledger, self._revived)

    def order(self, name: str, replay: Use | None = None) -> Order:
        async def work(
            on_event: OnEvent, on_start: OnStart, before_code: BeforeCode | None
        ) -> Execution:
            if before_code is not None:
                await before_code()
            self.ran.append(name)
            self.runs.set()
            if name == "first":
                await self.may_end.wait()
            outcome = Outcome(Verdict.OK, Isolation("jail", IsolationLevel.NAMESPACE, "d" * 64))
            return Execution("", "python", "", "", outcome=outcome, limits=Limits())

        body = name.encode()
        return Order(
            "moss", "r1", {"language": "python"}, work, "detach", COST, body, replay=replay
        )

    def _revived(self, row: ExecutionRow, body: bytes) -> Order:
        return self.order(body.decode())

    async def wait_refused(self) -> None:
        """Return when the locked database has refused something."""
        before = self.store.statistics().refused
        await until(lambda: self.store.statistics().refused > before)

    async def wait_written(self, execution_id: str) -> ExecutionRow:
        """Return what is on disk of one when its end is."""
        while True:
            row = await self.store.execution(execution_id)
            if row is not None and row.state == "ended":
                return row


@asynccontextmanager
async def scene(url: str) -> AsyncIterator[Scene]:
    async with opened(url, sole=True, seal=unsealed, wait_s=WAIT_S) as store:
        made = Scene(store)
        try:
            yield made
        finally:
            await made.tasks.cancel()


def test_accepted_job_runs_when_the_lock_is_over(url: str) -> None:
    async def run() -> None:
        async with scene(url) as it:
            first = it.executions.start(it.order("first"))
            await it.runs.wait()
            job = await it.executions.submit(it.order("job"))
            with locked(url):
                it.may_end.set()
                await first.ended
                record = it.executions.all[job]  # its turn has come
                await it.wait_refused()
                assert not record.ended.done()
            row = await it.wait_written(job)
            assert row.answer is not None
            assert (row.answer["verdict"], it.ran) == ("ok", ["first", "job"])

    asyncio.run(run())


def test_refused_run_leaves_neither_job_nor_key_on_disk(url: str) -> None:
    async def run() -> None:
        async with scene(url) as it:
            replays = Replays(it.store)
            use = replays._uses["moss", "k"] = Use(replays, "moss", "k", "execution", b"digest")
            it.executions.start(it.order("first"))
            await it.runs.wait()
            refused = it.executions.start(it.order("refused", use))
            use.made(refused.id)
            while await it.store.execution(refused.id) is None:
                pass  # each look waits for the database
            with locked(url):
                it.may_end.set()
                await refused.ended
                assert isinstance(refused.error, StoreBusy)
                assert replays._uses, "the disk has its key, so the key has its answer"
            row = await it.wait_written(refused.id)
            assert row.answer is not None
            assert (row.answer["verdict"], it.ran) == ("sandbox_error", ["first"])
            assert await it.store.replay("moss", "k") is None
            await until(lambda: not replays._uses)

    asyncio.run(run())
