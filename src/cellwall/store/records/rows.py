"""What the store keeps, as values: one frozen dataclass for each table.

Not the tables (`schema`) and not what is done to them (`changes`). Standard library only, so that
everybody may hold one. Times are seconds since the epoch; every `dict` is strict JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ExecutionState = Literal["queued", "running", "ended"]
Because = Literal["interrupted", "cancelled"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One execution, from its acceptance until its record expires."""

    id: str
    tenant: str
    seq: int
    """Its place in the order of acceptance; unique in the store."""
    sandbox_id: str | None
    state: ExecutionState
    request_id: str
    asked: Json
    """What is shown of it while it waits or runs."""
    body: bytes | None
    """The request, until it has started."""
    on_disconnect: str
    """`cancel`: it goes with its caller. `detach`: it is done whoever waits."""
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
    """What an idempotency key of a tenant was used for."""

    tenant: str
    key: str
    digest: bytes
    """Of the request."""
    kind: str
    thing_id: str
    at: float


@dataclass(frozen=True, slots=True)
class KeptRow:
    """How much is kept of what a tenant's executions left that ended at about the same time."""

    tenant: str
    ended_at: float
    """Seconds since the epoch."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One API key; the key itself is nowhere."""

    digest: str
    """SHA-256 in hexadecimal."""
    tenant: str
    scope: str
    name: str | None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


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
    """From 1, without holes."""
    record: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Leftover:
    """An execution that a server before this one left without an end."""

    row: ExecutionRow
    """Without its body."""
    because: Because
    """`interrupted` if it had started, `cancelled` if it was to go with its caller."""
    last_seq: int
    """Number of its latest kept event; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `Store.recover` found and did."""

    interrupted: tuple[str, ...]
    cancelled: tuple[str, ...]
    sandboxes: tuple[str, ...]
    """Ids of the sandboxes that were alive and are now marked as ended."""
    queued: int
    """How many executions wait for their turn."""
    last_seq: int
    """The highest place ever given to an execution that is still kept; 0 if there is none."""
