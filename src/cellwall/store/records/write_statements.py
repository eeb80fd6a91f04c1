"""From changes to SQL: the statements of many writes, gathered into few round trips.

`writer` decides when they run, `sqlite.database` and `postgres.database` on which thread. They run
in a transaction that the caller has begun. The invariant: changes to one row are made in their
order; changes to different rows may trade places, so that equal statements are sent together.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Executable, Table, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from cellwall.store.records import changes as change
from cellwall.store.records import schema
from cellwall.store.records.errors import StoreConflict
from cellwall.store.records.rows import EventChunk
from cellwall.store.records.statements import Sender

_Values = dict[str, Any]
_COMPRESSION = 1
"""Lines of text shrink to a fifth at the fastest level; the next ones cost more than they save."""
_SMALL_BYTES = 4096
_SMALL_WINDOW_BITS, _SMALL_MEMORY = 12, 5
"""zlib parameters for few lines: 32 KiB to compress in (https://www.zlib.net/manual.html#Advanced).
The usual 256 KiB come from the kernel page by page: 0.08 ms instead of 0.03. Decompression does not
need them."""
_GENESIS = bytes(32)

KEYS_VERSION = "keys_version"


def _upserts(name: str) -> dict[str, Executable]:
    build = postgresql.insert if name == "postgresql" else sqlite.insert
    replay, shown, fact = build(schema.replays), build(schema.sandboxes), build(schema.facts)
    secret = build(schema.secrets)
    changed = {column: secret.excluded[column] for column in ("facts", "sealed", "changed_at")}
    kept = {column: replay.excluded[column] for column in ("digest", "kind", "thing_id", "at")}
    return {
        "replay": replay.on_conflict_do_update(index_elements=["tenant", "key"], set_=kept),
        "sandbox": shown.on_conflict_do_update(
            index_elements=["id"], set_={"shown": shown.excluded.shown}
        ),
        "secret": secret.on_conflict_do_update(index_elements=["tenant", "name"], set_=changed),
        "fact": fact.on_conflict_do_update(
            index_elements=["name"], set_={"value": fact.excluded.value}
        ),
    }


_UPSERTS = {name: _upserts(name) for name in ("sqlite", "postgresql")}
_executions, _sandboxes, _keys, _replays = (
    schema.executions,
    schema.sandboxes,
    schema.keys,
    schema.replays,
)
_ACCEPT = insert(_executions)
_START = (
    update(_executions)
    .where(_executions.c.id == bindparam("an_id"), _executions.c.state == "queued")
    .values(state="running", started_at=bindparam("at"), body=None)
)
_END = (
    update(_executions)
    .where(_executions.c.id == bindparam("an_id"), _executions.c.state != "ended")
    .values(state="ended", ended_at=bindparam("at"), answer=bindparam("an_answer"), body=None)
)
_EVENTS = insert(schema.events)
_DROP_REPLAY = delete(_replays).where(
    _replays.c.tenant == bindparam("a_tenant"), _replays.c.key == bindparam("a_key")
)
_END_SANDBOX = (
    update(_sandboxes)
    .where(_sandboxes.c.id == bindparam("an_id"), _sandboxes.c.ended_at.is_(None))
    .values(ended_at=bindparam("at"), ended_because=bindparam("because"))
)
_PUT_KEY = insert(_keys)
_REVOKE = (
    update(_keys)
    .where(_keys.c.digest == bindparam("a_digest"), _keys.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("at"))
)
_DROP_SECRET = delete(schema.secrets).where(
    schema.secrets.c.tenant == bindparam("a_tenant"), schema.secrets.c.name == bindparam("a_name")
)
_LANES = ("accept", "start", "end", "events", "replays", "sandboxes", "keys", "secrets")
_AUDIT = insert(schema.audit)
_AUDIT_HEAD = (
    select(schema.audit.c.seq, schema.audit.c.hash).order_by(schema.audit.c.seq.desc()).limit(1)
)


@dataclass(slots=True)
class _Run:
    """One statement with the values of every change that needs it."""

    statement: Executable
    values: list[_Values]
    refusal: str | None = None
    """Error text if a row was not there to be changed; None: that is no error."""


@dataclass(slots=True)
class _Plan:
    """Runs in the order in which they are sent; rows of different lanes are independent."""

    dialect: str
    lanes: dict[str, list[_Run]] = field(default_factory=lambda: {name: [] for name in _LANES})
    records: list[change.AppendAudit] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def add(self, lane: str, run: _Run) -> None:
        """Append a run, joined to the one before it if that has the same statement."""
        runs = self.lanes[lane]
        if runs and runs[-1].statement is run.statement:
            runs[-1].values += run.values
        else:
            runs.append(run)


def _values_of(row: object, table: Table) -> _Values:
    return {column.name: getattr(row, column.name) for column in table.c}


def _accept(plan: _Plan, it: change.Accept) -> None:
    plan.add("accept", _Run(_ACCEPT, [_values_of(it.row, _executions)]))


def _started(plan: _Plan, it: change.Started) -> None:
    refusal = "it is not queued; it must not run"
    plan.add("start", _Run(_START, [{"an_id": it.id, "at": it.at}], refusal))


def _ended(plan: _Plan, it: change.Ended) -> None:
    values = {
        "an_id": it.id,
        "at": it.at,
        "an_answer": schema.Encoded(it.line) if it.line else it.answer,
    }
    plan.add("end", _Run(_END, [values], "it has ended before, or there is none of that id"))
    for chunk in it.chunks:
        _chunk(plan, chunk)


def _chunk(plan: _Plan, chunk: EventChunk) -> None:
    values = {
        "execution_id": chunk.execution_id,
        "first_seq": chunk.first_seq,
        "last_seq": chunk.last_seq,
        "lines": _compressed(chunk.lines),
    }
    plan.add("events", _Run(_EVENTS, [values]))


def _compressed(lines: bytes) -> bytes:
    if len(lines) > _SMALL_BYTES:
        return zlib.compress(lines, _COMPRESSION)
    small = zlib.compressobj(_COMPRESSION, zlib.DEFLATED, _SMALL_WINDOW_BITS, _SMALL_MEMORY)
    return small.compress(lines) + small.flush()


def _append_events(plan: _Plan, it: change.AppendEvents) -> None:
    _chunk(plan, it.chunk)


def _keep_replay(plan: _Plan, it: change.KeepReplay) -> None:
    values = _values_of(it.row, schema.replays)
    plan.add("replays", _Run(_UPSERTS[plan.dialect]["replay"], [values]))


def _drop_replay(plan: _Plan, it: change.DropReplay) -> None:
    plan.add("replays", _Run(_DROP_REPLAY, [{"a_tenant": it.tenant, "a_key": it.key}]))


def _put_sandbox(plan: _Plan, it: change.PutSandbox) -> None:
    values = _values_of(it.row, schema.sandboxes)
    plan.add("sandboxes", _Run(_UPSERTS[plan.dialect]["sandbox"], [values]))


def _end_sandbox(plan: _Plan, it: change.EndSandbox) -> None:
    values = {"an_id": it.id, "at": it.at, "because": it.because}
    plan.add("sandboxes", _Run(_END_SANDBOX, [values]))


def _put_key(plan: _Plan, it: change.PutKey) -> None:
    values = _values_of(it.row, schema.keys)
    plan.add("keys", _Run(_PUT_KEY, [values]))
    plan.facts[KEYS_VERSION] = secrets.token_hex(8)


def _revoke_key(plan: _Plan, it: change.RevokeKey) -> None:
    plan.add("keys", _Run(_REVOKE, [{"a_digest": it.digest, "at": it.at}]))
    plan.facts[KEYS_VERSION] = secrets.token_hex(8)


def _put_secret(plan: _Plan, it: change.PutSecret) -> None:
    values = _values_of(it.row, schema.secrets)
    plan.add("secrets", _Run(_UPSERTS[plan.dialect]["secret"], [values]))


def _drop_secret(plan: _Plan, it: change.DropSecret) -> None:
    plan.add("secrets", _Run(_DROP_SECRET, [{"a_tenant": it.tenant, "a_name": it.name}]))


def _put_fact(plan: _Plan, it: change.PutFact) -> None:
    plan.facts[it.name] = it.value


def _append_audit(plan: _Plan, it: change.AppendAudit) -> None:
    plan.records.append(it)


_PLANNERS: dict[type, Callable[[_Plan, Any], None]] = {
    change.Accept: _accept,
    change.Started: _started,
    change.Ended: _ended,
    change.AppendEvents: _append_events,
    change.KeepReplay: _keep_replay,
    change.DropReplay: _drop_replay,
    change.PutSandbox: _put_sandbox,
    change.EndSandbox: _end_sandbox,
    change.PutKey: _put_key,
    change.RevokeKey: _revoke_key,
    change.PutSecret: _put_secret,
    change.DropSecret: _drop_secret,
    change.PutFact: _put_fact,
    change.AppendAudit: _append_audit,
}


def apply(sender: Sender, changes: Iterable[change.Change]) -> None:
    """Make the changes in the transaction that `sender` has open.

    Raises `StoreConflict` where a row is not in the state that a change needs, and the errors of
    the driver and of `AppendAudit.make`; the transaction must then be rolled back.
    """
    plan = _Plan(sender.dialect)
    for each in changes:
        _PLANNERS[type(each)](plan, each)
    for runs in plan.lanes.values():
        for run in runs:
            _send(sender, run)
    if plan.facts:
        values = [{"name": name, "value": value} for name, value in plan.facts.items()]
        sender.send(_UPSERTS[plan.dialect]["fact"], values, counted=False)
    if plan.records:
        _send_audit(sender, plan.records)


def _send(sender: Sender, run: _Run) -> None:
    changed = sender.send(run.statement, run.values, counted=run.refusal is not None)
    if run.refusal is not None and changed != len(run.values):
        names = ", ".join(str(values["an_id"]) for values in run.values[:3])
        raise StoreConflict(f"change execution {names}: {run.refusal}", remedy="look at it first")


def _send_audit(sender: Sender, records: list[change.AppendAudit]) -> None:
    sender.lock_audit()
    head = sender.first(_AUDIT_HEAD)
    seq, last = (0, _GENESIS) if head is None else (int(head[0]), bytes(head[1]))
    rows = []
    for record in records:
        row = record.make(seq + 1, last)
        if row.seq != seq + 1:
            raise StoreConflict(
                f"append audit record {seq + 1}: it calls itself {row.seq}",
                remedy="give a record the number it is made with",
            )
        seq, last = row.seq, row.hash
        rows.append({"seq": row.seq, "record": row.record, "hash": row.hash})
    sender.send(_AUDIT, rows, counted=False)
