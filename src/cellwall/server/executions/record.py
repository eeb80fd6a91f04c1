"""What a server reports of one execution: while it waits, while it runs, after its end.

`registry` runs the execution, and `ledger` has what is on disk. `ExecutionRecord` is an execution
of this server; `KeptExecution` is what the store says of one that is not in memory. The invariant:
both give the same object, so a client cannot tell where it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.model import advice
from cellwall.model.errors import Interrupted, NodeLost
from cellwall.model.outcome import INTERRUPTED as CUT_SHORT
from cellwall.model.outcome import OUR_FAILURE
from cellwall.server.core.errors import INTERRUPTING
from cellwall.server.core.times import rfc3339
from cellwall.server.executions.job import Job
from cellwall.server.executions.turns import Turn
from cellwall.wire.answer import answer, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.model.execution import Event, Execution
    from cellwall.server.executions.idempotency import Use
    from cellwall.server.executions.remote_tools import RemoteTools
    from cellwall.store.records.rows import ExecutionRow

INTERRUPTED = "interrupted"
_BUNDLE_BYTES = 512
"""Bytes a display bundle costs besides its texts."""


class ExecutionRecord(Job):
    """One execution of this server."""

    def __init__(
        self,
        thing_id: str,
        owner: str,
        request_id: str,
        spool_bytes: int,
        asked: Mapping[str, Any],
    ) -> None:
        """`asked` is shown while there is no answer: template, language, sandbox_id…"""
        super().__init__(thing_id, owner, request_id, spool_bytes)
        self.asked = asked
        self.execution: Execution | None = None
        """The engine's result, without its value, which is kept as text; see `keep`."""
        self._value = ""
        self.notes: list[str] = []
        """Sentences of the server besides those of the outcome."""
        self.on_cancel: Callable[[], None] | None = None
        """Ends the execution while it waits for its turn and has no task."""
        self.turn = Turn()
        self.replay: Use | None = None
        """Use of the idempotency key the execution was made with."""
        self.tools: RemoteTools | None = None
        """The client's tools; None if it offers none, or not known yet."""
        self.on_tool_call: Callable[[Mapping[str, Any]], None] = lambda _: None
        """Called for every tool call that is over."""
        self.is_on_disk = False
        """Whether the acceptance is on disk."""
        self.is_left = False
        """Whether the execution on disk is left to the next server."""
        self.foreseen_bytes = 0
        """Bytes on disk that were estimated for the end and counted before it; 0: none were
        counted."""
        self.text = ""
        """The answer as one line of JSON from when the end was written; used once, then dropped."""

    @property
    def cost_bytes(self) -> int:
        """Approximate memory of the record in bytes."""
        cost = 2048 + self.spool.kept_bytes + len(self.text) + len(self._value)
        if self.execution is not None:
            cost += self.execution.kept_bytes + _BUNDLE_BYTES * len(self.execution.results)
            cost += 0 if self.execution.error is None else self.execution.error.size_chars
        return cost

    def keep(self, execution: Execution) -> None:
        """Take the result. Its value is kept as text."""
        # As objects the value may take 24 times its text, uncounted.
        self._value = "" if execution.result is None else one_line({"result": execution.result})
        self.execution = replace(execution, id=self.id, result=None)

    def on_event(self, event: Event) -> None:
        """Take an event; the end event is held back until the execution is settled, and durable."""
        if event.kind == "end":
            self.end_event = event
        else:
            if event.kind == "tool_call" and event.data is not None:
                self.on_tool_call(event.data)
            self.spool.append(event)

    def cancel(self) -> None:
        """End the execution at its owner's request; idempotent."""
        if self.on_cancel is not None and self.task is None and not self.ended.done():
            self.is_cancelled = True
            self.on_cancel()
        else:
            super().cancel()

    def settle(self) -> None:
        """Complete the record as `Job.settle` does; its tool calls end with it."""
        super().settle()
        if self.tools is not None:
            self.tools.end()
            self.tools = None

    def interrupt(self, reason: str) -> None:
        """End the execution because the server stops, with `reason` as its failure."""
        self.fail(interrupted(reason))
        super().cancel()

    def leave(self, error: Exception) -> None:
        """Tell the execution's waiting callers that this server will not give it a turn."""
        self.is_left = True
        self.fail(error)
        super().cancel()

    def as_json(self) -> dict[str, Any]:
        """Return the object of `/execute` and `/executions/{id}`."""
        if self.ended.done():
            return self.final()
        status = "running" if self.has_begun else "queued"
        value = {**blank(self.id, self.asked), "status": status}
        return complete(value, self.asked, self.started_at)

    def as_line(self) -> str:
        """Return `as_json` as one line of strict JSON."""
        text, self.text = self.text, ""
        return text if text and self.ended.done() else one_line(self.as_json())

    def final(self) -> dict[str, Any]:
        """Return the answer object as it will be once the end may be reported."""
        if self.execution is not None:
            value = answer(self.execution)
            value |= json.loads(self._value or "{}")
            value["notes"] = [*value["notes"], *self.notes]
        else:
            cancelled = {"status": "error", "verdict": "cancelled", "exit_status": CUT_SHORT}
            value = {**blank(self.id, self.asked), **cancelled, "notes": list(self.notes)}
            value["error"] = "cancelled before it ran"
        if self.failure is not None:
            value.update(failed(self.failure))
        return complete(value, self.asked, self.started_at)


class KeptExecution:
    """An execution that is in the store and not in memory; it has ended, or waits for its turn."""

    def __init__(self, row: ExecutionRow) -> None:
        self.row = row
        self.id = row.id
        self.owner = row.tenant

    def as_json(self) -> dict[str, Any]:
        """Return the object of `/executions/{id}`."""
        if self.row.answer is not None:
            return self.row.answer
        status = "queued" if self.row.state == "queued" else "running"
        value = {**blank(self.id, self.row.asked), "status": status}
        return complete(value, self.row.asked, self.row.started_at)


def waits(execution_id: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of an execution that was accepted just now."""
    return complete({**blank(execution_id, asked), "status": "queued"}, asked, None)


def interrupted(reason: str) -> Interrupted:
    """Return the error of an execution that had begun and was interrupted."""
    return Interrupted(
        f"execution: {reason}; how far it came is not known",
        remedy="it is not run again by itself; send it anew if that does no harm",
    )


def failed(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer which say that cellwall failed, not the program."""
    is_interrupted = error["code"] in INTERRUPTING
    message = str(error["message"])
    if error["code"] == NodeLost.code:
        message = f"{message}. {advice.NODE_LOST}"
    return {
        "status": "error",
        "verdict": INTERRUPTED if is_interrupted else "sandbox_error",
        "exit_status": CUT_SHORT if is_interrupted else OUR_FAILURE,
        "error": message,
        "failure": dict(error),
    }


def blank(execution_id: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of an execution of which only the request is known."""
    known = {name: value for name, value in asked.items() if name in _NOTHING}
    return {**_NOTHING, **known, "execution_id": execution_id}


def complete(
    value: dict[str, Any], asked: Mapping[str, Any], started_at: float | None
) -> dict[str, Any]:
    """Add the fields that the object has in every state."""
    # A template of the tenant's own is one of the operator's, on an image, to the engine.
    value["template"] = asked.get("template", value["template"])
    value["clipped"] = asked.get("clipped")
    value["scan"] = asked.get("scan")
    value["started_at"] = None if started_at is None else rfc3339(started_at)
    return value


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
    "exit_status": None,
    "error": None,
    "exception": None,
    "oom_killed": False,
    "time_ms": 0,
    "execution_time": 0,
    "artifacts": [],
    "truncated": {"stdout": 0, "stderr": 0, "display": 0},
    "usage": None,
    "isolation": None,
    "trust": None,
    "limits": None,
    "notes": [],
    "compile": None,
}
