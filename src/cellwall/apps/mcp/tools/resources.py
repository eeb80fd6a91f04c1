"""Resources: files of a client's sandboxes, listed and read by address."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from mcp_types import BlobResourceContents, Resource, TextResourceContents

from cellwall.apps.mcp.tools.addresses import address, media_type, place
from cellwall.apps.mcp.tools.tools import content_of
from cellwall.model.errors import CellwallError
from cellwall.model.excerpts import plain

if TYPE_CHECKING:
    from cellwall.apps.mcp.session import Session
    from cellwall.surface.sync.protocols import AnySandbox

_MOST_LISTED = 200
_DEPTH = 3


async def listed(session: Session) -> list[Resource]:
    """Return the files below the home directory of each sandbox, without hidden ones."""
    found: list[Resource] = []
    for sandbox in session.running:
        found += await _files(sandbox)
    return found


async def _files(sandbox: AnySandbox) -> list[Resource]:
    try:
        listing = await sandbox.files.listing(".", depth=_DEPTH, limit=_MOST_LISTED)
    except CellwallError:
        return []  # the sandbox ended during the listing
    return [
        Resource(
            uri=address(sandbox.id, each.path),
            name=plain(each.path),
            mime_type=media_type(each.path),
            size=max(0, each.size),
        )
        for each in listing.entries
        if each.type == "file" and not _is_hidden(each.path)
    ]


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") and part != "." for part in path.split("/"))


async def read(session: Session, uri: str) -> TextResourceContents | BlobResourceContents:
    """Return one file."""
    where = place(uri)
    data = await content_of(session, where.sandbox_id, where.path)
    mime = media_type(where.path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        blob = base64.b64encode(data).decode("ascii")
        return BlobResourceContents(uri=uri, mime_type=mime, blob=blob)
    is_text = mime.startswith("text/") or mime == "application/json"
    return TextResourceContents(uri=uri, mime_type=mime if is_text else "text/plain", text=text)
