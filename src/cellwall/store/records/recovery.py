"""Recovery after a crash: started executions are ended, accepted ones wait again, in order.

It runs in one transaction. The operating system remembers processes and cgroups, and the engine's
sweep removes them. The invariant: no execution that started ever becomes queued again, and none of
a node whose loss was told ever starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, update

from cellwall.model.ids import NAMED_LENGTH, NODE_LENGTH
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


class Sandboxes(NamedTuple):
    """What is known of the earlier server's sandboxes."""

    living: Collection[str] = ()
    """Ids of those that live on."""
    because: Mapping[str, str] = MappingProxyType({})
    """Why others have ended, by id, where it is not just that their server ended."""


ALL_ENDED = Sandboxes()


def recover(
    connection: Connection,
    at: float,
    end: End,
    sandboxes: Sandboxes = ALL_ENDED,
    node: str = "",
) -> Recovery:
    """End what an earlier server left; `at` is the time of the end, in seconds since the epoch.

    `node`: the name of the server among several; what ids have another's is over, also in the
    queue.
    """
    lost = _end_all(connection, _open_of_others(node), "lost", end) if node else ()
    running = _executions.c.state == "running"
    leaving = (_executions.c.state == "queued") & (_executions.c.on_disconnect == "cancel")
    interrupted = _end_all(connection, running, "interrupted", end)
    cancelled = _end_all(connection, leaving, "cancelled", end)
    return Recovery(
        interrupted,
        cancelled,
        _end_sandboxes(connection, at, sandboxes),
        connection.execute(
            select(func.count()).select_from(_executions).where(_executions.c.state == "queued")
        ).scalar_one(),
        connection.execute(select(func.max(_executions.c.seq))).scalar() or 0,
        lost,
    )


def _open_of_others(node: str) -> ColumnElement[bool]:
    """Return the condition of executions without an end whose id has another node's name."""
    name = func.substr(_executions.c.id, 1, NODE_LENGTH)
    has_name = func.length(_executions.c.id) == NAMED_LENGTH
    return _executions.c.state.in_(("queued", "running")) & has_name & (name != node)


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


def _end_sandboxes(connection: Connection, at: float, known: Sandboxes) -> tuple[str, ...]:
    alive = _sandboxes.c.ended_at.is_(None) & _sandboxes.c.id.not_in(known.living)
    ids = tuple(connection.execute(select(_sandboxes.c.id).where(alive)).scalars())
    for each in known.because.keys() & ids:
        ended = update(_sandboxes).where(alive, _sandboxes.c.id == each)
        connection.execute(ended.values(ended_at=at, ended_because=known.because[each]))
    if ids:
        ended = update(_sandboxes).where(alive)
        connection.execute(ended.values(ended_at=at, ended_because=SANDBOX_BECAUSE))
    return ids
