"""What is observed of executions: audit records in their transactions, metrics, rules, spans.

It is the ledger's `Recorder`, called by the ledger alone, which writes. The invariant: the audit
record of an acceptance is durable together with it, so before its code is handed over.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.server.audit.chain import Entry, compact
from cellwall.server.core.request_context import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cellwall.server.audit.writer import Audit
    from cellwall.server.executions.order import Order
    from cellwall.server.executions.record import ExecutionRecord
    from cellwall.server.observability.observer import Observer
    from cellwall.server.observability.tracing import Phase
    from cellwall.store.records.changes import Change


_REFUSED_HERE = frozenset({"unknown", "too_large", "invalid"})
_FAILED = frozenset({"raised", "timeout", "cancelled"})
"""Decisions of calls that were let through and gave no result."""


class Recording:
    """Records executions for audit, metrics, rules and traces; see the module."""

    def __init__(self, observer: Observer, audit: Audit | None) -> None:
        """Without an audit, only metrics, rules and traces are fed."""
        self._observer = observer
        self._audit = audit

    def accept(self, execution_id: str, order: Order) -> tuple[Change, ...]:
        """Return the audit record of an accepted execution."""
        if self._audit is None:
            return ()
        origin, shown = ORIGIN.get(), order.asked
        sandbox_id = shown.get("sandbox_id")
        entry = Entry(
            time=time.time(),
            mono_ns=time.monotonic_ns(),
            tenant=order.owner,
            actor=str(shown.get("key_id", "")),
            action="execution.accept",
            object=f"execution:{execution_id}" + (f" sandbox:{sandbox_id}" if sandbox_id else ""),
            parameters="" if origin is None else origin.parameters,
            details=compact({name: shown.get(name) for name in ("template", "language")}),
            request=order.request_id,
        )
        return (self._audit.change_of_execution(entry),)

    def ended(self, record: ExecutionRecord, answer: dict[str, Any]) -> tuple[Change, ...]:
        """Return the audit record of the execution's end."""
        if self._audit is None:
            return ()
        entry = end_entry(record.id, record.owner, answer, record.request_id)
        return (self._audit.change_of_execution(entry),)

    def tool_called(self, record: ExecutionRecord, call: Mapping[str, Any]) -> None:
        """Note a call to a client's tool; calls that the server refused are summed up."""
        actor = "" if record.tools is None else record.tools.actor(call["call"])
        if self._audit is None:
            return
        named = partial(self._audit.chosen, record.owner)
        # Refused calls are cheap for the program, so they must not cost a record each.
        if not actor and call["decision"] in _REFUSED_HERE:
            self._audit.refused_call(call_entry(record, call, "server", named))
        else:
            self._audit.note(call_entry(record, call, actor or "server", named))

    def seen(self, record: ExecutionRecord) -> None:
        """Count an end, and pass it to rules and traces."""
        execution = record.execution
        if execution is not None:
            self._observer.ended(record.owner, execution.template, execution.outcome)
        origin = ORIGIN.get()
        # An execution that waited without a task is begun in the context of the task that gave up a
        # place, so the request in `ORIGIN` may not be its own.
        is_own = origin is not None and origin.request_id == record.request_id
        if origin is not None and is_own:
            origin.ended_at = record.ended_at
        self._observer.phased(record, phases_of(record), origin if is_own else None)


def end_entry(execution_id: str, tenant: str, answer: dict[str, Any], request_id: str) -> Entry:
    """Return the audit entry about the end of an execution."""
    isolation = answer.get("isolation") or {}
    return Entry(
        time=time.time(),
        mono_ns=time.monotonic_ns(),
        tenant=tenant,
        actor="server",
        action="execution.end",
        object=f"execution:{execution_id}",
        decision="noted",
        runtime=str(isolation.get("runtime", "")),
        posture=str(isolation.get("posture", "")),
        result=str(answer.get("verdict") or ""),
        usage="" if answer.get("usage") is None else compact(answer["usage"]),
        request=request_id,
    )


def call_entry(
    record: ExecutionRecord, call: Mapping[str, Any], actor: str, named: Callable[[str], str]
) -> Entry:
    """Return the audit entry about a tool call; it holds the digest of the arguments only.

    `named` cleans text that the program or the client chose.
    """
    error = call["error"]
    decision = call["decision"]
    result = f"failed: {decision}" if decision in _FAILED else decision
    facts = {name: call[name] for name in ("arguments_bytes", "result_bytes", "duration_ms")}
    return Entry(
        time=time.time(),
        mono_ns=time.monotonic_ns(),
        tenant=record.owner,
        actor=actor,
        action="tool.call",
        object=f"execution:{record.id} call:{call['call']} tool:{named(call['tool'])}",
        parameters=call["arguments_sha256"],
        decision="allowed" if decision == "ok" or decision in _FAILED else "refused",
        result=result,
        details=compact({"error": None if error is None else named(str(error)), **facts}),
        request=record.request_id,
    )


def phases_of(record: ExecutionRecord) -> list[Phase]:
    """Return the phases of an execution, up to the last one it reached."""
    ended_at = record.ended_at or time.time()
    turn_at = record.turn.given_at if record.turn.is_given else ended_at
    found = [("admit", min(record.created_at, turn_at), turn_at)]
    if record.turn.is_given:
        found.append(("claim", turn_at, record.started_at or ended_at))
    if record.started_at is not None:
        found.append(("run", record.started_at, ended_at))
    return found
