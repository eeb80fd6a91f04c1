"""Recovery after a crash: started executions are ended, accepted ones wait again, in order.

It runs in one transaction. The operating system remembers processes and cgroups, and the engine's
sweep removes them. The invariant: no execution that started ever becomes queued again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, update

from cellwall.store.records import queries, schema
from cellwall.store.records.changes import Change
from cellwall.store.records.rows import Because, Leftover, Recovery
from cellwall.store.records.statements import Mediated
from cellwall.store.records.write_statements import apply

SANDBOX_BECAUSE = "server_restart"
"""Reason of the end of sandboxes that were alive."""
_AT_ONCE = 500

_executions, _sandboxes = schema.executions, schema.sandboxes

End = Callable[[Leftover], Sequence[Change]]
"""Given a leftover, returns its `Ended` and the changes that belong to it. Called inside the
transaction, so it must be quick and without an effect of its own."""


def recover(connection: Connection, at: float, end: End, living: Collection[str] = ()) -> Recovery:
    """End what an earlier server left; `at` is the time of the end, in seconds since the epoch.

    `living`: ids of sandboxes that live on.
    """
    running = _executions.c.state == "running"
    leaving = (_executions.c.state == "queued") & (_executions.c.on_disconnect == "cancel")
    interrupted = _end_all(connection, running, "interrupted", end)
    cancelled = _end_all(connection, leaving, "cancelled", end)
    return Recovery(
        interrupted,
        cancelled,
        _end_sandboxes(connection, at, living),
        connection.execute(
            select(func.count()).select_from(_executions).where(_executions.c.state == "queued")
        ).scalar_one(),
        connection.execute(select(func.max(_executions.c.seq))).scalar() or 0,
    )


def _end_all(
    connection: Connection, which: ColumnElement[bool], because: Because, end: End
) -> tuple[str, ...]:
    light = [column for column in _executions.c if column.name != "body"]
    behind = _executions.c.seq > bindparam("after")
    found = select(*light).where(which, behind).order_by(_executions.c.seq).limit(_AT_ONCE)
    ended: list[str] = []
    after = -1
    while rows := [queries.execution_of(r) for r in connection.execute(found, {"after": after})]:
        after = rows[-1].seq
        changes: list[Change] = []
        for row in rows:
            changes += end(Leftover(row, because, queries.last_event(connection, row.id)))
        apply(Mediated(connection), changes)
        ended += [row.id for row in rows]
    return tuple(ended)


def _end_sandboxes(connection: Connection, at: float, living: Collection[str]) -> tuple[str, ...]:
    alive = _sandboxes.c.ended_at.is_(None) & _sandboxes.c.id.not_in(living)
    ids = tuple(connection.execute(select(_sandboxes.c.id).where(alive)).scalars())
    if ids:
        ended = update(_sandboxes).where(alive)
        connection.execute(ended.values(ended_at=at, ended_because=SANDBOX_BECAUSE))
    return ids
