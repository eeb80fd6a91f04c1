"""Addresses of sandboxes' files: `cellwall://sandbox/<id>/files/<path>`.

Pure. A path is the sandbox's own, never the host's; relative ones start at /home/user, absolute
ones have two slashes in a row.
"""

from __future__ import annotations

import mimetypes
from typing import NamedTuple
from urllib.parse import quote, unquote

from cellwall.model.errors import UsageError

_PREFIX = "cellwall://sandbox/"
TEMPLATE = "cellwall://sandbox/{sandbox_id}/files/{+path}"


class Place(NamedTuple):
    """Place of a file: its sandbox and its path."""

    sandbox_id: str
    path: str


def address(sandbox_id: str, path: str) -> str:
    """Return the address of a file."""
    inner = path.removeprefix("./").removeprefix("/home/user/")
    return f"{_PREFIX}{sandbox_id}/files/{quote(inner, safe='/', errors='replace')}"


def place(uri: str) -> Place:
    """Return the place that an address names; `UsageError` if it is no address of this form."""
    sandbox_id, found, path = uri.removeprefix(_PREFIX).partition("/files/")
    if not uri.startswith(_PREFIX) or not found or not path or "/" in sandbox_id:
        raise UsageError(
            f"uri: {uri[:100]!r} is not a file of a sandbox",
            remedy="it looks like cellwall://sandbox/<id>/files/<path>",
        )
    return Place(sandbox_id, unquote(path))


def media_type(path: str) -> str:
    """Return the media type for a file's name; the content was made by hostile code."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"
