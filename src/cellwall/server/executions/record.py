"""What a server says of one execution: while it waits, while it runs, when it has ended.

Not how it is done (`registry`) and not what is on disk (`ledger`). `ExecutionRecord` is one that
this server does or did; `KeptExecution` is what the store says of one that is not in memory. The
invariant: both show the same object, so nobody can tell from it where it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import Interrupted
from cellwall.model.outcome import INTERRUPTED as CUT_SHORT
from cellwall.model.outcome import OUR_FAILURE
from cellwall.server.core.times import rfc3339
from cellwall.server.executions.job import Tracked
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
"""What a bundle costs beside its texts."""


class ExecutionRecord(Tracked):
    """One execution of this server."""

    def __init__(
        self,
        thing_id: str,
        owner: str,
        request_id: str,
        spool_bytes: int,
        asked: Mapping[str, Any],
    ) -> None:
        """`asked` is what is shown while there is no answer: template, language, sandbox_id…"""
        super().__init__(thing_id, owner, request_id, spool_bytes)
        self.asked = asked
        self.execution: Execution | None = None
        """Without its value, which is kept as text; see `keep`."""
        self._value = ""
        self.notes: list[str] = []
        """Sentences of ours beside those of the outcome."""
        self.on_cancel: Callable[[], None] | None = None
        """Ends it while it waits for its turn and has no task."""
        self.turn = Turn()
        self.replay: Use | None = None
        """The use of an idempotency key that made it."""
        self.tools: RemoteTools | None = None
        """Its client's tools, once it is known that it has some."""
        self.on_tool_call: Callable[[Mapping[str, Any]], None] = lambda _: None
        """Told of every call that is over."""
        self.is_on_disk = False
        """Whether its acceptance is."""
        self.is_left = False
        """Whether what is on disk of it is for the next server."""
        self.foreseen_bytes = 0
        """What its end was thought to take on disk when it had ended; 0: nothing was said."""
        self.text = ""
        """What it was as one line of JSON when its end was written; told once, then forgotten."""

    @property
    def cost_bytes(self) -> int:
        """What keeping it costs, roughly."""
        cost = 2048 + self.spool.kept_bytes + len(self.text) + len(self._value)
        if self.execution is not None:
            cost += self.execution.kept_bytes + _BUNDLE_BYTES * len(self.execution.results)
            cost += 0 if self.execution.error is None else self.execution.error.size_chars
        return cost

    def keep(self, execution: Execution) -> None:
        """Take what came of it. As objects its value may cost 24 times its text, uncounted."""
        self._value = "" if execution.result is None else one_line({"result": execution.result})
        self.execution = replace(execution, id=self.id, result=None)

    def on_event(self, event: Event) -> None:
        """Take what happens; its end is told when it is settled, and durable."""
        if event.kind == "end":
            self.end_event = event
        else:
            if event.kind == "tool_call" and event.data is not None:
                self.on_tool_call(event.data)
            self.spool.append(event)

    def cancel(self) -> None:
        """End it on its owner's wish; idempotent."""
        if self.on_cancel is not None and self.task is None and not self.ended.done():
            self.is_cancelled = True
            self.on_cancel()
        else:
            super().cancel()

    def settle(self) -> None:
        """See `Tracked.settle`; its calls end with it."""
        super().settle()
        if self.tools is not None:
            self.tools.end()
            self.tools = None

    def interrupt(self, reason: str) -> None:
        """The server cuts it short."""
        self.fail(interrupted(reason))
        super().cancel()

    def leave(self, error: Exception) -> None:
        """Tell whoever waits for its turn that this server will not give it one."""
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
        """Return what it will be once its end may be told."""
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
    """One that is in the store and not in memory."""

    def __init__(self, row: ExecutionRow) -> None:
        """It has ended, or waits for its turn."""
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
    """Return the object of one that was accepted just now."""
    return complete({**blank(execution_id, asked), "status": "queued"}, asked, None)


def interrupted(reason: str) -> Interrupted:
    """Return the error of what had begun and was cut short."""
    return Interrupted(
        f"execution: {reason}; how far it came is not known",
        remedy="it is not run again by itself; send it anew if that does no harm",
    )


def failed(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer that say: cellwall failed, not the program."""
    is_interrupted = error["code"] == Interrupted.code
    return {
        "status": "error",
        "verdict": INTERRUPTED if is_interrupted else "sandbox_error",
        "exit_status": CUT_SHORT if is_interrupted else OUR_FAILURE,
        "error": str(error["message"]),
        "failure": dict(error),
    }


def blank(execution_id: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of one of which nothing is known but what was asked."""
    known = {name: value for name, value in asked.items() if name in _NOTHING}
    return {**_NOTHING, **known, "execution_id": execution_id}


def complete(
    value: dict[str, Any], asked: Mapping[str, Any], started_at: float | None
) -> dict[str, Any]:
    """Add what every state of it shows."""
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
