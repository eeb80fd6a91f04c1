"""Schemas of the routes of checkpoints: what a caller may send, and the answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cellwall.model.history import MOST_NAME_CHARACTERS
from cellwall.server.schemas.base import StrictModel
from cellwall.server.schemas.requests import Query
from cellwall.server.schemas.responses import Shown

_Id = Annotated[str, Field(min_length=1, max_length=64)]


class CheckpointBody(StrictModel):
    """A checkpoint to make."""

    name: Annotated[str, Field(min_length=1, max_length=MOST_NAME_CHARACTERS)] | None = Field(
        None, description="A name to know it by; several may have the same."
    )


class DiffQuery(Query):
    """What to compare the checkpoint with."""

    until: _Id | None = Field(None, description="A later checkpoint; without it: the files now.")
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None, description="A file, of which a unified diff is answered instead of the changes."
    )


class Checkpoint(Shown):
    """A checkpoint."""

    id: str
    name: str | None
    created_at: str
    files: int
    bytes: int
    new_bytes: int
    unsteady: list[str]


class Checkpoints(Shown):
    """The checkpoints of a sandbox."""

    checkpoints: list[Checkpoint]


class FileChange(Shown):
    """One difference."""

    path: str
    kind: Literal["added", "modified", "deleted", "renamed"]
    type: Literal["file", "directory", "symlink", "other"]
    size_before: int | None
    size_after: int | None
    mode_before: int | None
    mode_after: int | None
    old_path: str | None


class Diff(Shown):
    """What differs; one of the two, the other is null."""

    changes: list[FileChange] | None
    text: str | None


class RolledBack(Shown):
    """What a rollback did."""

    id: str
    restored: int
    removed: int
    left_out: list[str]
