"""Reading: from rows of the database to values of `rows`.

The functions take a connection; which one, and on which thread, is decided by `database`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from sqlalchemy import BigInteger, Connection, Row, Select, bindparam, cast, func, select

from cellwall.store.records import schema
from cellwall.store.records.rows import (
    AuditRow,
    EventChunk,
    ExecutionRow,
    KeptRow,
    KeyRow,
    ReplayRow,
    SandboxRow,
    SecretRow,
)

_executions, _events, _audit = schema.executions, schema.events, schema.audit
_LIGHT = [column for column in _executions.c if column.name != "body"]
_EXECUTION = select(_executions).where(_executions.c.id == bindparam("an_id"))
_BODY = select(_executions.c.body).where(_executions.c.id == bindparam("an_id"))
_QUEUED = (
    select(*_LIGHT)
    .where(_executions.c.state == "queued", _executions.c.seq > bindparam("after"))
    .order_by(_executions.c.seq)
    .limit(bindparam("most"))
)
_CHUNKS = (
    select(_events)
    .where(_events.c.execution_id == bindparam("an_id"), _events.c.last_seq > bindparam("after"))
    .order_by(_events.c.first_seq)
    .limit(bindparam("most"))
)
_SANDBOXES = select(schema.sandboxes).order_by(schema.sandboxes.c.created_at)
_KEYS = select(schema.keys).order_by(schema.keys.c.created_at)
_SECRETS = select(schema.secrets).order_by(schema.secrets.c.name)
_REPLAY = select(schema.replays).where(
    schema.replays.c.tenant == bindparam("a_tenant"), schema.replays.c.key == bindparam("a_key")
)
_RECORDS = (
    select(_audit)
    .where(_audit.c.seq > bindparam("after"))
    .order_by(_audit.c.seq)
    .limit(bindparam("most"))
)
_HEAD = select(_audit).order_by(_audit.c.seq.desc()).limit(1)
_KEPT_STEP_S = 15.0
"""Seconds of ends that are summed into one row of `kept`."""
_FACT = select(schema.facts.c.value).where(schema.facts.c.name == bindparam("a_name"))


def execution_of(row: Row[*tuple[object, ...]]) -> ExecutionRow:
    """Return a row of `executions`, whether its body was read or not."""
    return ExecutionRow(**{"body": None, **row._mapping})


def execution(connection: Connection, execution_id: str) -> ExecutionRow | None:
    """Return the execution, or None."""
    row = connection.execute(_EXECUTION, {"an_id": execution_id}).first()
    return None if row is None else execution_of(row)


def body(connection: Connection, execution_id: str) -> bytes | None:
    """Return the execution's body, or None if it has none (any more)."""
    found: bytes | None = connection.execute(_BODY, {"an_id": execution_id}).scalar()
    return found


def queued(connection: Connection, after_seq: int, limit: int) -> list[ExecutionRow]:
    """Return queued executions in order, without their bodies."""
    rows = connection.execute(_QUEUED, {"after": after_seq, "most": limit})
    return [execution_of(row) for row in rows]


def events(connection: Connection, execution_id: str, after: int, limit: int) -> list[EventChunk]:
    """Return the first `limit` chunks that hold events after number `after`, in order."""
    rows = connection.execute(_CHUNKS, {"an_id": execution_id, "after": after, "most": limit})
    return [
        EventChunk(row.execution_id, row.first_seq, row.last_seq, zlib.decompress(row.lines))
        for row in rows
    ]


def last_event(connection: Connection, execution_id: str) -> int:
    """Return the number of the latest kept event; 0 if there is none."""
    latest = select(func.max(_events.c.last_seq)).where(_events.c.execution_id == execution_id)
    return connection.execute(latest).scalar() or 0


def sandboxes(connection: Connection) -> list[SandboxRow]:
    """Return every sandbox that is kept, oldest first."""
    return [SandboxRow(**row._mapping) for row in connection.execute(_SANDBOXES)]


def kept(connection: Connection, above: int) -> list[KeptRow]:
    """Return the bytes of ended executions beyond `above` for each answer and chunk of events."""
    found = []
    of_events = _executions.join(_events, _events.c.execution_id == _executions.c.id)
    for source, column in ((_executions, _executions.c.answer), (of_events, _events.c.lines)):
        size = func.length(column, type_=BigInteger)
        minute = cast(_executions.c.ended_at / _KEPT_STEP_S, BigInteger)
        statement = (
            select(_executions.c.tenant, minute, func.sum(size - above))
            .select_from(source)
            .where(_executions.c.state == "ended", size > above)
            .group_by(_executions.c.tenant, minute)
        )
        found += [
            KeptRow(tenant, at * _KEPT_STEP_S, int(total))
            for tenant, at, total in connection.execute(statement)
        ]
    return found


def keys(connection: Connection) -> list[KeyRow]:
    """Return every key, oldest first; also the revoked and the expired ones."""
    return [KeyRow(**row._mapping) for row in connection.execute(_KEYS)]


def secrets(connection: Connection, tenant: str) -> list[SecretRow]:
    """Return a tenant's secrets, by name."""
    statement = _SECRETS.where(schema.secrets.c.tenant == tenant)
    return [SecretRow(**row._mapping) for row in connection.execute(statement)]


def replay(connection: Connection, tenant: str, key: str) -> ReplayRow | None:
    """Return the use of the key, or None."""
    row = connection.execute(_REPLAY, {"a_tenant": tenant, "a_key": key}).first()
    return None if row is None else ReplayRow(**row._mapping)


def audit(connection: Connection, after_seq: int, limit: int) -> list[AuditRow]:
    """Return audit records in order."""
    return _records(connection, _RECORDS, {"after": after_seq, "most": limit})


def audit_head(connection: Connection) -> AuditRow | None:
    """Return the newest audit record, or None."""
    found = _records(connection, _HEAD, {})
    return found[0] if found else None


def _records(
    connection: Connection, statement: Select[*tuple[object, ...]], values: dict[str, int]
) -> list[AuditRow]:
    rows: Sequence[Row[*tuple[object, ...]]] = connection.execute(statement, values).all()
    return [AuditRow(**row._mapping) for row in rows]


def fact(connection: Connection, name: str) -> str | None:
    """Return a fact by name, or None."""
    value: str | None = connection.execute(_FACT, {"a_name": name}).scalar()
    return value
