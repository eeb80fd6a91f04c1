"""Downloads of a sandbox's bytes, sent so that no browser takes them for a page of the server.

Called by `routes.files` and `routes.signed`. The invariant: a body has exactly the announced
length, and a name chosen inside the sandbox cannot add a header.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from cellwall.model.errors import FileError
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cellwall.engine.parts.files import Files
    from cellwall.server.core.request import Request

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_BYTES = "application/octet-stream"
_PIECE_BYTES = 1024 * 1024


def attachment(path: str) -> dict[str, str]:
    """Return the headers of a body that is to be saved, never shown."""
    name = path.rstrip("/").rpartition("/")[2] or "download"
    quoted = quote(name.encode("utf-8", "replace"), safe="")
    return {
        "content-disposition": f"attachment; filename*=UTF-8''{quoted}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }


async def send_file(request: Request, files: Files, path: str) -> None:
    """Send a file or the range of it that the client wants."""
    most = request.settings.download_bytes
    wanted = request.headers.get("range")
    probe = await files.read_piece(path, 0, 1 if wanted else _PIECE_BYTES)
    size = probe.size or len(probe.data)  # files of /proc report a size of zero
    headers = {**attachment(path), "accept-ranges": "bytes"}
    if wanted is not None and (span := _span(wanted, size)) is not None:
        begin, end = span
        _check_size(end - begin, most, path)
        headers["content-range"] = f"bytes {begin}-{end - 1}/{size}"
        headers["content-length"] = str(end - begin)
        await request.start(206, _BYTES, headers)
        await _send(request, files.read_stream(path, begin, end - begin, probe.inode))
        return
    _check_size(size, most, path)
    if wanted is not None:
        probe = await files.read_piece(path, 0, _PIECE_BYTES)
    headers["content-length"] = str(size)
    await request.start(200, _BYTES, headers)
    first = probe.data[:size]
    if request.scope["method"] != "HEAD":
        await request.write(first)
        rest = size - len(first)
        await _send(request, files.read_stream(path, len(first), rest, probe.inode))
    else:
        await request.end()


def _check_size(size: int, most: int, path: str) -> None:
    if size > most:
        raise FileError(
            f"download {path!r}: it has {size} bytes, above {most}",
            reason="too_large",
            remedy="read parts of it with Range",
        )


def _span(wanted: str, size: int) -> tuple[int, int] | None:
    """Return begin and end of the one requested range; None: send everything."""
    found = _RANGE.fullmatch(wanted.strip())
    if found is None or (not found[1] and not found[2]):
        return None  # other units and several ranges may be ignored (RFC 9110, 14.2)
    if not found[1]:
        begin, end = max(0, size - int(found[2])), size
    else:
        begin = int(found[1])
        end = min(size, int(found[2]) + 1) if found[2] else size
    if begin >= end:
        raise HttpError(
            416,
            "range",
            f"range: the file has {size} bytes",
            remedy="ask for a part that exists",
            headers={"content-range": f"bytes */{size}"},
        )
    return begin, end


async def _send(request: Request, pieces: AsyncIterator[bytes]) -> None:
    if request.scope["method"] != "HEAD":
        async for piece in pieces:
            await request.write(piece)
    await request.end()
