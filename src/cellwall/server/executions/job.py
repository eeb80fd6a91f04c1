"""Work that runs for an owner, apart from any connection: the base of executions and commands.

The engine's callbacks fill it; connections wait for it, read its spool, cancel it. The registries
are `registry` and `sandboxes`. The invariant: the work ends exactly once, with an outcome, a
failure of cellwall, or a cancellation before any code ran, and its spool then ends with `end`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cellwall.model.execution import Event
from cellwall.model.outcome import Verdict
from cellwall.server.core.error_log import drop_traceback, log_failure
from cellwall.server.core.errors import INTERRUPTING, failure, status_of
from cellwall.server.core.times import steady
from cellwall.server.streaming.spool import Spool

if TYPE_CHECKING:
    from cellwall.engine.attempts.attempt import Handle


class Job:
    """One execution or command."""

    def __init__(self, thing_id: str, owner: str, request_id: str, spool_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.id = thing_id
        self.owner = owner
        self.request_id = request_id
        self.spool = Spool(spool_bytes)
        self.attempt: Handle | None = None
        """Handle while the work runs; it holds the whole sandbox and its output a second time."""
        self.created_at = time.time()
        self.failure: dict[str, Any] | None = None
        self.error: Exception | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.is_cancelled = False
        self.end_event: Event | None = None
        """The last event, held back until the end may be reported."""
        self.started: asyncio.Future[None] = loop.create_future()
        """Done when the code was handed over, or when the work ended without that."""
        self.ended: asyncio.Future[None] = loop.create_future()
        self.task: asyncio.Task[None] | None = None

    def on_start(self, attempt: Handle) -> None:
        """Note that the work runs; the engine calls this."""
        self.attempt = attempt
        self.started_at = self.started_at or time.time()
        self.spool.on_pressure = self._on_pressure
        if not self.started.done():
            self.started.set_result(None)

    def _on_pressure(self, should_wait: bool) -> None:
        if self.attempt is not None:
            if should_wait:
                self.attempt.pause()
            else:
                self.attempt.resume()

    @property
    def has_begun(self) -> bool:
        """Whether the code was handed over."""
        return self.started_at is not None

    def cancel(self) -> None:
        """End the work at its owner's request; idempotent."""
        if self.ended.done():
            return
        self.is_cancelled = True
        if self.attempt is not None:
            self.attempt.cancel()
        elif self.task is not None:
            self.task.cancel()

    def fail(self, error: Exception) -> None:
        """Note a failure of cellwall, and log it here: the caller may never ask for it."""
        if status_of(error) == 500:
            log_failure(error, self.request_id)
        drop_traceback(error)
        self.error = error
        self.failure = failure(error, self.request_id)

    def end_content(self) -> Event | Mapping[str, Any]:
        """Return the last event, the engine's or the server's."""
        event, failed = self.end_event, self.failure
        if failed is None:
            cancelled = {"verdict": Verdict.CANCELLED.value, "outcome": None, "failure": None}
            return {"type": "end", **cancelled} if event is None else event
        is_interrupted = failed["code"] in INTERRUPTING
        verdict = Verdict.INTERRUPTED if is_interrupted else Verdict.SANDBOX_ERROR
        outcome = None if event is None or event.outcome is None else event.outcome.as_json()
        return {"type": "end", "verdict": verdict.value, "outcome": outcome, "failure": failed}

    def settle(self) -> None:
        """Finish the record: complete the spool, wake all waiting tasks, let go of the sandbox."""
        content = self.end_content()
        if isinstance(content, Event):
            self.spool.append(content)
        else:
            self.spool.finish(content)
        self.ended_at = self.ended_at or steady()
        self.attempt = self.task = self.spool.on_pressure = None
        for future in (self.started, self.ended):
            if not future.done():
                future.set_result(None)
