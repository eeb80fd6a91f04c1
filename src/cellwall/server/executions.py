"""The executions this server knows: those that run and those that ended a while ago.

Not how code runs (`engine`) and not how answers are sent (`streams`). Executions belong to an
owner and, in sessions, to a sandbox; never to a connection. The invariant: what was accepted is
found here until its retention is over, and memory for it is bounded by number and bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.model.ids import new_id
from cellwall.server.errors import failure
from cellwall.server.times import rfc3339
from cellwall.server.tracked import Tracked
from cellwall.wire.answer import answer

if TYPE_CHECKING:
    from cellwall.engine.execution import OnEvent, OnStart
    from cellwall.engine.tasks import Tasks
    from cellwall.model.execution import Execution
    from cellwall.server.settings import ServerSettings

    Work = Callable[[OnEvent, OnStart], Awaitable[Execution]]


class ExecutionRecord(Tracked):
    """One execution."""

    def __init__(
        self, owner: str, request_id: str, spool_bytes: int, asked: Mapping[str, Any]
    ) -> None:
        """`asked` is what is shown while there is no answer: template, language, sandbox_id…"""
        super().__init__(new_id(), owner, request_id, spool_bytes)
        self.asked = asked
        self.execution: Execution | None = None

    @property
    def cost_bytes(self) -> int:
        """What keeping it costs, roughly."""
        cost = 2048 + self.spool.kept_bytes
        if self.execution is not None:
            cost += len(self.execution.stdout) + len(self.execution.stderr)
            cost += sum(map(len, self.execution.files.values()))
            cost += sum(len(str(v)) for b in self.execution.results for v in b.values())
        return cost

    def as_json(self) -> dict[str, Any]:
        """Return the object of `/execute` and `/executions/{id}`."""
        extra = {key: self.asked.get(key) for key in ("clipped", "scan")}
        if self.execution is not None:
            value = answer(self.execution)
        else:
            value = {**_NOTHING, **{k: v for k, v in self.asked.items() if k in _NOTHING}}
            value["execution_id"] = self.id
            value.update(self._state())
        value.update(extra)
        value["started_at"] = None if self.started_at is None else rfc3339(self.started_at)
        if self.failure is not None:
            value["failure"] = self.failure
        return value

    def _state(self) -> dict[str, Any]:
        if self.failure is not None:
            words = str(self.failure["message"])
            return {"status": "error", "verdict": "sandbox_error", "error": words}
        if self.ended.done():
            return {"status": "error", "verdict": "cancelled", "error": "cancelled before it ran"}
        return {"status": "queued" if self.attempt is None else "running", "verdict": None}


_NOTHING: Mapping[str, Any] = {
    "execution_id": "",
    "sandbox_id": None,
    "template": "",
    "language": "",
    "status": "",
    "verdict": None,
    "stdout": "",
    "stderr": "",
    "result": None,
    "results": [],
    "exit_code": None,
    "signal": None,
    "error": None,
    "exception": None,
    "oom_killed": False,
    "time_ms": 0,
    "execution_time": 0,
    "artifacts": [],
    "truncated": {"stdout": 0, "stderr": 0, "display": 0},
    "usage": None,
    "isolation": None,
    "limits": None,
    "notes": [],
}


class Executions:
    """All of them, by id."""

    def __init__(self, settings: ServerSettings, tasks: Tasks) -> None:
        """None yet."""
        self._settings = settings
        self._tasks = tasks
        self._all: dict[str, ExecutionRecord] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._ended_bytes = 0
        self.total = 0

    @property
    def all(self) -> Mapping[str, ExecutionRecord]:
        """Every record, for `ownership.owned`."""
        return self._all

    @property
    def running(self) -> int:
        """How many have not ended."""
        return len(self._all) - len(self._ended)

    def start(
        self, owner: str, request_id: str, asked: Mapping[str, Any], work: Work
    ) -> ExecutionRecord:
        """Begin `work` in the background and return its record."""
        record = ExecutionRecord(owner, request_id, self._settings.spool_bytes, asked)
        self._all[record.id] = record
        self.total += 1
        record.task = self._tasks.spawn(self._run(record, work))
        return record

    async def _run(self, record: ExecutionRecord, work: Work) -> None:
        try:
            execution = await work(record.spool.append, record.on_start)
            record.execution = replace(execution, id=record.id)
        except asyncio.CancelledError:
            if not record.is_cancelled:
                record.failure = _stopped(record)
                raise
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            record.fail(error)
        finally:
            record.settle()
            self._retain(record)

    def _retain(self, record: ExecutionRecord) -> None:
        cost = record.cost_bytes
        self._ended[record.id] = cost
        self._ended_bytes += cost
        settings = self._settings
        while self._ended and (
            len(self._ended) > settings.retained_executions
            or self._ended_bytes > settings.retained_bytes
        ):
            self._forget(next(iter(self._ended)))

    def expire(self) -> None:
        """Forget what ended too long ago; called now and then."""
        limit = time.monotonic() - self._settings.retention_s
        for record_id in list(self._ended):
            ended_s = self._all[record_id].ended_s
            if ended_s is not None and ended_s > limit:
                return
            self._forget(record_id)

    def _forget(self, record_id: str) -> None:
        self._ended_bytes -= self._ended.pop(record_id)
        del self._all[record_id]


def _stopped(record: ExecutionRecord) -> dict[str, Any]:
    from cellwall.model.errors import SandboxUnavailable

    stopped = SandboxUnavailable("execute: the server stops", remedy="try again")
    return failure(stopped, record.request_id)
