"""Files, changes and ports of a sandbox, as the guest reports them.

Values only; `parse` checks what came over a border. All text here was chosen by hostile code: it is
for display, never to be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
"""Bound on the guest's numbers: no kernel counts that far, and `float` has a bound, too."""
_MOST_ID = 1 << 32
_MOST_KEY, _MOST_METADATA_BYTES, _KEY_COST = 246, 4096, 9
"""Bounds that E2B's clients know; a key counts with the prefix of an extended attribute's name."""


def check_metadata(metadata: object) -> dict[str, str]:
    """Return metadata that a file may have: printable ASCII, 4096 bytes. Raises ValueError.

    A key has up to 246 characters, and counts for nine bytes more than it has.
    """
    if not isinstance(metadata, Mapping):
        raise ValueError("metadata of a file: not a mapping")
    size = 0
    for key, value in metadata.items():
        if not _is_plain(key) or not 0 < len(key) <= _MOST_KEY:
            raise ValueError(
                f"metadata of a file: {str(key)[:80]!r} is no key: 1 to {_MOST_KEY} characters, "
                "printable ASCII"
            )
        if not _is_plain(value):
            raise ValueError(
                f"metadata of a file: the value of {key[:80]!r} is not printable ASCII"
            )
        size += _KEY_COST + len(key) + len(value)
    if size > _MOST_METADATA_BYTES:
        raise ValueError(
            f"metadata of a file: keys and values of {size} bytes, {_MOST_METADATA_BYTES} at most"
        )
    return dict(metadata)


def _is_plain(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable()


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file."""

    name: str
    path: str
    type: str
    size: int
    """Size in bytes."""
    mode: int
    mtime: float
    """Time of the last change, in seconds since the epoch."""
    target: str | None = None
    """Target of a link."""
    uid: int | None = None
    """User id of its owner inside the sandbox; None from an older server."""
    gid: int | None = None
    """Group id, likewise."""
    metadata: dict[str, str] = field(default_factory=dict, hash=False)
    """What it was given when it was written."""

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
            _id(value.get("uid")),
            _id(value.get("gid")),
            check_metadata(value.get("metadata", {})),
        )


def _id(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST_ID else None


@dataclass(frozen=True, slots=True)
class Listing:
    """Content of a directory."""

    entries: list[FileEntry]
    is_truncated: bool
    """Whether there were more entries than requested, or than fit one answer."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change in a watched directory.

    `overflow`: changes at or below `path` were not reported; list it again. `removed` of `.` is the
    end of the watched directory, and of the watch.
    """

    kind: ChangeKind
    path: str
    """Path relative to the watched directory; `.` is the directory itself."""
    target: str | None = None
    """New path after `moved`, relative as well."""
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class ListeningPort:
    """One TCP port with a listening server."""

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
