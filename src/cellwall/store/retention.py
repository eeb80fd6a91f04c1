"""Forgetting: what has ended long enough ago goes, in bounded steps that others can write between.

Keys are kept, and so are audit records until somebody says up to which. The invariants: an
execution goes with all of its events; what is left of the audit is always its end, without a hole.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, select

from cellwall.store import schema

STEP = 200
"""Rows of a table that go in one transaction; some milliseconds at the reference machine."""


def expire_some(connection: Connection, before: float, replays_before: float) -> int:
    """Delete up to `STEP` rows of each kind that ended or were used before; return how many."""
    return (
        _executions(connection, before)
        + _sandboxes(connection, before)
        + _replays(connection, replays_before)
    )


def _executions(connection: Connection, before: float) -> int:
    table = schema.executions
    old = select(table.c.id).where(table.c.state == "ended", table.c.ended_at < before).limit(STEP)
    ids = list(connection.execute(old).scalars())
    if ids:
        connection.execute(delete(schema.events).where(schema.events.c.execution_id.in_(ids)))
        connection.execute(delete(table).where(table.c.id.in_(ids)))
    return len(ids)


def _sandboxes(connection: Connection, before: float) -> int:
    table = schema.sandboxes
    ids = list(
        connection.execute(
            select(table.c.id).where(table.c.ended_at < before).limit(STEP)
        ).scalars()
    )
    if ids:
        connection.execute(delete(table).where(table.c.id.in_(ids)))
    return len(ids)


def _replays(connection: Connection, before: float) -> int:
    table = schema.replays
    old = select(table.c.tenant, table.c.key).where(table.c.at < before).limit(STEP)
    found = connection.execute(old).all()
    for tenant, key in found:
        connection.execute(delete(table).where(table.c.tenant == tenant, table.c.key == key))
    return len(found)


def trim_some(connection: Connection, up_to: int) -> int:
    """Delete the oldest audit records, up to `STEP` of them and to number `up_to`; how many.

    The newest stays in any case: the next one's number and link are made from it.
    """
    table = schema.audit
    ends = select(func.min(table.c.seq), func.max(table.c.seq))
    first, newest = connection.execute(ends).one()
    if first is None:
        return 0
    last = min(up_to, newest - 1, first + STEP - 1)
    return connection.execute(delete(table).where(table.c.seq <= last)).rowcount
