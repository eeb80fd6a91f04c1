"""Values that the store keeps: one frozen dataclass for each table.

The tables are in `schema`, the changes to them in `changes`. The module needs the standard library
only, so that every package may hold a row. Times are seconds since the epoch; every `dict` is
strict JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ExecutionState = Literal["queued", "running", "ended"]
Because = Literal["interrupted", "cancelled", "lost"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One execution, from its acceptance until its record expires."""

    id: str
    tenant: str
    seq: int
    """Place in the order of acceptance; unique in the store."""
    sandbox_id: str | None
    state: ExecutionState
    request_id: str
    asked: Json
    """Fields that are shown while the execution waits or runs."""
    body: bytes | None
    """The request, until the execution has started."""
    on_disconnect: str
    """`cancel`: the execution ends with its caller's connection. `detach`: it is done in any
    case."""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    answer: Json | None = None


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """One sandbox as the API shows it."""

    id: str
    tenant: str
    shown: Json
    created_at: float
    ended_at: float | None = None
    ended_because: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """Use of a tenant's idempotency key."""

    tenant: str
    key: str
    digest: bytes
    """Digest of the request."""
    kind: str
    thing_id: str
    at: float


@dataclass(frozen=True, slots=True)
class KeptRow:
    """Size of the kept data of a tenant's executions that ended at about the same time."""

    tenant: str
    ended_at: float
    """Seconds since the epoch."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One API key; the key itself is not stored."""

    digest: str
    """SHA-256 in hexadecimal."""
    tenant: str
    scope: str
    name: str | None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class SecretRow:
    """One secret of a tenant; its value is encrypted."""

    tenant: str
    name: str
    facts: Json
    """What may be shown of it: its hosts and places."""
    sealed: bytes = field(repr=False)
    """The value, encrypted, and only for this tenant, name and facts."""
    changed_at: float


@dataclass(frozen=True, slots=True)
class EventChunk:
    """Some consecutive events of an execution; the store compresses their lines."""

    execution_id: str
    first_seq: int
    last_seq: int
    lines: bytes
    """NDJSON, each line with its end."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One audit record and the hash that chains it to the one before."""

    seq: int
    """Number of the record, from 1, without holes."""
    record: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Leftover:
    """An execution that an earlier server left without an end."""

    row: ExecutionRow
    """The row without its body."""
    because: Because
    """`interrupted` if it had started, `cancelled` if it was to end with its caller's
    connection, `lost` if its id is of a node that this one no longer is."""
    last_seq: int
    """Number of its latest kept event; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of `Store.recover`."""

    interrupted: tuple[str, ...]
    cancelled: tuple[str, ...]
    sandboxes: tuple[str, ...]
    """Ids of the sandboxes that were alive and are now marked as ended."""
    queued: int
    """Number of executions that wait for their turn."""
    last_seq: int
    """The highest place ever given to an execution that is still kept; 0 if there is none."""
    lost: tuple[str, ...] = ()
    """Ids of executions of a node that this one no longer is, whether they had started or not."""
