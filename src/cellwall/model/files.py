"""Files, changes and ports as the inside describes them.

Values only; `parse` checks what came over a border. All text here was chosen by hostile code: it
is for showing, never for trusting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["created", "modified", "removed", "moved", "overflow"]
CHANGE_KINDS: dict[str, ChangeKind] = {
    "created": "created",
    "modified": "modified",
    "removed": "removed",
    "moved": "moved",
    "overflow": "overflow",
}

_MOST = 1 << 63
"""No kernel counts as far; `float` has an end, too."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file."""

    name: str
    path: str
    type: str
    size: int
    """Bytes."""
    mode: int
    mtime: float
    """Seconds since the epoch."""
    target: str | None = None
    """Where a link points to."""

    @classmethod
    def parse(cls, value: object) -> FileEntry:
        """Check one entry; `ValueError` when it is not one."""
        if not isinstance(value, dict):
            raise ValueError("file entry: not an object")
        texts = [value.get(name, "") for name in ("name", "path", "type")]
        numbers = [value.get(name, 0) for name in ("size", "mode", "mtime")]
        target = value.get("target")
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, (int, float)) and abs(number) < _MOST for number in numbers
        ):
            raise ValueError("file entry: fields of the wrong type, or out of range")
        return cls(
            texts[0],
            texts[1],
            texts[2],
            int(numbers[0]),
            int(numbers[1]),
            float(numbers[2]),
            target if isinstance(target, str) else None,
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """What a directory holds."""

    entries: list[FileEntry]
    is_truncated: bool
    """There were more entries than asked for, or than fit one answer."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change in a watched directory.

    `overflow`: changes at or below `path` went unreported; list it again. `removed` of `.` is the
    end of the watched directory, and of the watch.
    """

    kind: ChangeKind
    path: str
    """Relative to the watched directory; `.` is itself."""
    target: str | None = None
    """Where a `moved` one is now, relative as well."""
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """One TCP port that is listened on."""

    port: int
    address: str

    @classmethod
    def parse(cls, value: object) -> ListeningPort:
        """Check one entry; `ValueError` when it is not one."""
        known = value if isinstance(value, dict) else {}
        port, address = known.get("port"), known.get("address")
        if type(port) is not int or not 1 <= port <= 65_535 or not isinstance(address, str):
            raise ValueError("listening port: not what it should be")
        return cls(port, address)
