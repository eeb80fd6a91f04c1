"""Schemas of the routes of forks and snapshots: those that a caller may send, and the answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cellwall.model.snapshot import (
    DAY_S,
    MOST_EXPIRES_S,
    MOST_FORKS,
    NAME_PATTERN,
    Scope,
    Threads,
)
from cellwall.server.schemas.base import StrictModel
from cellwall.server.schemas.responses import Sandbox, Shown

_THREADS = (
    "If the session has threads beside its own: `refuse`, or `drop` for copies without them, which "
    "`left_behind` names."
)
SnapshotName = Annotated[str, Field(pattern=NAME_PATTERN)]

SCOPE = Field(
    default=None,
    description=(
        "The least that a copy must have: the session and the files, or the tree of all processes. "
        "By default what the runtime carries."
    ),
)


class ForkBody(StrictModel):
    """Copies of a sandbox to make."""

    count: int = Field(default=1, ge=1, le=MOST_FORKS, description="Number of copies.")
    reseed: bool = Field(
        default=True,
        description="Whether the random generators that programs share are seeded anew.",
    )
    threads: Threads = Field(default="refuse", description=_THREADS)

    scope: Scope | None = SCOPE


class SnapshotBody(StrictModel):
    """A snapshot to make."""

    scope: Scope | None = SCOPE

    name: SnapshotName | None = Field(
        default=None, description="By which it is found beside its id; by default its id."
    )
    expires_s: float = Field(
        default=DAY_S, gt=0, le=MOST_EXPIRES_S, description="Seconds until it is deleted."
    )
    threads: Threads = Field(default="refuse", description=_THREADS)


class RestoreBody(StrictModel):
    """A sandbox to make of a snapshot."""

    reseed: bool = Field(
        default=True,
        description="Whether the random generators that programs share are seeded anew.",
    )


class Forked(Shown):
    """One copy, or why there is none."""

    sandbox: Sandbox | None = None
    error: dict[str, Any] | None = Field(
        default=None, description="The error, as in an error's answer."
    )
    left_behind: list[str] = Field(
        description="What the source had and the copy has not, such as sockets."
    )
    carries: Scope = Field(
        default="session", description="Session and files alone, or the tree of all processes."
    )


class Forks(Shown):
    """The copies of a sandbox."""

    forks: list[Forked]


class Snapshot(Shown):
    """A session that was written down."""

    id: str
    name: str
    template: str
    created_at: str
    expires_at: str
    memory_bytes: int = Field(description="Size of what differs from a fresh session in memory.")
    files_bytes: int = Field(description="Size of the archive of its files.")
    left_behind: list[str]
    carries: Scope
    durable: bool = Field(description="Whether it outlives the server's end, and a reboot.")


class Snapshots(Shown):
    """The snapshots there are."""

    snapshots: list[Snapshot]
