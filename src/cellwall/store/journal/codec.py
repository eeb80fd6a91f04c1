"""Changes as the bytes of a journal's record, and back.

The file is `file`. The changes that have an encoding are made by every execution and cannot be
refused by rows in the database. The invariant: `decoded(encoded(changes))` makes the same rows as
`changes`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from cellwall.store.records.changes import (
    Accept,
    AppendAudit,
    Change,
    DropReplay,
    Ended,
    EndSandbox,
    KeepReplay,
    PutSandbox,
)
from cellwall.store.records.rows import AuditRow, EventChunk, ExecutionRow, ReplayRow, SandboxRow

_encode = json.JSONEncoder(separators=(",", ":")).encode
_OF_EXECUTION = attrgetter(*(field.name for field in fields(ExecutionRow)))
_OF_SANDBOX = attrgetter(*(field.name for field in fields(SandboxRow)))
Seal = Callable[[Sequence[Any]], Callable[[int, bytes], AuditRow]]
"""Makes a function equal to `AppendAudit.make` from `AppendAudit.words`."""


def encoded(changes: Sequence[Change]) -> bytes | None:
    """Return the record of `changes`; None if one of them is of a kind that belongs elsewhere."""
    parts = []
    for each in changes:
        writer = _WRITERS.get(type(each))
        if writer is None or (said := writer(each)) is None:
            return None
        parts.append(said if isinstance(said, str) else _encode(said))
    return f"[{','.join(parts)}]".encode("ascii")


def joined(records: Sequence[bytes]) -> bytes:
    """Return one record with the changes of all `records`, in their order."""
    return b"[%s]" % b",".join(record[1:-1] for record in records)


def decoded(record: bytes, seal: Seal) -> list[Change]:
    """Return the changes of a record that `encoded` made."""
    return [_READERS[kind](rest, seal) for kind, *rest in json.loads(record)]


def _accept(it: Accept) -> list[Any] | None:
    # Only the database grants the start of a waiting execution.
    return (
        ["accept", *_OF_EXECUTION(it.row)]
        if it.row.state == "running" and not it.row.body
        else None
    )


def _ended(it: Ended) -> list[Any] | str:
    chunks = [[c.first_seq, c.last_seq, c.lines.decode()] for c in it.chunks]
    if not it.line:
        return ["end", it.id, it.at, it.answer, chunks]
    return f'["end",{_encode(it.id)},{_encode(it.at)},{it.line},{_encode(chunks)}]'


def _read_end(rest: list[Any], _: Seal) -> Ended:
    execution_id, at, answer, chunks = rest
    kept = tuple(EventChunk(execution_id, a, b, lines.encode()) for a, b, lines in chunks)
    return Ended(execution_id, at, answer, kept)


def _audit(it: AppendAudit) -> list[Any] | None:
    return None if it.words is None else ["audit", *it.words]


def _keep(it: KeepReplay) -> list[Any]:
    row = it.row
    return ["keep", row.tenant, row.key, row.digest.hex(), row.kind, row.thing_id, row.at]


def _read_keep(rest: list[Any], _: Seal) -> KeepReplay:
    tenant, key, digest, *others = rest
    return KeepReplay(ReplayRow(tenant, key, bytes.fromhex(digest), *others))


_WRITERS: dict[type, Callable[[Any], list[Any] | str | None]] = {
    Accept: _accept,
    Ended: _ended,
    AppendAudit: _audit,
    KeepReplay: _keep,
    DropReplay: lambda it: ["drop", it.tenant, it.key],
    PutSandbox: lambda it: ["sandbox", *_OF_SANDBOX(it.row)],
    EndSandbox: lambda it: ["sandbox_end", it.id, it.at, it.because],
}
_READERS: dict[str, Callable[[list[Any], Seal], Change]] = {
    "accept": lambda rest, _: Accept(ExecutionRow(*rest)),
    "end": _read_end,
    "audit": lambda rest, seal: AppendAudit(seal(rest), tuple(rest)),
    "keep": _read_keep,
    "drop": lambda rest, _: DropReplay(*rest),
    "sandbox": lambda rest, _: PutSandbox(SandboxRow(*rest)),
    "sandbox_end": lambda rest, _: EndSandbox(*rest),
}
