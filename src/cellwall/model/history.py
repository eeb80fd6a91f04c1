"""History of a work area: checkpoints, what changed between two, and what a rollback did.

Values only. All names of files were chosen by hostile code: they are for display, never to be
opened. `parse` checks what a server answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cellwall.model.errors import UsageError

FileChangeKind = Literal["added", "modified", "deleted", "renamed"]
MOST_CHECKPOINTS = 32
"""Most checkpoints of one sandbox."""
MOST_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a work area at one moment, kept outside of the sandbox."""

    id: str
    name: str | None
    created_at: float
    """Seconds since the epoch."""
    files: int
    """Number of regular files."""
    bytes: int
    """Sum of their sizes."""
    new_bytes: int
    """Bytes that no earlier checkpoint had, as they were stored."""
    unsteady: tuple[str, ...] = ()
    """Files that changed while they were read: their content may mix two moments."""

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Checkpoint:
        """Return a checkpoint that a server describes."""
        return cls(
            str(value["id"]),
            value.get("name"),
            float(value["created_at"]),
            int(value["files"]),
            int(value["bytes"]),
            int(value["new_bytes"]),
            tuple(value.get("unsteady", ())),
        )


@dataclass(frozen=True, slots=True)
class FileChange:
    """One difference between two moments of a work area."""

    path: str
    """Path below the working directory; the new one of a file that was renamed."""
    kind: FileChangeKind
    type: str
    """`file`, `directory`, `symlink` or `other`; that before, if it was deleted."""
    size_before: int | None
    """Size in bytes; None if it was not there."""
    size_after: int | None
    mode_before: int | None
    mode_after: int | None
    old_path: str | None = None
    """Path before, of a file that was renamed."""

    @classmethod
    def parse(cls, value: dict[str, Any]) -> FileChange:
        """Return a change that a server describes."""
        fields: dict[str, Any] = {name: value.get(name) for name in cls.__slots__}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback did; the work area was compared with the checkpoint afterwards."""

    id: str
    """Id of the checkpoint."""
    restored: int
    """Number of entries that were made again."""
    removed: int
    """Number of entries that the checkpoint does not have."""
    left_out: tuple[str, ...] = ()
    """Sockets and devices of the checkpoint that are gone: only a program can make them."""

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Rollback:
        """Return what a server answered."""
        left_out = tuple(value.get("left_out", ()))
        return cls(str(value["id"]), int(value["restored"]), int(value["removed"]), left_out)


def check_name(name: object) -> str | None:
    """Return the name of a checkpoint. Raises `UsageError`."""
    if name is None:
        return None
    if not isinstance(name, str) or not name or len(name) > MOST_NAME_CHARACTERS:
        raise UsageError(
            f"checkpoint: name {name!r:.80} is no text of up to {MOST_NAME_CHARACTERS} characters",
            remedy="give a short one, or none",
        )
    if not name.isprintable():
        raise UsageError("checkpoint: its name is not printable", remedy="give a plain one")
    return name
