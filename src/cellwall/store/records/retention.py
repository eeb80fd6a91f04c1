"""Deletion of expired rows, in bounded steps between which other writes run.

Keys are kept, and so are audit records up to the number given to `trim_some`. The invariants: an
execution goes with all of its events; the rest of the audit is always its end, without a hole;
every statement has the same text however many rows there are, because SQLite and SQLAlchemy keep
what they have compiled (a list of 200 names is another statement than one of 199, and 20 KiB more).
"""

from __future__ import annotations

from sqlalchemy import Connection, Executable, bindparam, delete, func, select

from cellwall.store.records import schema

STEP = 200
"""Rows of a table that go in one transaction; some milliseconds at the reference machine."""

_executions, _events = schema.executions, schema.events
_sandboxes, _replays = schema.sandboxes, schema.replays
_OLD_EXECUTIONS = (
    select(_executions.c.id.label("an_id"))
    .where(_executions.c.state == "ended", _executions.c.ended_at < bindparam("before"))
    .limit(STEP)
)
_OLD_SANDBOXES = (
    select(_sandboxes.c.id.label("an_id"))
    .where(_sandboxes.c.ended_at < bindparam("before"))
    .limit(STEP)
)
_OLD_REPLAYS = (
    select(_replays.c.tenant.label("a_tenant"), _replays.c.key.label("a_key"))
    .where(_replays.c.at < bindparam("before"))
    .limit(STEP)
)
_DROP_EVENTS = delete(_events).where(_events.c.execution_id == bindparam("an_id"))
_DROP_EXECUTION = delete(_executions).where(_executions.c.id == bindparam("an_id"))
_DROP_SANDBOX = delete(_sandboxes).where(_sandboxes.c.id == bindparam("an_id"))
_DROP_REPLAY = delete(_replays).where(
    _replays.c.tenant == bindparam("a_tenant"), _replays.c.key == bindparam("a_key")
)


def expire_some(connection: Connection, before: float, replays_before: float) -> int:
    """Delete up to `STEP` rows of each kind that ended or were used before; return how many."""
    return (
        _drop(connection, _OLD_EXECUTIONS, before, (_DROP_EVENTS, _DROP_EXECUTION))
        + _drop(connection, _OLD_SANDBOXES, before, (_DROP_SANDBOX,))
        + _drop(connection, _OLD_REPLAYS, replays_before, (_DROP_REPLAY,))
    )


def _drop(
    connection: Connection, old: Executable, before: float, statements: tuple[Executable, ...]
) -> int:
    """Run each statement for every row that `old` finds; return the number of rows."""
    found = connection.execute(old, {"before": before}).mappings().all()
    rows = [dict(row) for row in found]
    for statement in statements if rows else ():
        connection.execute(statement, rows)
    return len(rows)


def trim_some(connection: Connection, up_to: int) -> int:
    """Delete the oldest audit records, up to `STEP` of them and to number `up_to`; return how many.

    The newest stays in any case: the next one's number and link are made from it.
    """
    table = schema.audit
    ends = select(func.min(table.c.seq), func.max(table.c.seq))
    first, newest = connection.execute(ends).one()
    if first is None:
        return 0
    last = min(up_to, newest - 1, first + STEP - 1)
    return connection.execute(delete(table).where(table.c.seq <= last)).rowcount
