"""Which file names a caller may use; where they lead is decided inside.

Not a boundary: the sandbox's own kernel, root and rights are (`guest.files.files`). Absolute paths
are allowed, because they are absolute in there. The invariant: a name that is refused here would
have surprised its author.
"""

from __future__ import annotations

import unicodedata

from cellwall.model.errors import UsageError

_LONGEST_BYTES = 4096
_LONGEST_PART_BYTES = 255


def check_name(path: str) -> str:
    """Return `path` in composed form; `UsageError` when no file should have that name."""
    composed = unicodedata.normalize("NFC", path)
    try:
        raw = composed.encode()
    except UnicodeEncodeError:
        raise _refusal(path, "is not valid Unicode") from None
    parts = composed.split("/")
    if not raw or len(raw) > _LONGEST_BYTES:
        raise _refusal(path, f"needs 1 to {_LONGEST_BYTES} bytes")
    if ".." in parts:
        raise _refusal(path, "has a part `..`")
    if any(ord(char) < 32 or ord(char) == 127 for char in composed) or "\\" in composed:
        raise _refusal(path, "has a control character or a backslash")
    if any(len(part.encode()) > _LONGEST_PART_BYTES for part in parts):
        raise _refusal(path, f"has a part of more than {_LONGEST_PART_BYTES} bytes")
    return composed


def _refusal(path: str, why: str) -> UsageError:
    return UsageError(
        f"path: {path[:80]!r} {why}", remedy="use plain names, below the home or absolute"
    )
