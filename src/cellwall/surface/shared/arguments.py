"""Checks of arguments that library and SDK make alike, before anything is sent.

Not for what only the engine takes (`engine.policy.arguments`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.model.files import check_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_path(path: str) -> str:
    """Return `path` for a file operation; the sandbox's kernel decides where it leads."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise UsageError(f"path: {path!r} is not a file name", remedy="give a path without NUL")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"path: {path!r} is not valid Unicode", remedy="give UTF-8") from None
    return path


def check_file_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the metadata of a file to write. Raises UsageError."""
    try:
        return check_metadata({} if metadata is None else metadata)
    except ValueError as error:
        raise UsageError(str(error), remedy="give fewer or shorter texts in ASCII") from None


def check_port(port: int, *, lowest: int) -> int:
    """Return `port` if it is a valid port number."""
    if type(port) is not int or not lowest <= port <= 65_535:
        raise UsageError(f"port: {port!r} is not a port", remedy=f"give {lowest} to 65535")
    return port


def check_size(pty: tuple[int, int], most_cells: int) -> dict[str, int]:
    """Return a terminal's size as guest and server take it. Raises UsageError."""
    fits = isinstance(pty, (tuple, list)) and len(pty) == 2
    if not fits or not all(type(count) is int and 1 <= count <= most_cells for count in pty):
        raise UsageError(
            f"pty: {pty!r} is not a size", remedy=f"give (rows, columns), each 1 to {most_cells}"
        )
    return {"rows": pty[0], "cols": pty[1]}
