"""Changes to the store: small values, given to `Store.write`.

`write_statements` makes them. The changes of one `write` become durable together or not at all, in
order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cellwall.store.records.rows import (
    AuditRow,
    EventChunk,
    ExecutionRow,
    Json,
    KeyRow,
    ReplayRow,
    SandboxRow,
    SecretRow,
)


@dataclass(frozen=True, slots=True)
class Accept:
    """A new execution, in the state of its row."""

    row: ExecutionRow


@dataclass(frozen=True, slots=True)
class Started:
    """A queued execution is about to get its code; its body is forgotten.

    `StoreConflict` if it is not queued: it must not run, it may have run already.
    """

    id: str
    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """An execution has its answer. `StoreConflict` if it has one: a shown end never changes."""

    id: str
    at: float
    answer: Json
    chunks: tuple[EventChunk, ...] = ()
    line: str = ""
    """The answer as strict JSON in ASCII, if the caller has it already; the store writes it as it
    is."""


@dataclass(frozen=True, slots=True)
class AppendEvents:
    """More events of an execution; its chunks do not overlap."""

    chunk: EventChunk


@dataclass(frozen=True, slots=True)
class KeepReplay:
    """An idempotency key has been used; an older use of it is forgotten."""

    row: ReplayRow


@dataclass(frozen=True, slots=True)
class DropReplay:
    """The call with that idempotency key started nothing."""

    tenant: str
    key: str


@dataclass(frozen=True, slots=True)
class PutSandbox:
    """A new sandbox, or changed fields of a known one; it never undoes an `EndSandbox`."""

    row: SandboxRow


@dataclass(frozen=True, slots=True)
class EndSandbox:
    """A sandbox has ended; only the first end counts."""

    id: str
    at: float
    because: str


@dataclass(frozen=True, slots=True)
class PutKey:
    """A new key. `StoreConflict` if there is one with its digest."""

    row: KeyRow


@dataclass(frozen=True, slots=True)
class RevokeKey:
    """A key is no longer accepted; only the first time counts."""

    digest: str
    at: float


@dataclass(frozen=True, slots=True)
class PutSecret:
    """A secret, in the place of one with its name."""

    row: SecretRow


@dataclass(frozen=True, slots=True)
class DropSecret:
    """A secret is there no longer."""

    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class PutFact:
    """A fact about the whole store, by name."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class AppendAudit:
    """One more audit record, made when its place in the chain is known."""

    make: Callable[[int, bytes], AuditRow]
    """Called inside the transaction with the record's number and the hash of the one before it (32
    zero bytes for the first); maybe more than once, so it must have no effect of its own."""
    words: tuple[Any, ...] | None = None
    """Words from which `make` can be made again after a crash, as JSON; None: it cannot."""


Change = (
    Accept
    | Started
    | Ended
    | AppendEvents
    | KeepReplay
    | DropReplay
    | PutSandbox
    | EndSandbox
    | PutKey
    | RevokeKey
    | PutSecret
    | DropSecret
    | PutFact
    | AppendAudit
)


def size_of(change: Change) -> int:
    """Return the approximate bytes a change writes, as far as callers determine them."""
    if isinstance(change, Accept):
        return len(change.row.body or b"")
    if isinstance(change, Ended):
        return len(change.line) + sum(len(chunk.lines) for chunk in change.chunks)
    return len(change.chunk.lines) if isinstance(change, AppendEvents) else 0
